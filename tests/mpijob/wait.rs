//! Waits for conditions of a job.

use std::time::{Duration, Instant};

/// Longest time of anything, on a machine that does other things as well.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// Interval between checks.
const INTERVAL: Duration = Duration::from_millis(20);

/// Waits until the condition holds; after [`LIMIT`] the test fails with this message.
#[track_caller]
pub(crate) fn wait_until(is_so: impl Fn() -> bool, otherwise: impl FnOnce() -> String) {
    let deadline = Instant::now() + LIMIT;
    while !is_so() {
        if Instant::now() > deadline {
            panic!("{}", otherwise());
        }
        std::thread::sleep(INTERVAL);
    }
}
