//! An event on which one thread sleeps until another, also of another process, notifies it.

use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

use rustix::thread::futex;

/// An event count on a futex: one thread waits, any thread of this process or of another that maps
/// the same memory notifies. All zeros is its initial state. On a cache line pair of its own.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(crate) struct FutexEvent {
    notifications: AtomicU32,
    is_waiting: AtomicU32,
}

impl FutexEvent {
    /// Wakes the waiting thread, if there is one. Costs a fence and a load where there is none.
    ///
    /// Data that the waiting thread must see has to be stored before this call.
    pub(crate) fn notify(&self) {
        // Pairs with the fence in `wait_unless`: either the waiting thread sees what was stored
        // before this, or we see that it waits.
        fence(Ordering::SeqCst);
        if self.is_waiting.load(Ordering::Acquire) != 0 {
            self.notifications.fetch_add(1, Ordering::Release);
            // Without the "private" flag, because the waiting thread may be of another process. The
            // memory is mapped, so that there is no error.
            let _ = futex::wake(&self.notifications, futex::Flags::empty(), 1);
        }
    }

    /// Sleeps until a notification or the timeout, unless `is_ready` already. Only one thread waits
    /// on an event. May return early without a reason.
    pub(crate) fn wait_unless(&self, timeout: Option<Duration>, is_ready: impl FnOnce() -> bool) {
        let seen = self.notifications.load(Ordering::Acquire);
        // Release: a notification that saw us waiting is not yet in `seen`.
        self.is_waiting.store(1, Ordering::Release);
        fence(Ordering::SeqCst);
        if !is_ready() {
            let timeout = timeout.and_then(|timeout| futex::Timespec::try_from(timeout).ok());
            // The caller checks again after any result (woken, timed out, interrupted).
            let _ = futex::wait(&self.notifications, futex::Flags::empty(), seen, timeout.as_ref());
        }
        self.is_waiting.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Instant;

    use super::*;

    /// Two threads count in turn and sleep in between: a single lost notification would leave both
    /// asleep.
    #[test]
    fn no_notification_is_lost() {
        const TURNS: usize = 20_000;
        let events = [FutexEvent::default(), FutexEvent::default()];
        let count = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for me in 0..2 {
                let events = &events;
                let count = &count;
                scope.spawn(move || {
                    for turn in (me..TURNS).step_by(2) {
                        let is_our_turn = || count.load(Ordering::Acquire) == turn;
                        while !is_our_turn() {
                            let start = Instant::now();
                            events[me].wait_unless(Some(Duration::from_secs(20)), is_our_turn);
                            assert!(start.elapsed() < Duration::from_secs(19), "turn {turn}");
                        }
                        count.store(turn + 1, Ordering::Release);
                        events[1 - me].notify();
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), TURNS);
    }

    #[test]
    fn a_wait_ends_at_its_timeout() {
        let start = Instant::now();
        FutexEvent::default().wait_unless(Some(Duration::from_millis(20)), || false);
        assert!(start.elapsed() >= Duration::from_millis(20));
        FutexEvent::default().wait_unless(None, || true);
    }
}
