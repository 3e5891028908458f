//! Copies in which a restore has found damage: they count no more, until somebody reinstates them.

use std::collections::BTreeSet;

use super::{Status, Store};
use crate::error::Result;
use crate::format::manifest::{MANIFEST, REJECTED, TOMBSTONE, rejected_rank_file};
use crate::format::name::CheckpointName;

impl Store {
    /// Rejects the files of these ranks, and the whole checkpoint if that leaves none here; or all
    /// of it at once. The files of others may be the only intact ones. Ranks of a node may do it at
    /// once; a late one gets an [absence](crate::Error::is_absence).
    pub(crate) fn reject(
        &self,
        name: &CheckpointName,
        damaged: Option<&BTreeSet<usize>>,
    ) -> Result<()> {
        let manifest = match damaged.map(|_| self.manifest(name)) {
            Some(Err(error)) if !error.is_damage() => return Err(error),
            manifest => manifest.and_then(Result::ok),
        };
        if let Some((manifest, damaged)) = manifest.zip(damaged) {
            for rank in damaged {
                self.reject_rank(name, *rank)?;
            }
            if !self.ranks_here(name, &manifest)?.is_empty() {
                return Ok(());
            }
        }
        self.rename_manifest(name, MANIFEST, REJECTED)
    }

    /// Rejects the files of one rank.
    pub(crate) fn reject_rank(&self, name: &CheckpointName, rank: usize) -> Result<()> {
        self.tier().publish(&name.key(&rejected_rank_file(rank)), b"", &mut || {})?;
        Ok(())
    }

    /// Makes what a restore has rejected on this tier count again: a checkpoint, or the files of
    /// some ranks of it. For one in which [`Store::verify`] finds no problem: what was damaged may
    /// have been its way to the reader.
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`](crate::Error::NoCheckpoint) when nothing of this name is rejected
    /// here, or retention is removing it; [`Error::Io`](crate::Error::Io) when the tier fails.
    pub fn reinstate(&self, checkpoint: &str) -> Result<()> {
        let name = self.parse_name(checkpoint)?;
        let is_rejected = match self.status(&name) {
            Status::Rejected => true,
            Status::Committed { .. } => false,
            _ => return Err(self.no_checkpoint(checkpoint)),
        };
        if !self.reinstate_ranks(&name)? && !is_rejected {
            return Err(self.no_checkpoint(checkpoint));
        }
        if is_rejected { self.reinstate_manifest(&name) } else { Ok(()) }
    }

    /// Returns whether the files of some ranks are rejected here, or may be.
    pub(crate) fn has_rejected_ranks(&self, name: &CheckpointName) -> bool {
        self.rejected_ranks(name).map_or(true, |ranks| !ranks.is_empty())
    }

    /// Makes the files of rejected ranks count again; whether there were any.
    pub(crate) fn reinstate_ranks(&self, name: &CheckpointName) -> Result<bool> {
        let ranks = self.rejected_ranks(name)?;
        for rank in &ranks {
            self.tier().delete(&name.key(&rejected_rank_file(*rank)))?;
        }
        Ok(!ranks.is_empty())
    }

    fn reinstate_manifest(&self, name: &CheckpointName) -> Result<()> {
        self.copy_manifest(name, REJECTED, MANIFEST)?;
        // Who removes it writes the tombstone first and deletes all manifests after that.
        if self.tier().exists(&name.key(TOMBSTONE))? {
            self.tier().delete(&name.key(MANIFEST))?;
            return Err(self.no_checkpoint(&name.to_string()));
        }
        Ok(self.tier().delete(&name.key(REJECTED))?)
    }
}
