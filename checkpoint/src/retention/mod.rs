//! Retention: removal of old checkpoints, and of the files of dead attempts.
//!
//! A tombstone takes the manifest's place first and durably, so that an interrupted removal leaves
//! nothing that looks committed; it is removed last, so that the rest is recognised as such. A
//! checkpoint counts as kept when its manifest, indexes and file sizes are right and no restore
//! has rejected it. Its data is not read for that: `Store::verify` does. What a promotion still
//! needs stays until it has ended, and what is pinned (`pin.rs`) stays for ever.

mod held;
mod leftovers;
mod pin;
mod plan;

use std::sync::atomic::Ordering::Relaxed;

use crate::error::{Error, Result};
use crate::failpoints::{Failpoint, Failpoints};
use crate::format::manifest::{MANIFEST, Manifest, REJECTED, TOMBSTONE};
use crate::format::name::CheckpointName;
use crate::store::{Status, Store};
use crate::tier::Scope;

pub(crate) use held::Held;
pub use plan::{Removal, RemovalReason};

/// Report of [`Store::apply_retention`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RetentionReport {
    /// Names of the checkpoints that were removed.
    pub removed: Vec<String>,
    /// Files that could not be removed, and checkpoints that were found damaged.
    pub warnings: Vec<String>,
}

impl Store {
    /// Removes what is older than the newest `keep` intact checkpoints (0 keeps all), and what dead
    /// attempts before `attempt` left. Pinned checkpoints stay, and do not count.
    ///
    /// Not collective: for rank 0, or on a tier of node scope for every rank, after a resume or a
    /// save, and not during a save (but see [`Store::stop_retention`]); a thread of its own may do
    /// it. Failures are warnings: the next call tries again.
    pub fn apply_retention(
        &self,
        attempt: u64,
        keep: usize,
        failpoints: &dyn Failpoints,
    ) -> RetentionReport {
        let report = self.remove_old(keep, failpoints);
        self.remove_leftovers(attempt);
        self.remove_stale_files(attempt);
        report
    }

    /// Stops all removals, both by a [`Store::apply_retention`] that is in flight and before a
    /// save: for a last save that must not wait for a slow file system. The next attempt removes
    /// what is left.
    pub fn stop_retention(&self) {
        self.retention_is_stopped.store(true, Relaxed);
    }

    fn retention_is_stopped(&self) -> bool {
        self.retention_is_stopped.load(Relaxed)
    }

    /// The part of [`Store::apply_retention`] that counts what is kept.
    pub(crate) fn remove_old(&self, keep: usize, failpoints: &dyn Failpoints) -> RetentionReport {
        self.for_each_old(keep, |name| self.remove(name, failpoints))
    }

    /// Reports as removed what `remove` returned `true` for, of the checkpoints that are old.
    fn for_each_old(
        &self,
        keep: usize,
        remove: impl Fn(&CheckpointName) -> Result<bool>,
    ) -> RetentionReport {
        let mut report = RetentionReport::default();
        let mut intact = 0;
        for name in self.scan().unwrap_or_default() {
            if self.retention_is_stopped() {
                break;
            }
            if self.is_pinned(&name) {
                continue;
            }
            let is_old = keep > 0 && intact >= keep && !self.is_held(&name);
            match self.status(&name) {
                Status::Committed { .. } | Status::Damaged(_) | Status::Rejected if is_old => {
                    match remove(&name) {
                        Ok(true) => report.removed.push(name.to_string()),
                        Ok(false) => {}
                        // Another rank of the node is removing it, too.
                        Err(_) if self.scope() == Scope::Node && !self.is_committed(&name) => {}
                        Err(error) => report.warnings.push(error.to_string()),
                    }
                }
                // Some of it is damaged: the newest one that is not must stay.
                Status::Committed { .. } if self.has_rejected_ranks(&name) => {}
                Status::Committed { .. } => match self.check_structure(&name) {
                    Ok(()) => intact += 1,
                    Err(error) => report.warnings.push(error.to_string()),
                },
                _ => {}
            }
        }
        report
    }

    /// Removes a checkpoint, unless it is being pinned or removed by another process. Returns
    /// whether it did.
    fn remove(&self, name: &CheckpointName, failpoints: &dyn Failpoints) -> Result<bool> {
        let is_rejected = self.status(name) == Status::Rejected;
        let manifest = if is_rejected { REJECTED } else { MANIFEST };
        match self.copy_manifest(name, manifest, TOMBSTONE) {
            Err(error) if error.is_absence() => return Ok(false), // somebody else removes it
            copied => copied?,
        }
        if self.is_pinned(name) {
            return self.finish_removal(name); // which undoes it
        }
        self.tier().delete(&name.key(manifest))?;
        failpoints.hit(Failpoint::MidRetention);
        let removed = self.finish_removal(name);
        // An empty folder may stay, which looks like that of a save.
        removed.inspect_err(|_| self.begun().push(name.clone()))
    }

    /// Checks that all files exist that the manifest names; on a tier of node scope those of the
    /// ranks that have left an index on this node.
    fn check_structure(&self, name: &CheckpointName) -> Result<()> {
        let manifest = self.manifest(name)?;
        let ranks = self.ranks_here(name, &manifest)?;
        if ranks.is_empty() {
            let path = self.tier().path(&name.to_string());
            return Err(Error::damaged(&path, 0, "files of a rank of this node", "none"));
        }
        self.check_files(name, &manifest, ranks)
    }

    /// Checks that all files of these ranks exist that the manifest names, by digests of indexes
    /// and by sizes.
    pub(crate) fn check_files(
        &self,
        name: &CheckpointName,
        manifest: &Manifest,
        ranks: impl IntoIterator<Item = usize>,
    ) -> Result<()> {
        for rank in ranks {
            let index = self.index(name, manifest, rank)?;
            for entry in &index.files {
                let key = manifest.rank_key(name, rank, &entry.file);
                let found = self.tier().open(&key)?.size_bytes();
                if found != entry.bytes {
                    let path = self.tier().path(&key);
                    return Err(Error::damaged_size(&path, entry.bytes, found));
                }
            }
        }
        Ok(())
    }
}
