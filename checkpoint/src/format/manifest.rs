//! `MANIFEST.json`: the commit record.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Digest;

/// File name inside of a checkpoint's folder.
pub(crate) const MANIFEST: &str = "MANIFEST.json";
/// Name of the manifest of a checkpoint that was found damaged and passed over. Renaming it back
/// makes it count again.
pub(crate) const REJECTED: &str = "MANIFEST.rejected";
/// Name of the manifest of a checkpoint that is being removed.
pub(crate) const TOMBSTONE: &str = "MANIFEST.deleted";

/// What a committed checkpoint is. On disk its own digest comes before these fields.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Manifest {
    /// Version of the on-disk format.
    pub format: u32,
    /// Run id.
    pub run: String,
    /// Workload id.
    pub workload: String,
    /// Name of the checkpoint's folder.
    pub checkpoint: String,
    /// Steps done.
    pub step: u64,
    /// Number of the run's attempt that wrote it.
    pub epoch: u64,
    /// Name of the checkpoint that its state descends from; `None` for a run's first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Version of this crate that wrote it.
    pub software: String,
    /// Number of ranks that wrote it.
    pub world: usize,
    /// Ranks that share one `dNN` folder.
    pub ranks_per_folder: usize,
    /// Bytes of tensor data of all ranks.
    pub bytes: u64,
    /// Root of the Merkle tree over the ranks' index digests.
    pub root: Digest,
    /// By rank.
    pub ranks: Vec<RankEntry>,
    /// The caller's state that does not depend on the world.
    pub state: Value,
}

/// One rank in a manifest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RankEntry {
    /// Digest inside of the rank's `idx.json`.
    pub index: Digest,
    /// Bytes of tensor data.
    pub bytes: u64,
}

/// The sub-folder of a rank.
pub(crate) fn rank_folder(rank: usize, ranks_per_folder: usize) -> String {
    format!("d{:02}", rank / ranks_per_folder.max(1))
}
