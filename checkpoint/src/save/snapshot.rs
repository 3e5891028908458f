//! Copy of a rank's state while training continues: nothing may change it until the copy ends.

use std::fmt::Debug;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::staging::Copier;

/// State that does not change until it is dropped.
pub trait Frozen: Debug + Send {
    /// Size of a box, bytes, by its position among the boxes that the rank saves.
    fn size_bytes(&self, index: usize) -> usize;

    /// Copies bytes of a box, from `start` on.
    ///
    /// # Errors
    /// Those of a device that has them.
    fn read(&mut self, index: usize, start: usize, bytes: &mut [u8]) -> io::Result<()>;
}

/// The copy of a state, which may still be in progress.
#[derive(Debug, Clone)]
pub struct Snapshot(Arc<Progress>);

/// Progress of a copy, shared by its thread and those that wait for it.
#[derive(Debug, Default)]
pub(super) struct Progress {
    state: Mutex<CopyState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct CopyState {
    has_ended: bool,
    is_aborted: bool,
    /// Reason why the copy ended early.
    failure: Option<io::Error>,
}

impl Snapshot {
    pub(super) fn new() -> Self {
        Self(Arc::default())
    }

    /// Ends the copy soon: what it would still copy is not needed.
    pub(super) fn abort(&self) {
        self.0.lock().is_aborted = true;
    }

    /// Tells that there is nothing to copy.
    pub(super) fn end(&self) {
        drop(EndOfCopy(&self.0));
    }

    /// Waits until the copy has ended, so that the state may change. At the deadline the copy is
    /// aborted, which fails the save, and the state may change as well.
    pub fn wait(&self, deadline: Instant) {
        let mut state = self.0.lock();
        while !state.has_ended {
            let left = deadline.saturating_duration_since(Instant::now());
            state.is_aborted |= left.is_zero();
            state = if state.is_aborted {
                // The copier looks often: this wait is short.
                self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
            } else {
                let waited = self.0.changed.wait_timeout(state, left);
                waited.unwrap_or_else(PoisonError::into_inner).0
            };
        }
    }

    /// Returns whether the copy has ended.
    pub fn has_ended(&self) -> bool {
        self.0.lock().has_ended
    }

    /// Copies a state, in the order of `boxes`, and drops it.
    pub(super) fn copy(&self, state: Box<dyn Frozen>, boxes: &[usize], mut copier: Copier<'_>) {
        // Also after a panic, so that nobody waits for ever.
        let _end = EndOfCopy(&self.0);
        let mut state = state; // dropped before the end is reported
        for &index in boxes {
            match copier.copy(&mut *state, index, &self.0) {
                Ok(true) => {}
                Ok(false) => break,
                Err(failure) => {
                    self.0.lock().failure = Some(failure);
                    break;
                }
            }
        }
    }

    /// Takes the error of the copy, if it has failed.
    pub(super) fn take_failure(&self) -> Option<io::Error> {
        self.0.lock().failure.take()
    }
}

/// Tells that the copy has ended.
struct EndOfCopy<'a>(&'a Progress);

impl Drop for EndOfCopy<'_> {
    fn drop(&mut self) {
        self.0.lock().has_ended = true;
        self.0.changed.notify_all();
    }
}

impl Progress {
    pub(super) fn is_aborted(&self) -> bool {
        self.lock().is_aborted
    }

    fn lock(&self) -> MutexGuard<'_, CopyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
