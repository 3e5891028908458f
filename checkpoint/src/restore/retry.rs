//! Waiting for files that are not visible yet.

use std::time::{Duration, Instant};

use crate::error::Result;

/// Reads again while a file does not exist that a manifest names: this machine's view of a shared
/// file system may lag behind the commit.
pub(crate) fn retry_while_absent<T>(timeout: Duration, read: impl Fn() -> Result<T>) -> Result<T> {
    let deadline = Instant::now() + timeout;
    let mut pause = Duration::from_millis(20);
    loop {
        match read() {
            Err(error) if error.is_absence() && Instant::now() + pause < deadline => {
                std::thread::sleep(pause);
                pause *= 2;
            }
            outcome => return outcome,
        }
    }
}
