//! Time limits for calls that may block for ever, as with hung storage.

use std::sync::mpsc;
use std::time::Duration;

use device::threads;

/// Runs a call on a thread of its own and returns its result; `None` if it takes longer than
/// `limit`.
///
/// # Errors
/// If the thread cannot be started.
pub fn within<T: Send + 'static>(
    limit: Duration,
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<Option<T>, threads::Error> {
    let (sender, receiver) = mpsc::channel();
    // Nobody receives the result after the limit.
    threads::spawn("time-limit", move || drop(sender.send(call())))?;
    Ok(receiver.recv_timeout(limit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_does_not_return_is_given_up() {
        let (_sender, waits) = mpsc::channel::<()>();
        assert_eq!(within(Duration::from_millis(20), move || waits.recv()).unwrap(), None);
        assert_eq!(within(Duration::from_secs(20), || 7).unwrap(), Some(7));
    }
}
