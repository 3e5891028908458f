//! Waiting for what a job is about to do.

use std::time::{Duration, Instant};

/// How often one looks.
const INTERVAL: Duration = Duration::from_millis(20);

/// Waits until it is so; after the limit the test fails and says this.
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
