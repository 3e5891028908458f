//! Which checkpoints a folder contains, and in which state they are.

use std::fs;
use std::path::Path;

use super::{Identity, Store};
use crate::error::{Error, Result};
use crate::format::manifest::{MANIFEST, REJECTED, TOMBSTONE};
use crate::format::name::CheckpointName;

/// State of a checkpoint's folder.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// It has a valid manifest. Whether its data is intact, only [`Store::verify`] can tell.
    Committed {
        /// Ranks that wrote it.
        world: usize,
        /// Bytes of tensor data.
        bytes: u64,
    },
    /// A save that was interrupted, or is in flight.
    Uncommitted,
    /// Its removal was interrupted.
    Deleted,
    /// Its manifest is damaged; the reason.
    Damaged(String),
    /// [`Store::resume`] found its data damaged and restored an older one. It does not count, and
    /// is removed when it is old. Its manifest is called `MANIFEST.rejected`.
    Rejected,
    /// Its manifest is of another run, workload or format, or cannot be read now; the reason.
    Refused(String),
}

/// One checkpoint in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Name of its folder, which [`Store::restore`] and [`Store::verify`] take.
    pub name: String,
    /// Steps done.
    pub step: u64,
    /// Attempt of the run that wrote it.
    pub attempt: u64,
    /// What state it is in.
    pub status: Status,
}

impl Store {
    /// Everything that is a checkpoint by name, newest first: later attempts before earlier ones,
    /// then later steps before earlier ones. Foreign files are left out.
    ///
    /// # Errors
    /// [`Error::Io`] when the folder cannot be read.
    pub fn list(&self) -> Result<Vec<Listed>> {
        let list = |name: CheckpointName| Listed {
            name: name.to_string(),
            step: name.step,
            attempt: name.attempt,
            status: self.status(&name),
        };
        Ok(self.scan()?.into_iter().map(list).collect())
    }

    /// The newest committed checkpoint.
    ///
    /// # Errors
    /// As [`Store::list`].
    pub fn newest(&self) -> Result<Option<Listed>> {
        let is_committed = |listed: &&Listed| matches!(listed.status, Status::Committed { .. });
        loop {
            let listed = self.list()?;
            if let Some(newest) = listed.iter().find(is_committed) {
                return Ok(Some(newest.clone()));
            }
            // A run may have committed another one and removed the last one that was listed.
            if self.list()? == listed {
                return Ok(None);
            }
        }
    }

    /// Whether a committed checkpoint of this name exists, damaged or not.
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`] when it is not the name of a checkpoint.
    pub fn holds(&self, checkpoint: &str) -> Result<bool> {
        Ok(is_committed(&self.folder(&self.parse_name(checkpoint)?)))
    }

    /// Names of all folders that are checkpoints by name, newest first.
    pub(crate) fn scan(&self) -> Result<Vec<CheckpointName>> {
        scan(self.root())
    }

    pub(crate) fn status(&self, name: &CheckpointName) -> Status {
        let folder = self.folder(name);
        if folder.join(TOMBSTONE).exists() {
            return Status::Deleted;
        }
        if !has_manifest(&folder) {
            return if is_rejected(&folder) { Status::Rejected } else { Status::Uncommitted };
        }
        match self.manifest(name) {
            Ok(manifest) => Status::Committed { world: manifest.world, bytes: manifest.bytes },
            Err(error) if error.is_damage() => Status::Damaged(error.to_string()),
            Err(error) => Status::Refused(error.to_string()),
        }
    }
}

/// Whether a folder holds a checkpoint that was committed, damaged or not: one that
/// [`Store::resume`] restores or refuses, but does not ignore. Changes nothing. A folder that does
/// not exist holds none.
///
/// # Errors
/// [`Error::UnsupportedFormat`] or [`Error::Damaged`] when its `RUN.json` says so, and
/// [`Error::Io`] when the folder cannot be read.
pub fn holds_any(root: &Path) -> Result<bool> {
    if !root.try_exists().map_err(Error::io(root, "stat"))? {
        return Ok(false);
    }
    Identity::read(root)?; // names of another format would be taken for foreign files
    let mut folders = scan(root)?.into_iter().map(|name| root.join(name.to_string()));
    Ok(folders.any(|folder| is_committed(&folder) || is_rejected(&folder)))
}

fn scan(root: &Path) -> Result<Vec<CheckpointName>> {
    let mut names: Vec<CheckpointName> = Vec::new();
    for entry in fs::read_dir(root).map_err(Error::io(root, "list"))? {
        let entry = entry.map_err(Error::io(root, "list"))?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            names.extend(entry.file_name().to_str().and_then(|text| text.parse().ok()));
        }
    }
    names.sort_by(|a, b| b.cmp(a));
    Ok(names)
}

/// Whether a checkpoint was committed and its removal has not begun.
pub(crate) fn is_committed(folder: &Path) -> bool {
    has_manifest(folder) && !folder.join(TOMBSTONE).exists()
}

/// Whether a checkpoint was committed and then rejected as damaged.
fn is_rejected(folder: &Path) -> bool {
    !folder.join(TOMBSTONE).exists() && folder.join(REJECTED).exists()
}

/// Whether a checkpoint has a manifest. If the system cannot say, it counts as one: it is then
/// read, and what is wrong with it reported.
fn has_manifest(folder: &Path) -> bool {
    folder.join(MANIFEST).try_exists().unwrap_or(true)
}
