//! Waits for asynchronous changes of a cluster.

use std::time::{Duration, Instant};

/// Asks until there is an answer; fails the test after so many seconds.
#[track_caller]
pub(crate) fn within<T>(seconds: u64, what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(start.elapsed() < Duration::from_secs(seconds), "{what}: not within {seconds} s");
        std::thread::sleep(Duration::from_millis(200));
    }
}
