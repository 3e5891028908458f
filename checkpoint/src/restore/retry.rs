//! Waiting for files that are not visible yet.

use std::time::{Duration, Instant};

use crate::error::Result;

const PAUSE_MIN: Duration = Duration::from_millis(20);

/// Reads again, for the last time at `until`, while a file does not exist that a manifest names:
/// this machine's view of a shared file system may lag behind the commit. Files that are read one
/// after the other wait until the same moment, so that many take no longer than one.
pub(crate) fn retry_while_absent<T>(until: Instant, read: impl Fn() -> Result<T>) -> Result<T> {
    let mut pause = PAUSE_MIN;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match read() {
            Err(error) if error.is_absence() && !left.is_zero() => {
                std::thread::sleep(pause.min(left));
                pause *= 2;
            }
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::io::{self, ErrorKind};
    use std::path::Path;

    use super::*;
    use record::files::IoError;

    /// Reads an absent file, and returns when it was read.
    fn reads(until: Instant) -> Vec<Instant> {
        let reads = RefCell::new(Vec::new());
        let read = || -> Result<()> {
            reads.borrow_mut().push(Instant::now());
            let absent = io::Error::from(ErrorKind::NotFound);
            Err(IoError::at(Path::new("x"), "read")(absent).into())
        };
        retry_while_absent(until, read).unwrap_err();
        reads.into_inner()
    }

    #[test]
    fn the_last_read_is_at_the_deadline() {
        let until = Instant::now() + Duration::from_millis(70);
        let reads = reads(until);
        // This thread may lose its core between a read and its time.
        let late = reads.iter().filter(|read| **read >= until).count();
        assert!((1..=2).contains(&late), "{reads:?} until {until:?}");
    }

    #[test]
    fn after_the_deadline_a_file_is_read_once() {
        assert_eq!(reads(Instant::now()).len(), 1);
    }
}
