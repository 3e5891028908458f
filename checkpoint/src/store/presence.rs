//! Presence of a checkpoint on a tier, by names of files alone.

use std::time::SystemTime;

use super::Store;
use crate::error::Result;
use crate::format::manifest::MANIFEST;

/// Presence of a committed checkpoint on a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Presence {
    /// Number of ranks that saved it and have files here: all, or on a tier of node scope those of
    /// this node.
    pub ranks: usize,
    /// Time at which it was committed here, by the tier's clock.
    pub committed: SystemTime,
    /// Set if it is pinned, so that retention leaves it.
    pub is_pinned: bool,
}

impl Store {
    /// Returns the presence of a committed checkpoint here.
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`](crate::Error::NoCheckpoint) when it is not the name of a checkpoint,
    /// and errors of reading its manifest.
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
