//! Waits for conditions of a job.

use std::time::{Duration, Instant};

/// Interval between checks.
const INTERVAL: Duration = Duration::from_millis(20);

/// Waits until the condition holds; after the limit the test fails with this message.
#[track_caller]
pub(crate) fn wait_until(
    limit: Duration,
    is_so: impl Fn() -> bool,
    otherwise: impl FnOnce() -> String,
) {
    let deadline = Instant::now() + limit;
    while !is_so() {
        if Instant::now() > deadline {
            panic!("{}", otherwise());
        }
        std::thread::sleep(INTERVAL);
    }
}
