//! How often to look whether messages came, when ranks share cores with computation.

use std::time::{Duration, Instant};

/// From here on no longer looked for at every chance.
const EAGER: Duration = Duration::from_micros(50);
const PAUSE_FIRST: Duration = Duration::from_micros(10);
/// Short, because MPI moves a message in many pieces only while it is called.
const PAUSE_LAST: Duration = Duration::from_micros(50);

/// What to do before the next look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// Let others run, and look again.
    Yield,
    /// Sleep this long, unless something is submitted meanwhile.
    Sleep(Duration),
}

/// Growing pauses since something last happened.
#[derive(Debug)]
pub(super) struct Pause {
    since: Instant,
    next: Duration,
}

impl Pause {
    pub(super) fn new() -> Self {
        Self { since: Instant::now(), next: PAUSE_FIRST }
    }

    /// Something happened: look eagerly again.
    pub(super) fn reset(&mut self) {
        *self = Self::new();
    }

    /// Nothing happened.
    pub(super) fn rest(&mut self) -> Rest {
        if self.since.elapsed() < EAGER {
            return Rest::Yield;
        }
        let pause = self.next;
        self.next = (pause * 2).min(PAUSE_LAST);
        Rest::Sleep(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_and_start_again() {
        let mut pause = Pause::new();
        assert_eq!(pause.rest(), Rest::Yield);
        std::thread::sleep(EAGER);
        let pauses: Vec<Rest> = (0..5).map(|_| pause.rest()).collect();
        let micros = |n| Rest::Sleep(Duration::from_micros(n));
        assert_eq!(pauses, [micros(10), micros(20), micros(40), micros(50), micros(50)]);
        pause.reset();
        assert_eq!(pause.rest(), Rest::Yield);
    }
}
