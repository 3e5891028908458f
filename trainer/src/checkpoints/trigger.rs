//! Requests for checkpoints, from any part of a rank.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use record::Trigger;

/// Asks for a checkpoint on all tiers after the current step, from any thread of any one rank;
/// clones share their state.
#[derive(Debug, Clone, Default)]
pub(crate) struct SaveTrigger(Arc<AtomicU8>);

impl SaveTrigger {
    /// Requests a checkpoint. Several requests before the end of the step count as one.
    pub(crate) fn request(&self, why: Trigger) {
        self.0.fetch_max(why as u8, Ordering::Relaxed);
    }

    /// Takes the request made since the last call.
    pub(crate) fn take(&self) -> Option<Trigger> {
        Trigger::of_code(self.0.swap(0, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_taken_once_and_the_strongest_counts() {
        let trigger = SaveTrigger::default();
        assert_eq!(trigger.take(), None);
        let clone = trigger.clone();
        clone.request(Trigger::Signal);
        clone.request(Trigger::Health);
        assert_eq!((trigger.take(), trigger.take()), (Some(Trigger::Signal), None));
    }
}
