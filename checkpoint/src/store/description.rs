//! Description of a checkpoint for people: its manifest and indexes without digests.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::Value;

use super::Store;
use crate::error::Result;

/// Content of a checkpoint's manifest.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Description {
    /// Name of the checkpoint.
    pub checkpoint: String,
    /// Steps done.
    pub step: u64,
    /// Attempt of the run that wrote it.
    pub attempt: u64,
    /// The checkpoint that its state descends from; `None` for a run's first one.
    pub parent: Option<String>,
    /// Run id.
    pub run: String,
    /// Workload id.
    pub workload: String,
    /// Version of the software that wrote it.
    pub software: String,
    /// Ranks that wrote it.
    pub world: usize,
    /// Bytes of tensor data of all ranks.
    pub bytes: u64,
    /// The caller's state that does not depend on the world.
    pub state: Value,
}

/// Content of those files of a checkpoint that are here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Contents {
    /// Ranks whose files they are.
    pub ranks: usize,
    /// Tensors of which there is something.
    pub tensors: usize,
    /// Names of the shard files, within the checkpoint's folder, and their sizes.
    pub files: Vec<FileSize>,
}

/// A file of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileSize {
    /// Name of the file.
    pub file: String,
    /// Size of the file.
    pub bytes: u64,
}

impl Store {
    /// Describes a committed checkpoint by its manifest.
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`](crate::Error::NoCheckpoint) when it is not the name of a checkpoint,
    /// and errors of reading its manifest.
    pub fn describe(&self, checkpoint: &str) -> Result<Description> {
        let manifest = self.manifest(&self.parse_name(checkpoint)?)?;
        Ok(Description {
            checkpoint: manifest.checkpoint,
            step: manifest.step,
            attempt: manifest.attempt,
            parent: manifest.parent,
            run: manifest.run,
            workload: manifest.workload,
            software: manifest.software,
            world: manifest.world,
            bytes: manifest.bytes,
            state: manifest.state,
        })
    }

    /// Returns the content of those indexes of a committed checkpoint that are here.
    ///
    /// # Errors
    /// Those of [`Store::describe`], and errors of reading an index.
    pub fn contents(&self, checkpoint: &str) -> Result<Contents> {
        let name = self.parse_name(checkpoint)?;
        let manifest = self.manifest(&name)?;
        let ranks = self.ranks_here(&name, &manifest)?;
        let mut tensors = BTreeSet::new();
        let mut files = Vec::new();
        for &rank in &ranks {
            for shard in self.index(&name, &manifest, rank)?.files {
                let key = manifest.rank_key(&name, rank, &shard.file);
                let file = key[checkpoint.len() + 1..].to_owned();
                files.push(FileSize { file, bytes: shard.bytes });
                tensors.extend(shard.boxes.into_iter().map(|entry| entry.tensor.name));
            }
        }
        Ok(Contents { ranks: ranks.len(), tensors: tensors.len(), files })
    }
}
