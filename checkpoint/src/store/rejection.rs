//! Copies in which a restore has found damage: they count no more, until somebody reinstates them.

use super::{Status, Store};
use crate::error::Result;
use crate::format::index::{index_file, rejected_index_file};
use crate::format::limits::INDEX_BYTES_MAX;
use crate::format::manifest::{MANIFEST, REJECTED, TOMBSTONE};
use crate::format::name::CheckpointName;
use crate::tier::Scope;

impl Store {
    /// Rejects the files of these ranks, or of all. The whole checkpoint is rejected with them,
    /// unless it is on the disk of a node that has files of other ranks too: these may be the only
    /// intact ones.
    pub(crate) fn reject(&self, name: &CheckpointName, damaged: Option<&[usize]>) -> Result<()> {
        let damaged = damaged.filter(|_| self.scope() == Scope::Node);
        let manifest = damaged.and_then(|_| self.manifest(name).ok());
        let here = manifest.as_ref().and_then(|manifest| self.ranks_here(name, manifest).ok());
        let is_damaged = |rank: &usize| damaged.is_some_and(|damaged| damaged.contains(rank));
        let (bad, good): (Vec<_>, Vec<_>) =
            here.unwrap_or_default().into_iter().partition(is_damaged);
        let Some(manifest) = manifest.filter(|_| !good.is_empty()) else {
            return self.rename_manifest(name, MANIFEST, REJECTED);
        };
        for rank in bad {
            let key = |file: &str| manifest.rank_key(name, rank, file);
            self.move_index(&key(&index_file(rank)), &key(&rejected_index_file(rank)))?;
        }
        Ok(())
    }

    /// Makes what a restore has rejected on this tier count again: a checkpoint, or the files of
    /// some ranks of it. For one in which [`Store::verify`] finds no problem: what was damaged may
    /// have been its way to the reader.
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`](crate::Error::NoCheckpoint) when nothing of this name is rejected here, or retention is removing
    /// it; [`Error::Io`](crate::Error::Io) when the tier fails.
    pub fn reinstate(&self, checkpoint: &str) -> Result<()> {
        let name = self.parse_name(checkpoint)?;
        let status = self.status(&name);
        if status == Status::Rejected {
            self.reinstate_manifest(&name)?;
        } else if !matches!(status, Status::Committed { .. }) {
            return Err(self.no_checkpoint(checkpoint));
        }
        let manifest = self.manifest(&name)?;
        let ranks = self.rejected_ranks(&name, &manifest)?;
        if ranks.is_empty() && status != Status::Rejected {
            return Err(self.no_checkpoint(checkpoint));
        }
        for rank in ranks {
            let key = |file: &str| manifest.rank_key(&name, rank, file);
            self.move_index(&key(&rejected_index_file(rank)), &key(&index_file(rank)))?;
        }
        Ok(())
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

    /// Renames an index, damaged or not, durably. A crash in between leaves both files. Another
    /// rank of the node may do it at the same time.
    fn move_index(&self, from: &str, to: &str) -> Result<()> {
        let bytes = match self.read_damaged(from, INDEX_BYTES_MAX) {
            Err(error) if error.is_absence() => return Ok(()),
            read => read?,
        };
        self.tier().publish(to, &bytes, &mut || {})?;
        Ok(self.tier().delete(from)?)
    }
}
