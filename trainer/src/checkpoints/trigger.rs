//! Why a checkpoint is saved, and how any part of a rank asks for one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Why a checkpoint is saved. Where there are several reasons, the last one of them counts.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Trigger {
    /// A tier's interval has passed.
    Cadence = 1,
    /// The node is not healthy, and may be lost soon.
    Health,
    /// SIGUSR1.
    Signal,
    /// Training ends.
    End,
    /// A stop was requested.
    Stop,
}

impl Trigger {
    const ALL: [Self; 5] = [Self::Cadence, Self::Health, Self::Signal, Self::End, Self::Stop];

    /// The number that ranks send each other; 0 for none.
    pub(crate) fn code(trigger: Option<Self>) -> u8 {
        trigger.map_or(0, |trigger| trigger as u8)
    }

    /// What a number stands for.
    pub(crate) fn of_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|trigger| *trigger as u8 == code)
    }
}

/// Asks for a checkpoint on all tiers after the current step, from any thread of any one rank;
/// clones share their state.
#[derive(Debug, Clone, Default)]
pub(crate) struct SaveTrigger(Arc<AtomicU8>);

impl SaveTrigger {
    /// Asks for one. Several requests before the end of the step are one.
    pub(crate) fn request(&self, why: Trigger) {
        self.0.fetch_max(why as u8, Ordering::Relaxed);
    }

    /// What was requested since the last call.
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

    #[test]
    fn a_reason_has_its_number() {
        for trigger in Trigger::ALL.map(Some).into_iter().chain([None]) {
            assert_eq!(Trigger::of_code(Trigger::code(trigger)), trigger);
        }
    }
}
