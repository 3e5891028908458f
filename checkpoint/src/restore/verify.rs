//! Reading a checkpoint only to see whether it is intact.

use std::time::Instant;

use super::open_checkpoint::OpenCheckpoint;
use super::shard_reader::ShardReader;
use crate::error::{Error, Result};
use crate::format::index::ShardEntry;
use crate::format::manifest::{MANIFEST, REJECTED};
use crate::format::name::CheckpointName;
use crate::store::{Status, Store};

/// Report of a verification.
#[derive(Debug)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Name of the checkpoint.
    pub checkpoint: String,
    /// Shard files read.
    pub files: usize,
    /// Chunks whose digests are right.
    pub chunks: usize,
    /// Bytes in them.
    pub bytes: u64,
    /// Problems, the first one of each file; empty when the checkpoint is intact.
    pub problems: Vec<Error>,
    /// Reads that arrived damaged and were right when repeated: each is worth a warning.
    pub warnings: Vec<String>,
    /// Set if an earlier restore has rejected it here, or the files of some ranks of it: see
    /// [`Store::reinstate`].
    pub is_rejected: bool,
}

impl Store {
    /// Reads all of a checkpoint and checks every digest, and that each element has one owner. On a
    /// tier of node scope, all that is on this node. Also of one that a restore has rejected.
    ///
    /// Not collective. Damage is not an error of this function: see [`VerifyReport::problems`].
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`] when there is none of this name, [`Error::Io`] when the tier cannot
    /// be listed.
    pub fn verify(&self, checkpoint: &str) -> Result<VerifyReport> {
        let name = self.parse_name(checkpoint)?;
        if !self.scan()?.contains(&name) {
            return Err(self.no_checkpoint(checkpoint));
        }
        let mut report = VerifyReport {
            checkpoint: checkpoint.to_owned(),
            files: 0,
            chunks: 0,
            bytes: 0,
            problems: Vec::new(),
            warnings: Vec::new(),
            is_rejected: self.status(&name) == Status::Rejected,
        };
        if let Err(problem) = report.check(self, &name) {
            report.problems.push(problem);
        }
        report.warnings = self.take_read_warnings();
        Ok(report)
    }
}

impl VerifyReport {
    /// Reads metadata, then data where the metadata is right.
    ///
    /// # Errors
    /// The problem without which nothing else can be checked.
    fn check(&mut self, store: &Store, name: &CheckpointName) -> Result<()> {
        let file = if self.is_rejected { REJECTED } else { MANIFEST };
        let manifest = store.read_manifest(name, file)?.value;
        let rejected = store.rejected_ranks(name)?;
        self.is_rejected |= !rejected.is_empty();
        let mut indexes = Vec::new();
        for rank in store.ranks_here(name, &manifest)?.into_iter().chain(rejected) {
            match store.index(name, &manifest, rank) {
                Ok(index) => indexes.push(index),
                Err(error) => self.problems.push(error),
            }
        }
        if self.problems.is_empty() {
            self.check_files(&OpenCheckpoint { store, name, manifest: &manifest, indexes });
        }
        Ok(())
    }

    fn check_files(&mut self, checkpoint: &OpenCheckpoint<'_>) {
        let until = Instant::now();
        for index in &checkpoint.indexes {
            for shard in &index.files {
                self.files += 1;
                let reader = checkpoint.reader(checkpoint.store, index.rank, shard, until);
                let checked = reader.and_then(|reader| self.check_chunks(&reader, shard));
                self.problems.extend(checked.err());
            }
        }
        let conflict = checkpoint.check_ownership().err();
        self.problems.extend(conflict.map(|conflict| conflict.error));
    }

    fn check_chunks(&mut self, reader: &ShardReader<'_>, shard: &ShardEntry) -> Result<()> {
        let mut buffer = Vec::new();
        for chunk in 0..shard.chunk_crc64.len() as u64 {
            reader.read_chunk(chunk, &mut buffer)?;
            self.chunks += 1;
            self.bytes += buffer.len() as u64;
        }
        Ok(())
    }
}
