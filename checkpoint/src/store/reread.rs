//! Repeated reads of data that arrived damaged.
//!
//! A bit may flip in memory, in a cache or on the network, and a server may send too few bytes or
//! those of another range. Data that is damaged in storage stays so.

use std::sync::{MutexGuard, PoisonError};

use super::Store;
use crate::error::{Error, Result};

/// Reads of the same bytes before they count as damaged.
const READS_MAX: usize = 3;
/// Warnings that are kept until somebody takes them: an ill network causes many.
const WARNINGS_MAX: usize = 16;

/// Reads that had to be repeated.
#[derive(Debug, Default)]
pub(super) struct ReadWarnings {
    texts: Vec<String>,
    /// Number of further reads, without a text.
    more: usize,
}

impl Store {
    /// Calls `read`, which reads from the file of this key and checks what arrives, until the check
    /// passes, at most three times. `read` is passed `true` when it has to open the file again.
    pub(crate) fn read_checked<T>(
        &self,
        key: &str,
        mut read: impl FnMut(bool) -> Result<T>,
    ) -> Result<T> {
        let mut reads = 1;
        let mut damage = None;
        loop {
            match read(reads > 1) {
                Err(error) if reads < READS_MAX && error.may_be_transient() => {
                    self.tier().drop_cache(key);
                    damage.get_or_insert(error);
                    reads += 1;
                }
                Err(error) => return Err(error.after_reads(reads)),
                Ok(value) => {
                    if let Some(damage) = damage {
                        self.warn_of_read(&damage, reads);
                    }
                    return Ok(value);
                }
            }
        }
    }

    /// Reads of this process from this tier that arrived damaged and were right when repeated,
    /// since the last call. Each is worth a warning: memory or the network damages data.
    pub fn take_read_warnings(&self) -> Vec<String> {
        let ReadWarnings { mut texts, more } = std::mem::take(&mut *self.read_warnings());
        if more > 0 {
            texts.push(format!("{more} more reads were right only when repeated"));
        }
        texts
    }

    fn warn_of_read(&self, damage: &Error, reads: usize) {
        let mut warnings = self.read_warnings();
        if warnings.texts.len() == WARNINGS_MAX {
            warnings.more += 1;
            return;
        }
        let cause = "memory, a cache or the network damages data";
        warnings.texts.push(format!("{damage}; read {reads} was right: {cause}"));
    }

    fn read_warnings(&self) -> MutexGuard<'_, ReadWarnings> {
        self.read_warnings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
