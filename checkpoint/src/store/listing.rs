//! Checkpoints of a tier, and their states.

use super::{Identity, Store};
use crate::error::Result;
use crate::format::manifest::{MANIFEST, REJECTED, TOMBSTONE};
use crate::format::name::CheckpointName;
use crate::tier::{Scope, Tier};

/// State of a checkpoint's folder.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// It has a valid manifest. Only [`Store::verify`] can find out whether its data is intact.
    Committed {
        /// Ranks that wrote it.
        world: usize,
        /// Bytes of tensor data.
        bytes: u64,
    },
    /// Its save was interrupted, or is in flight.
    Uncommitted,
    /// Its removal was interrupted.
    Deleted,
    /// Its manifest is damaged; the reason.
    Damaged(String),
    /// [`Store::resume`] found its data damaged and restored an older one. It does not count, and
    /// is removed when it is old. Its manifest is called `MANIFEST.rejected`;
    /// [`Store::reinstate`] undoes that.
    Rejected,
    /// Its manifest is of another run, workload or format, or cannot be read now; the reason.
    Refused(String),
}

/// Checkpoint in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Name of its folder, which [`Store::restore`] and [`Store::verify`] take.
    pub name: String,
    /// Steps done.
    pub step: u64,
    /// Attempt of the run that wrote it.
    pub attempt: u64,
    /// State of the checkpoint.
    pub status: Status,
}

impl Store {
    /// Lists all checkpoints by name, newest first: later attempts before earlier ones, then later
    /// steps before earlier ones. Foreign files are left out.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) when the tier cannot be listed.
    pub fn list(&self) -> Result<Vec<Listed>> {
        let list = |name: CheckpointName| Listed {
            name: name.to_string(),
            step: name.step,
            attempt: name.attempt,
            status: self.status(&name),
        };
        Ok(self.scan()?.into_iter().map(list).collect())
    }

    /// The newest committed checkpoint; on a shared tier of those of which all files count.
    ///
    /// # Errors
    /// As [`Store::list`].
    pub fn newest(&self) -> Result<Option<Listed>> {
        let is_committed = |listed: &&Listed| matches!(listed.status, Status::Committed { .. });
        loop {
            let listed = self.list()?;
            for newest in listed.iter().filter(is_committed) {
                let name = self.parse_name(&newest.name)?;
                if self.scope() == Scope::Node || !self.has_rejected_ranks(&name) {
                    return Ok(Some(newest.clone()));
                }
            }
            // A run may have committed another one and removed the last one that was listed.
            if self.list()? == listed {
                return Ok(None);
            }
        }
    }

    /// Returns whether a committed checkpoint of this name exists, damaged or not.
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`](crate::Error::NoCheckpoint) when it is not the name of a checkpoint.
    pub fn holds(&self, checkpoint: &str) -> Result<bool> {
        Ok(self.is_committed(&self.parse_name(checkpoint)?))
    }

    /// Returns whether a restore has rejected the checkpoint of this name here.
    ///
    /// # Errors
    /// As [`Store::holds`].
    pub fn is_rejected(&self, checkpoint: &str) -> Result<bool> {
        Ok(self.status(&self.parse_name(checkpoint)?) == Status::Rejected)
    }

    /// Names of all folders that are checkpoints by name, newest first.
    pub(crate) fn scan(&self) -> Result<Vec<CheckpointName>> {
        scan(self.tier())
    }

    /// Returns whether a checkpoint was committed and its removal has not begun.
    pub(crate) fn is_committed(&self, name: &CheckpointName) -> bool {
        is_committed(self.tier(), name)
    }

    pub(crate) fn status(&self, name: &CheckpointName) -> Status {
        let tier = self.tier();
        if has(tier, name, TOMBSTONE) {
            return Status::Deleted;
        }
        if !has_manifest(tier, name) {
            let is_rejected = has(tier, name, REJECTED);
            return if is_rejected { Status::Rejected } else { Status::Uncommitted };
        }
        match self.manifest(name) {
            Ok(manifest) => Status::Committed { world: manifest.world, bytes: manifest.bytes },
            Err(error) if error.is_damage() => Status::Damaged(error.to_string()),
            Err(error) => Status::Refused(error.to_string()),
        }
    }
}

/// Returns whether a tier holds a checkpoint that was committed, damaged or not: one that
/// [`Store::resume`] restores or refuses, but does not ignore. Changes nothing. A folder that does
/// not exist holds none.
///
/// # Errors
/// [`Error::UnsupportedFormat`](crate::Error::UnsupportedFormat) or
/// [`Error::Damaged`](crate::Error::Damaged) when its `RUN.json` says so, and
/// [`Error::Io`](crate::Error::Io) when the tier cannot be read.
pub fn holds_any(tier: &dyn Tier) -> Result<bool> {
    Identity::read(tier)?; // names of another format would be taken for foreign files
    let is_rejected = |name| has(tier, name, REJECTED) && !has(tier, name, TOMBSTONE);
    Ok(scan(tier)?.iter().any(|name| is_committed(tier, name) || is_rejected(name)))
}

fn scan(tier: &dyn Tier) -> Result<Vec<CheckpointName>> {
    let folders = tier.list("")?.into_iter().filter(|entry| entry.is_folder);
    let mut names: Vec<CheckpointName> =
        folders.filter_map(|folder| folder.name.parse().ok()).collect();
    names.sort_by(|a, b| b.cmp(a));
    Ok(names)
}

fn is_committed(tier: &dyn Tier, name: &CheckpointName) -> bool {
    has_manifest(tier, name) && !has(tier, name, TOMBSTONE)
}

/// Returns whether a checkpoint has a manifest. If the tier cannot answer, it counts as present: it
/// is then read, and the failure is reported.
fn has_manifest(tier: &dyn Tier, name: &CheckpointName) -> bool {
    tier.exists(&name.key(MANIFEST)).unwrap_or(true)
}

fn has(tier: &dyn Tier, name: &CheckpointName, file: &str) -> bool {
    tier.exists(&name.key(file)).unwrap_or(false)
}
