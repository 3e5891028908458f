//! Removal of the files that failed saves, interrupted removals and dead attempts leave in a
//! folder.
//!
//! All of it is best effort: removal of what stays is tried again before the next save.

use std::sync::{MutexGuard, PoisonError};

use crate::error::Result;
use crate::fencing::parse_claim;
use crate::format::manifest::MANIFEST;
use crate::format::name::CheckpointName;
use crate::store::{Status, Store};

impl Store {
    /// Removes uncommitted checkpoints of earlier attempts and of this process, and what
    /// interrupted removals left.
    pub(crate) fn remove_leftovers(&self, attempt: u64) {
        if self.retention_is_stopped() {
            return; // without even listing the folder: a last save waits for this
        }
        let mut begun = std::mem::take(&mut *self.begun());
        for name in self.scan().unwrap_or_default() {
            if self.retention_is_stopped() {
                break;
            }
            match self.status(&name) {
                Status::Uncommitted if self.is_held(&name) => {}
                Status::Uncommitted if name.attempt < attempt || begun.contains(&name) => {
                    drop(self.discard(&name));
                }
                Status::Deleted if name.attempt <= attempt => {
                    drop(self.finish_removal(&name));
                }
                _ => {}
            }
        }
        if !begun.is_empty()
            && let Ok(left) = self.scan()
        {
            begun.retain(|name| left.contains(name) && !self.was_committed(name));
        }
        self.begun().extend(begun);
    }

    /// Checkpoints that this process began to save or to remove, and that may be left uncommitted.
    pub(crate) fn begun(&self) -> MutexGuard<'_, Vec<CheckpointName>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn was_committed(&self, name: &CheckpointName) -> bool {
        matches!(self.status(name), Status::Committed { .. } | Status::Rejected)
    }

    /// Removes the temporary files and the claims of earlier attempts. Only after a gather that
    /// follows opening the store on all ranks, as that writes such files.
    pub(super) fn remove_stale_files(&self, attempt: u64) {
        for entry in self.tier().list("").unwrap_or_default() {
            if self.retention_is_stopped() {
                return;
            }
            if !entry.is_folder && is_stale(&entry.name, attempt) {
                drop(self.tier().delete(&entry.name));
            }
        }
        self.remove_older_claims(attempt);
    }

    /// Removes a checkpoint that must not count, even if its manifest may have been linked.
    pub(crate) fn discard(&self, name: &CheckpointName) -> Result<()> {
        // Durably first: data must not be gone while the manifest may reappear after a power
        // failure.
        self.tier().delete(&name.key(MANIFEST))?;
        Ok(self.tier().delete_folder(&name.to_string(), MANIFEST)?)
    }
}

/// Returns whether a file is a temporary one that no process uses any more: `RUN.<tag>.tmp`, or
/// `ATTEMPT-NNNN.<tag>.tmp` of an attempt before this one.
fn is_stale(name: &str, attempt: u64) -> bool {
    let Some(stem) = name.strip_suffix(".tmp") else { return false };
    let Some((stem, tag)) = stem.split_once('.') else { return false };
    let is_hexadecimal = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_tag = tag.len() == 8 && tag.bytes().all(is_hexadecimal);
    is_tag && (stem == "RUN" || parse_claim(stem).is_some_and(|found| found < attempt))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_temporary_files_are_stale() {
        for stale in ["RUN.0000000a.tmp", "ATTEMPT-0001.0000000a.tmp"] {
            assert!(is_stale(stale, 2), "{stale}");
        }
        let foreign = ["LATEST", "LATEST.bak", "RUN.json", "RUN.0000000a", "ATTEMPT-0001", "x.tmp"];
        let in_use = ["ATTEMPT-0002.0000000a.tmp", "LATEST.tmp"];
        for name in foreign.iter().chain(&in_use) {
            assert!(!is_stale(name, 2), "{name}");
        }
    }
}
