//! Calls that may wait for ever, as those of storage that hangs.

use std::sync::mpsc;
use std::time::Duration;

use device::threads;

/// What a call returns, on a thread of its own; `None` where it takes longer.
///
/// # Errors
/// When there is no thread.
pub fn within<T: Send + 'static>(
    limit: Duration,
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<Option<T>, threads::Error> {
    let (sender, receiver) = mpsc::channel();
    // Nobody listens any more where it took too long.
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
