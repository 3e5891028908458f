//! State that the thread of a route shares with those who submit and watch.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::RouteStatus;
use crate::format::name::CheckpointName;
use crate::retention::Held;

/// State of a route.
#[derive(Debug, Default)]
pub(super) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Checkpoint that an earlier attempt saved, and the saved ranks whose files are copied here.
    assigned: Option<Assigned>,
    /// The newest that was submitted and is not begun.
    waiting: Option<Held>,
    /// Checkpoint that was begun last, until it is released.
    current: Option<Held>,
    status: RouteStatus,
    has_succeeded: bool,
    is_stopped: bool,
}

#[derive(Debug)]
struct Assigned {
    checkpoint: CheckpointName,
    saved_ranks: Vec<usize>,
}

impl Shared {
    pub(super) fn new(tier: &str) -> Self {
        let shared = Self::default();
        shared.update(|status| tier.clone_into(&mut status.tier));
        shared
    }

    /// Notes whose files of a restored checkpoint are copied here.
    pub(super) fn assign(&self, checkpoint: CheckpointName, saved_ranks: Vec<usize>) {
        self.lock().assigned = Some(Assigned { checkpoint, saved_ranks });
    }

    /// Returns the saved ranks whose files are copied here, of a checkpoint that an earlier attempt
    /// saved.
    pub(super) fn assigned(&self, checkpoint: &CheckpointName) -> Option<Vec<usize>> {
        let state = self.lock();
        let assigned = state.assigned.as_ref().filter(|it| it.checkpoint == *checkpoint)?;
        Some(assigned.saved_ranks.clone())
    }

    /// Puts a checkpoint into the place of an older one that waits. Where rank 0 chooses, the older
    /// one is `dropped`.
    pub(super) fn submit(&self, submitted: Held, is_leader: bool) {
        let mut state = self.lock();
        let waits = state.waiting.as_ref().map(|held| held.name().clone());
        if waits.as_ref() == Some(submitted.name()) {
            return;
        }
        if waits.is_some() && is_leader {
            state.status.dropped += 1;
        }
        if waits.as_ref() < Some(submitted.name()) {
            state.waiting = Some(submitted);
        }
        self.changed.notify_all();
    }

    /// Waits for a checkpoint to be submitted; `None` when the route is stopped.
    pub(super) fn await_submission(&self) -> Option<CheckpointName> {
        let idle = |state: &mut State| state.waiting.is_none() && !state.is_stopped;
        let state = self.changed.wait_while(self.lock(), idle);
        let state = state.unwrap_or_else(PoisonError::into_inner);
        if state.is_stopped { None } else { state.waiting.as_ref().map(|held| held.name().clone()) }
    }

    /// Begins with a checkpoint. What waits and is not newer waits no more.
    pub(super) fn begin(&self, held: Held) {
        let mut state = self.lock();
        state.status.in_progress = Some(held.name().to_string());
        state.waiting.take_if(|waiting| waiting.name() <= held.name());
        state.current = Some(held);
    }

    /// Lets retention remove what was begun last.
    pub(super) fn release(&self) {
        self.lock().current = None;
    }

    /// Ends what was begun.
    pub(super) fn end(&self) {
        self.lock().status.in_progress = None;
        self.changed.notify_all();
    }

    /// Drops a waiting checkpoint, unless a newer one has been submitted.
    pub(super) fn stop_waiting(&self, name: &CheckpointName) {
        self.lock().waiting.take_if(|waiting| waiting.name() <= name);
        self.changed.notify_all();
    }

    pub(super) fn has_waiting(&self) -> bool {
        self.lock().waiting.is_some()
    }

    pub(super) fn status(&self) -> RouteStatus {
        self.lock().status.clone()
    }

    pub(super) fn is_failing(&self) -> bool {
        self.lock().status.is_failing
    }

    pub(super) fn has_succeeded(&self) -> bool {
        self.lock().has_succeeded
    }

    /// Notes that the route works.
    pub(super) fn succeeded(&self) {
        let mut state = self.lock();
        state.status.is_failing = false;
        state.has_succeeded = true;
    }

    pub(super) fn update(&self, change: impl FnOnce(&mut RouteStatus)) {
        change(&mut self.lock().status);
    }

    /// Notes that the route does not work at present.
    pub(super) fn failed(&self, error: &impl ToString) {
        self.update(|status| {
            status.failures += 1;
            status.is_failing = true;
            status.last_error = Some(error.to_string());
        });
    }

    pub(super) fn stop(&self) {
        self.lock().is_stopped = true;
        self.changed.notify_all();
    }

    /// Waits for so long; `false` at once when the route is stopped.
    #[must_use]
    pub(super) fn pause(&self, duration: Duration) -> bool {
        let running = |state: &mut State| !state.is_stopped;
        let waited = self.changed.wait_timeout_while(self.lock(), duration, running);
        !waited.unwrap_or_else(PoisonError::into_inner).0.is_stopped
    }

    /// Waits until nothing is left to do; whether that is so at the deadline.
    pub(super) fn await_idle(&self, deadline: Instant) -> bool {
        let busy =
            |state: &mut State| state.waiting.is_some() || state.status.in_progress.is_some();
        let left = deadline.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout_while(self.lock(), left, busy);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Pauses that double.
#[derive(Debug)]
pub(super) struct Pauses {
    next: Duration,
    max: Duration,
}

impl Pauses {
    pub(super) fn new(min: Duration, max: Duration) -> Self {
        Self { next: min, max }
    }

    pub(super) fn next(&mut self) -> Duration {
        let pause = self.next.min(self.max);
        self.next = pause * 2;
        pause
    }
}
