//! Removing: old checkpoints, and remains of dead attempts.
//!
//! Old ones are removed by [`Store::tidy`], which talks to no rank, so that training need not wait
//! for a slow file system to forget them.
//!
//! The manifest goes first and durably, so that a removal that is cut short leaves nothing that
//! looks committed; its tombstone goes last, so that it is still known for a removal. A checkpoint
//! counts as kept when its manifest, indexes and file sizes are right and no resume has rejected
//! it. Nobody reads its data for that: `Store::verify` does.

use std::fs;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{MutexGuard, PoisonError};

use crate::epoch;
use crate::format::manifest::{MANIFEST, REJECTED, TOMBSTONE};
use crate::name::Name;
use crate::store::Status;
use crate::{Error, Observer, Point, Result, Store, durable};

/// What [`Store::tidy`] did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tidied {
    /// Names of the checkpoints that were removed.
    pub removed: Vec<String>,
    /// What could not be removed, and checkpoints that were found damaged.
    pub warnings: Vec<String>,
}

impl Store {
    /// Removes what is older than the newest `keep` sound checkpoints (0 keeps all), and what dead
    /// attempts before `epoch` left behind.
    ///
    /// For rank 0, after a resume or a save, and not during one (but see [`Store::leave_old`]); a
    /// thread of its own may do it. Failures are warnings: the next call tries again.
    pub fn tidy(&self, epoch: u64, keep: usize, observer: &dyn Observer) -> Tidied {
        let tidied = self.retire(keep, observer);
        self.sweep(epoch);
        self.sweep_root(epoch);
        tidied
    }

    /// From now on nothing that is old is removed, neither by [`Store::tidy`], also one that is at
    /// it, nor before a save: for a last save that must not wait for a slow file system. The next
    /// attempt removes it.
    pub fn leave_old(&self) {
        self.leaves_old.store(true, Relaxed);
    }

    fn leaves_old(&self) -> bool {
        self.leaves_old.load(Relaxed)
    }

    fn retire(&self, keep: usize, observer: &dyn Observer) -> Tidied {
        let Tidied { mut removed, mut warnings } = Tidied::default();
        let mut sound = 0;
        for name in self.scan().unwrap_or_default() {
            if self.leaves_old() {
                break;
            }
            let is_old = keep > 0 && sound >= keep;
            match self.status(&name) {
                Status::Committed { .. } | Status::Damaged(_) | Status::Rejected if is_old => {
                    match self.remove(&name, observer) {
                        Ok(()) => removed.push(name.to_string()),
                        Err(error) => warnings.push(error.to_string()),
                    }
                }
                Status::Committed { .. } => match self.check_structure(&name) {
                    Ok(()) => sound += 1,
                    Err(error) => warnings.push(error.to_string()),
                },
                _ => {}
            }
        }
        Tidied { removed, warnings }
    }

    /// Removes what earlier epochs and failed saves of this process left uncommitted, and removals
    /// that were cut short. Best effort: what stays is tried again next time.
    pub(crate) fn sweep(&self, epoch: u64) {
        if self.leaves_old() {
            return; // not even looked through: a last save waits for this
        }
        let mut own = std::mem::take(&mut *self.created());
        for name in self.scan().unwrap_or_default() {
            if self.leaves_old() {
                break;
            }
            match self.status(&name) {
                Status::Uncommitted if name.epoch < epoch || own.contains(&name) => {
                    drop(self.discard(&name));
                }
                Status::Deleted if name.epoch <= epoch => {
                    drop(durable::remove_folder_around(&self.folder(&name), TOMBSTONE));
                }
                _ => {}
            }
        }
        own.retain(|name| self.folder(name).exists() && !self.is_settled(name));
        self.created().extend(own);
    }

    /// Removes temporary files of dead attempts beside the checkpoints, and old epochs. Only after
    /// a gather that follows opening the store on all ranks, as they write such files there.
    fn sweep_root(&self, epoch: u64) {
        for entry in fs::read_dir(self.root()).into_iter().flatten().flatten() {
            if self.leaves_old() {
                return;
            }
            let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
            if is_file && entry.file_name().to_str().is_some_and(|name| is_leftover(name, epoch)) {
                drop(fs::remove_file(entry.path()));
            }
        }
        self.sweep_epochs(epoch);
    }

    /// Attempts of this process that may have left remains.
    pub(crate) fn created(&self) -> MutexGuard<'_, Vec<Name>> {
        self.created.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an attempt was committed, so that it is no remains.
    fn is_settled(&self, name: &Name) -> bool {
        matches!(self.status(name), Status::Committed { .. } | Status::Rejected)
    }

    fn remove(&self, name: &Name, observer: &dyn Observer) -> Result<()> {
        let folder = self.folder(name);
        let is_rejected = self.status(name) == Status::Rejected;
        let manifest = if is_rejected { REJECTED } else { MANIFEST };
        durable::rename(&folder.join(manifest), &folder.join(TOMBSTONE))?;
        durable::sync_folder(&folder)?;
        observer.reached(Point::MidRetention);
        durable::remove_folder_around(&folder, TOMBSTONE)
    }

    /// Removes an attempt that must not count, also when its manifest may have been linked.
    pub(crate) fn discard(&self, name: &Name) -> Result<()> {
        let folder = self.folder(name);
        let manifest = folder.join(MANIFEST);
        match fs::remove_file(&manifest) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::io(&manifest, "unlink")(error));
            }
            _ => {}
        }
        // Data must not be gone while the manifest may come back after a power failure.
        match durable::sync_folder(&folder) {
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(()),
            synced => synced.and_then(|()| durable::remove_folder(&folder)),
        }
    }

    /// Whether everything is there that the manifest names, by digests of indexes and by sizes.
    fn check_structure(&self, name: &Name) -> Result<()> {
        let (manifest, _) = self.manifest(name)?;
        for rank in 0..manifest.world {
            let index = self.read_index(name, &manifest, rank)?;
            for entry in &index.files {
                let path = self.rank_path(name, &manifest, rank).join(&entry.file);
                let found = fs::metadata(&path).map_err(Error::io(&path, "stat"))?.len();
                if found != entry.bytes {
                    let bytes = format!("{} bytes", entry.bytes);
                    return Err(Error::damaged(&path, found.min(entry.bytes), bytes, found));
                }
            }
        }
        Ok(())
    }
}

/// Whether a name beside the checkpoints is of a temporary file that nobody uses any more:
/// `LATEST.<tag>`, with or without `.tmp`, `RUN.<tag>.tmp`, `EPOCH-NNNN.<tag>.tmp` of old epochs.
fn is_leftover(name: &str, epoch: u64) -> bool {
    let (stem, is_temporary) = name.strip_suffix(".tmp").map_or((name, false), |stem| (stem, true));
    let Some((stem, tag)) = stem.split_once('.') else { return false };
    let is_hexadecimal = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_tag = tag.len() == 8 && tag.bytes().all(is_hexadecimal);
    let is_old = || epoch::parse(stem).is_some_and(|found| found < epoch);
    is_tag && (stem == "LATEST" || is_temporary && (stem == "RUN" || is_old()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_temporary_files_are_leftovers() {
        let own = ["LATEST.0000000a", "LATEST.0000000a.tmp", "RUN.0000000a.tmp"];
        let old = ["EPOCH-0001.0000000a.tmp"];
        assert!(own.iter().chain(&old).all(|name| is_leftover(name, 2)));
        let foreign = ["LATEST", "LATEST.bak", "RUN.json", "RUN.0000000a", "EPOCH-0001", "x.tmp"];
        let live = ["EPOCH-0002.0000000a.tmp"];
        assert!(!foreign.iter().chain(&live).any(|name| is_leftover(name, 2)));
    }
}
