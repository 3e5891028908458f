//! Reading a checkpoint only to see whether it is intact.

use std::time::Duration;

use super::open_checkpoint::OpenCheckpoint;
use crate::error::{Error, Result};
use crate::store::Store;

/// What a verification read and found.
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
    /// What is wrong, the first problem of each file; empty when the checkpoint is intact.
    pub problems: Vec<Error>,
}

impl Store {
    /// Reads all of a checkpoint and checks every digest, and that each element has one
    /// owner. On a tier of node scope, all that is on this node.
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
        };
        let manifest = match self.manifest(&name) {
            Ok(manifest) => manifest,
            Err(error) => {
                report.problems.push(error);
                return Ok(report);
            }
        };
        let mut indexes = Vec::new();
        let ranks = self.ranks_here(&name, &manifest).unwrap_or_else(|error| {
            report.problems.push(error);
            Vec::new()
        });
        for rank in ranks {
            match self.index(&name, &manifest, rank) {
                Ok(index) => indexes.push(index),
                Err(error) => report.problems.push(error),
            }
        }
        if report.problems.is_empty() {
            report.check_files(&OpenCheckpoint {
                store: self,
                name: &name,
                manifest: &manifest,
                indexes,
            });
        }
        Ok(report)
    }
}

impl VerifyReport {
    fn check_files(&mut self, checkpoint: &OpenCheckpoint<'_>) {
        let mut buffer = Vec::new();
        for index in &checkpoint.indexes {
            for shard in &index.files {
                self.files += 1;
                let store = checkpoint.store;
                let checked = checkpoint.reader(store, index.rank, shard, Duration::ZERO).and_then(
                    |reader| {
                        for chunk in 0..shard.chunk_crc64.len() as u64 {
                            reader.read_chunk(chunk, &mut buffer)?;
                            self.chunks += 1;
                            self.bytes += buffer.len() as u64;
                        }
                        Ok(())
                    },
                );
                self.problems.extend(checked.err());
            }
        }
        let conflict = checkpoint.check_ownership().err();
        self.problems.extend(conflict.map(|conflict| conflict.error));
    }
}
