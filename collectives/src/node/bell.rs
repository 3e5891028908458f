//! Sleeping until another process rings.

use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

use rustix::thread::futex;

/// Wakes one sleeping thread, of this process or of another that maps the same memory. All zeros
/// is a bell that nobody rang. On a cache line pair of its own.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(crate) struct Bell {
    rings: AtomicU32,
    asleep: AtomicU32,
}

impl Bell {
    /// Wakes the sleeper, if there is one. Costs a fence and a load where nobody sleeps.
    ///
    /// Whoever rings has stored first what the sleeper is to find.
    pub(crate) fn ring(&self) {
        // Pairs with the fence in `sleep_unless`: either the sleeper sees what was stored before
        // this, or we see that it sleeps.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Acquire) != 0 {
            self.rings.fetch_add(1, Ordering::Release);
            // Without the "private" flag, because the sleeper may be another process. Nothing can
            // be done about an error, and the memory being there, there is none.
            let _ = futex::wake(&self.rings, futex::Flags::empty(), 1);
        }
    }

    /// Sleeps until somebody rings, at most for a while, unless `found` says that there is
    /// something to do. Only one thread sleeps on a bell. May wake for no reason.
    pub(crate) fn sleep_unless(&self, at_most: Option<Duration>, found: impl FnOnce() -> bool) {
        let seen = self.rings.load(Ordering::Acquire);
        // Release: a ring that saw us asleep is not yet in `seen`.
        self.asleep.store(1, Ordering::Release);
        fence(Ordering::SeqCst);
        if !found() {
            let at_most = at_most.and_then(|at_most| futex::Timespec::try_from(at_most).ok());
            // Every outcome (rung, too late, interrupted) means: look again.
            let _ = futex::wait(&self.rings, futex::Flags::empty(), seen, at_most.as_ref());
        }
        self.asleep.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Instant;

    use super::*;

    /// Two threads count to many in turn, and sleep whenever it is not their turn: a single ring
    /// that is lost would leave both asleep.
    #[test]
    fn no_ring_is_lost() {
        const TURNS: usize = 20_000;
        let bells = [Bell::default(), Bell::default()];
        let count = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for me in 0..2 {
                let (bells, count) = (&bells, &count);
                scope.spawn(move || {
                    for turn in (me..TURNS).step_by(2) {
                        let is_ours = || count.load(Ordering::Acquire) == turn;
                        while !is_ours() {
                            let start = Instant::now();
                            bells[me].sleep_unless(Some(Duration::from_secs(20)), is_ours);
                            assert!(start.elapsed() < Duration::from_secs(19), "turn {turn}");
                        }
                        count.store(turn + 1, Ordering::Release);
                        bells[1 - me].ring();
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), TURNS);
    }

    #[test]
    fn a_sleep_ends_by_itself() {
        let start = Instant::now();
        Bell::default().sleep_unless(Some(Duration::from_millis(20)), || false);
        assert!(start.elapsed() >= Duration::from_millis(20));
        Bell::default().sleep_unless(None, || true);
    }
}
