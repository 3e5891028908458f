//! `PINNED`: marks a checkpoint that retention leaves for ever, and does not count as kept.
//!
//! A process that pins writes the file and then checks for a tombstone; one that removes writes the
//! tombstone and then checks for the file. So at least one of them sees the other, and a checkpoint
//! that was pinned stays. A removal that was killed in between is completed or undone by the next
//! one.

use crate::error::Result;
use crate::format::manifest::{MANIFEST, PINNED, REJECTED, TOMBSTONE};
use crate::format::name::CheckpointName;
use crate::store::{Status, Store};

impl Store {
    /// Protects a committed checkpoint from retention on this tier, or on a tier of node scope the
    /// part of it that is on this node. Again does nothing.
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`](crate::Error::NoCheckpoint) when no committed one of this name is
    /// here, or retention removes it at this moment; [`Error::Io`](crate::Error::Io) when it cannot
    /// be protected.
    pub fn pin(&self, checkpoint: &str) -> Result<()> {
        let name = self.parse_name(checkpoint)?;
        if !self.is_intact(&name) {
            return Err(self.no_checkpoint(checkpoint));
        }
        self.mark_pinned(&name)?;
        if self.is_intact(&name) {
            return Ok(());
        }
        // Whoever removes it may have removed all but this file.
        let left = self.tier().list(checkpoint)?;
        if left.iter().all(|entry| entry.name == PINNED) {
            self.tier().delete_folder(checkpoint, PINNED)?;
        }
        Err(self.no_checkpoint(checkpoint))
    }

    /// Lets retention remove a checkpoint again. One that is not pinned is fine.
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`](crate::Error::NoCheckpoint) when there is none of this name,
    /// [`Error::Io`](crate::Error::Io) when the tier fails.
    pub fn unpin(&self, checkpoint: &str) -> Result<()> {
        let name = self.parse_name(checkpoint)?;
        if !self.scan()?.contains(&name) {
            return Err(self.no_checkpoint(checkpoint));
        }
        Ok(self.tier().delete(&name.key(PINNED))?)
    }

    /// Returns whether retention has to leave a checkpoint, also where the tier cannot answer.
    pub(crate) fn is_pinned(&self, name: &CheckpointName) -> bool {
        self.tier().exists(&name.key(PINNED)).unwrap_or(true)
    }

    /// Pins a checkpoint that may not be committed yet.
    pub(crate) fn mark_pinned(&self, name: &CheckpointName) -> Result<()> {
        Ok(self.tier().replace(&name.key(PINNED), b"")?)
    }

    /// Completes a removal whose tombstone is written; or undoes it, where the checkpoint was
    /// pinned before any of its data was gone. Returns whether it is removed.
    pub(crate) fn finish_removal(&self, name: &CheckpointName) -> Result<bool> {
        let mut is_whole = false;
        for manifest in [MANIFEST, REJECTED] {
            is_whole |= self.tier().exists(&name.key(manifest))?;
        }
        if is_whole && self.is_pinned(name) {
            self.tier().delete(&name.key(TOMBSTONE))?;
            return Ok(false);
        }
        for manifest in [MANIFEST, REJECTED] {
            self.tier().delete(&name.key(manifest))?;
        }
        self.tier().delete_folder(&name.to_string(), TOMBSTONE)?;
        Ok(true)
    }

    fn is_intact(&self, name: &CheckpointName) -> bool {
        matches!(self.status(name), Status::Committed { .. })
    }
}
