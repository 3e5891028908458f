//! `MANIFEST.json`: the commit record.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::contradiction::Fields;
use super::digest::Digest;
use super::index::Index;
use super::name::CheckpointName;
use crate::error::Result;

/// Name of the manifest of a committed checkpoint.
pub(crate) const MANIFEST: &str = "MANIFEST.json";
/// Name of the manifest of a checkpoint that a restore found damaged. Renaming it back makes the
/// checkpoint count again.
pub(crate) const REJECTED: &str = "MANIFEST.rejected";

/// Suffix of the name of an empty file: the files of a rank, `rNNNNN`, have been found damaged, and
/// those of others count.
const REJECTED_RANK: &str = ".rejected";
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
    /// Entries, by rank.
    pub(crate) ranks: Vec<RankEntry>,
    /// The caller's state that does not depend on the world.
    pub(crate) state: Value,
}

/// Entry of a rank in a manifest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RankEntry {
    /// Digest inside of the rank's `idx.json`.
    pub(crate) index: Digest,
    /// Bytes of tensor data.
    pub(crate) bytes: u64,
}

impl Manifest {
    /// Compares every field with the name of the checkpoint and the other fields, so that a reader
    /// can rely on them. `path` is the file, for errors.
    ///
    /// # Errors
    /// [`Error::Damaged`](crate::Error::Damaged) that names the field.
    pub(crate) fn check(&self, path: &Path, name: &CheckpointName) -> Result<()> {
        let fields = Fields { path };
        fields.must_be("checkpoint", &self.checkpoint, &name.to_string())?;
        fields.must_be("step", self.step, name.step)?;
        fields.must_be("attempt", self.attempt, name.attempt)?;
        if let Some(parent) = &self.parent {
            let is_name = parent.parse::<CheckpointName>().is_ok();
            fields.must_hold("parent", is_name, parent, "the name of a checkpoint")?;
        }
        fields.must_hold("world", self.world > 0, self.world, "at least 1")?;
        fields.must_be("entries of ranks", self.ranks.len(), self.world)?;
        let per_folder = self.ranks_per_folder;
        fields.must_hold("ranks_per_folder", per_folder > 0, per_folder, "at least 1")?;
        let bytes = self.ranks.iter().map(|rank| rank.bytes).try_fold(0, u64::checked_add);
        let expected = "the sum of all ranks";
        fields.must_hold("bytes", bytes == Some(self.bytes), self.bytes, expected)
    }

    /// Checks fields of a rank's index that the index cannot check alone: its run and its size.
    ///
    /// # Errors
    /// [`Error::Damaged`](crate::Error::Damaged) that names the field.
    pub(crate) fn check_index(&self, path: &Path, index: &Index) -> Result<()> {
        let fields = Fields { path };
        fields.must_be("run", &index.run, &self.run)?;
        let expected = self.ranks[index.rank].bytes;
        let found = index.data_bytes();
        fields.must_be("bytes of tensor data", found.unwrap_or(u64::MAX), expected)
    }

    /// The key of a file that a rank wrote.
    pub(crate) fn rank_key(&self, name: &CheckpointName, rank: usize, file: &str) -> String {
        format!("{}/{file}", rank_folder(name, rank, self.ranks_per_folder))
    }
}

/// Name of the file that rejects the files of a rank.
pub(crate) fn rejected_rank_file(rank: usize) -> String {
    format!("r{rank:05}{REJECTED_RANK}")
}

/// The rank that a file of this name rejects.
pub(crate) fn rejected_rank(file: &str) -> Option<usize> {
    file.strip_suffix(REJECTED_RANK)?.strip_prefix('r')?.parse().ok()
}

/// The key of the sub-folder of a rank.
pub(crate) fn rank_folder(name: &CheckpointName, rank: usize, ranks_per_folder: usize) -> String {
    name.key(&format!("d{:02}", rank / ranks_per_folder.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    const NAME: &str = "s000000010-a0002-0000000c";

    fn manifest() -> Manifest {
        let rank = |bytes| RankEntry { index: Digest::default(), bytes };
        Manifest {
            format: crate::format::FORMAT,
            run: "run-1".to_owned(),
            workload: "workload-1".to_owned(),
            checkpoint: NAME.to_owned(),
            step: 10,
            attempt: 2,
            parent: Some("s000000005-a0001-0000000b".to_owned()),
            software: "0.1.0".to_owned(),
            world: 2,
            ranks_per_folder: 64,
            bytes: 48,
            ranks: vec![rank(24), rank(24)],
            state: Value::Null,
        }
    }

    fn index() -> Index {
        Index {
            format: crate::format::FORMAT,
            run: "run-1".to_owned(),
            checkpoint: NAME.to_owned(),
            rank: 1,
            files: Vec::new(),
        }
    }

    #[track_caller]
    fn expect_damage(checked: Result<()>, field: &str) {
        match checked.expect_err(field) {
            Error::Damaged { expected, .. } => {
                assert!(expected.starts_with(&format!("{field} = ")), "{field}: {expected}");
            }
            other => panic!("{other}"),
        }
    }

    type Forgery = (&'static str, fn(&mut Manifest));

    const FORGERIES: [Forgery; 14] = [
        ("checkpoint", |it| it.checkpoint = "s000000010-a0002-0000000d".to_owned()),
        ("step", |it| it.step = 11),
        ("attempt", |it| it.attempt = 3),
        ("parent", |it| it.parent = Some("../s000000005-a0001-0000000b".to_owned())),
        ("parent", |it| it.parent = Some(String::new())),
        ("world", |it| {
            it.world = 0;
            it.ranks.clear();
            it.bytes = 0;
        }),
        ("entries of ranks", |it| it.world = usize::MAX),
        ("entries of ranks", |it| it.world = 1),
        ("entries of ranks", |it| drop(it.ranks.pop())),
        ("ranks_per_folder", |it| it.ranks_per_folder = 0),
        ("bytes", |it| it.bytes = 47),
        ("bytes", |it| it.ranks[0].bytes = 23),
        ("bytes", |it| it.ranks[0].bytes = u64::MAX),
        ("bytes", |it| {
            it.ranks[0].bytes = u64::MAX;
            it.bytes = 23; // the sum without the carry
        }),
    ];

    #[test]
    fn every_forged_field_is_named() {
        let name = NAME.parse().unwrap();
        manifest().check(Path::new("x"), &name).unwrap();
        for (field, forge) in FORGERIES {
            let mut manifest = manifest();
            forge(&mut manifest);
            expect_damage(manifest.check(Path::new("x"), &name), field);
        }
    }

    #[test]
    fn an_index_is_of_the_run_and_of_the_size_that_the_manifest_names() {
        let manifest = manifest();
        let path = Path::new("x");
        expect_damage(manifest.check_index(path, &index()), "bytes of tensor data");
        let stranger = Index { run: "run-2".to_owned(), ..index() };
        expect_damage(manifest.check_index(path, &stranger), "run");
    }
}
