//! Reading a checkpoint only to see whether it is whole.

use std::time::Duration;

use crate::restore::Opened;
use crate::{Error, Result, Store};

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
    /// Everything that is wrong, the first problem of each file; empty when all is well.
    pub problems: Vec<Error>,
}

impl Store {
    /// Reads all of a checkpoint and checks every digest, and that no tensor has a gap.
    ///
    /// Not collective. Damage is not an error of this function: see [`VerifyReport::problems`].
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`] when there is none of this name.
    pub fn verify(&self, checkpoint: &str) -> Result<VerifyReport> {
        let name = self.parse_name(checkpoint)?;
        if !self.folder(&name).exists() {
            let (root, rejected) = (self.folder(&name), Vec::new());
            return Err(Error::NoCheckpoint { root, rejected });
        }
        let mut report = VerifyReport {
            checkpoint: checkpoint.to_owned(),
            files: 0,
            chunks: 0,
            bytes: 0,
            problems: Vec::new(),
        };
        let manifest = match self.manifest(&name) {
            Ok((manifest, _)) => manifest,
            Err(error) => {
                report.problems.push(error);
                return Ok(report);
            }
        };
        let mut indexes = Vec::new();
        for rank in 0..manifest.world {
            match self.read_index(&name, &manifest, rank) {
                Ok(index) => indexes.push(index),
                Err(error) => report.problems.push(error),
            }
        }
        if report.problems.is_empty() {
            let patience = Duration::ZERO;
            let opened =
                Opened { store: self, name: &name, manifest: &manifest, indexes, patience };
            report.check_files(&opened);
        }
        Ok(report)
    }
}

impl VerifyReport {
    fn check_files(&mut self, opened: &Opened<'_>) {
        let mut buffer = Vec::new();
        for (rank, index) in opened.indexes.iter().enumerate() {
            for shard in &index.files {
                self.files += 1;
                let checked = opened.reader(rank, shard).and_then(|reader| {
                    for chunk in 0..shard.chunk_crc64.len() as u64 {
                        reader.read_chunk(chunk, &mut buffer)?;
                        self.chunks += 1;
                        self.bytes += buffer.len() as u64;
                    }
                    Ok(())
                });
                self.problems.extend(checked.err());
            }
            self.problems.extend(opened.rank_state(rank).err());
        }
        self.problems.extend(opened.check_coverage().err());
    }
}
