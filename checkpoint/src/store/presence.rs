//! How much of a checkpoint a tier has, by names of files alone.

use std::time::SystemTime;

use super::Store;
use crate::error::Result;
use crate::format::manifest::MANIFEST;

/// What a tier has of a committed checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Presence {
    /// Of how many of the ranks that saved it there are files: of all, or on a tier of node scope
    /// of those of this node.
    pub ranks: usize,
    /// When it was committed here, by the tier's clock.
    pub committed: SystemTime,
    /// Whether retention leaves it.
    pub is_pinned: bool,
}

impl Store {
    /// What is here of a committed checkpoint.
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`](crate::Error::NoCheckpoint) when it is not the name of a checkpoint,
    /// and what reading its manifest fails with.
    pub fn presence(&self, checkpoint: &str) -> Result<Presence> {
        let name = self.parse_name(checkpoint)?;
        let manifest = self.manifest(&name)?;
        Ok(Presence {
            ranks: self.ranks_here(&name, &manifest)?.len(),
            committed: self.tier().open(&name.key(MANIFEST))?.modified(),
            is_pinned: self.is_pinned(&name),
        })
    }
}
