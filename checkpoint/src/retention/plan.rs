//! Plan of the removals that retention would make, for a process that is not part of the run.

use crate::error::Result;
use crate::failpoints::NoFailpoints;
use crate::store::{Status, Store};

/// Checkpoint that is not needed any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removal {
    /// Name of the checkpoint.
    pub checkpoint: String,
    /// Bytes of its tensor data, where it has a manifest.
    pub bytes: Option<u64>,
    /// Reason why it is not needed.
    pub reason: RemovalReason,
}

/// Reason why a checkpoint is not needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemovalReason {
    /// Enough newer checkpoints are intact.
    Old,
    /// An earlier attempt has not committed it, and never will; a newer one is committed here.
    Abandoned,
    /// Its removal was interrupted.
    HalfRemoved,
    /// It is not committed, and has uploads in parts that are not completed. Only these are
    /// removed.
    OpenUploads,
}

impl Store {
    /// Lists the removals of a retention that keeps `keep` checkpoints (0 keeps all), newest first;
    /// changes nothing. `attempt` is the newest of the run: of its uncommitted checkpoints only
    /// open uploads are listed, as it may still be writing them.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) when the tier cannot be listed.
    pub fn plan_retention(&self, attempt: u64, keep: usize) -> Result<Vec<Removal>> {
        let old = self.for_each_old(keep, |_| Ok(true)).removed;
        let mut removals = Vec::new();
        let mut has_newer = false;
        for name in self.scan()? {
            let status = self.status(&name);
            let checkpoint = name.to_string();
            let bytes = match status {
                Status::Committed { bytes, .. } => Some(bytes),
                _ => None,
            };
            let reason = match status {
                _ if old.contains(&checkpoint) => Some(RemovalReason::Old),
                Status::Uncommitted if has_newer && name.attempt < attempt => {
                    Some(RemovalReason::Abandoned)
                }
                Status::Uncommitted if self.tier().count_open_uploads(&checkpoint)? > 0 => {
                    Some(RemovalReason::OpenUploads)
                }
                Status::Deleted => Some(RemovalReason::HalfRemoved),
                _ => None,
            };
            has_newer |= bytes.is_some();
            removals.extend(reason.map(|reason| Removal { checkpoint, bytes, reason }));
        }
        Ok(removals)
    }

    /// Removes what [`Store::plan_retention`] has named, if it is still in that state; whether it
    /// did. No attempt of the run may start meanwhile.
    ///
    /// # Errors
    /// When something cannot be removed; what stays is found again.
    pub fn remove_planned(&self, removal: &Removal) -> Result<bool> {
        let name = self.parse_name(&removal.checkpoint)?;
        let status = self.status(&name);
        match removal.reason {
            RemovalReason::Old if self.is_pinned(&name) => Ok(false),
            RemovalReason::Old => match status {
                Status::Committed { .. } | Status::Damaged(_) | Status::Rejected => {
                    self.remove(&name, &NoFailpoints)
                }
                _ => Ok(false),
            },
            RemovalReason::Abandoned if status == Status::Uncommitted => {
                self.discard(&name).map(|()| true)
            }
            RemovalReason::OpenUploads if status == Status::Uncommitted => {
                self.tier().abort_open_uploads(&removal.checkpoint)?;
                Ok(true)
            }
            RemovalReason::HalfRemoved if status == Status::Deleted => self.finish_removal(&name),
            _ => Ok(false),
        }
    }
}
