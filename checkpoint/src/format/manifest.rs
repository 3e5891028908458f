//! `MANIFEST.json`: the commit record.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::digest::Digest;
use super::name::CheckpointName;

/// Name of the manifest of a committed checkpoint.
pub(crate) const MANIFEST: &str = "MANIFEST.json";
/// Name of the manifest of a checkpoint that a restore found damaged. Renaming it back makes the
/// checkpoint count again.
pub(crate) const REJECTED: &str = "MANIFEST.rejected";
/// Name of the manifest of a checkpoint that is being removed.
pub(crate) const TOMBSTONE: &str = "MANIFEST.deleted";
/// Name of the empty file that protects a checkpoint from retention.
pub(crate) const PINNED: &str = "PINNED";

/// Content of a committed checkpoint. On disk the manifest's own digest precedes these fields.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// Version of the on-disk format.
    pub(crate) format: u32,
    /// Run id.
    pub(crate) run: String,
    /// Workload id.
    pub(crate) workload: String,
    /// Name of the checkpoint's folder.
    pub(crate) checkpoint: String,
    /// Steps done.
    pub(crate) step: u64,
    /// Attempt of the run that wrote it.
    pub(crate) attempt: u64,
    /// Name of the checkpoint that its state descends from; `None` for a run's first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) parent: Option<String>,
    /// Version of this crate that wrote it.
    pub(crate) software: String,
    /// Number of ranks that wrote it.
    pub(crate) world: usize,
    /// Ranks that share one `dNN` folder.
    pub(crate) ranks_per_folder: usize,
    /// Bytes of tensor data of all ranks.
    pub(crate) bytes: u64,
    /// By rank.
    pub(crate) ranks: Vec<RankEntry>,
    /// The caller's state that does not depend on the world.
    pub(crate) state: Value,
}

/// One rank in a manifest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RankEntry {
    /// Digest inside of the rank's `idx.json`.
    pub(crate) index: Digest,
    /// Bytes of tensor data.
    pub(crate) bytes: u64,
}

impl Manifest {
    /// The key of a file that a rank wrote.
    pub(crate) fn rank_key(&self, name: &CheckpointName, rank: usize, file: &str) -> String {
        format!("{}/{file}", rank_folder(name, rank, self.ranks_per_folder))
    }
}

/// The key of the sub-folder of a rank.
pub(crate) fn rank_folder(name: &CheckpointName, rank: usize, ranks_per_folder: usize) -> String {
    name.key(&format!("d{:02}", rank / ranks_per_folder.max(1)))
}
