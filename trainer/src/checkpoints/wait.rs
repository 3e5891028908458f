//! Waits of a rank for storage: their reports, and the limit that a stop request sets.

use std::time::{Duration, Instant};

/// Longest wait that is not reported.
pub(super) const REPORT_AFTER: Duration = Duration::from_secs(3);

/// Wait at the end of an attempt.
pub(super) struct Wait<'run> {
    started: Instant,
    deadline: Instant,
    /// Limit after a stop request: the scheduler that sent it kills the run soon.
    stop_grace: Duration,
    stop_requested: &'run dyn Fn() -> bool,
    is_stopping: bool,
}

impl<'run> Wait<'run> {
    /// Starts a wait, with its limit without a stop request.
    pub(super) fn start(
        limit: Duration,
        stop_grace: Duration,
        stop_requested: &'run dyn Fn() -> bool,
    ) -> Self {
        let started = Instant::now();
        let deadline = started + limit;
        Self { started, deadline, stop_grace, stop_requested, is_stopping: false }
    }

    /// Returns the time that is left.
    pub(super) fn left(&mut self) -> Duration {
        let now = Instant::now();
        if !self.is_stopping && (self.stop_requested)() {
            self.is_stopping = true;
            self.deadline = self.deadline.min(now + self.stop_grace);
        }
        self.deadline.saturating_duration_since(now)
    }

    /// Returns whether the wait is so long that it is reported.
    pub(super) fn is_long(&self) -> bool {
        self.started.elapsed() >= REPORT_AFTER
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_stop_request_shortens_a_wait_once() {
        let second = Duration::from_secs(1);
        let is_requested = Cell::new(false);
        let stop_requested = || is_requested.get();
        let mut wait = Wait::start(60 * second, 20 * second, &stop_requested);
        assert!(wait.left() > 30 * second);
        is_requested.set(true);
        let left = wait.left();
        assert!(left <= 20 * second);
        std::thread::sleep(Duration::from_millis(2));
        assert!(wait.left() < left);
        assert!(Wait::start(second, 20 * second, &stop_requested).left() <= second);
    }
}
