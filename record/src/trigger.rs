//! Reasons for which checkpoints are saved.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Reason for which a checkpoint is saved. If there are several reasons, the last one in this order
/// counts.
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

    /// Number that ranks send each other; 0 for none.
    pub fn code(trigger: Option<Self>) -> u8 {
        trigger.map_or(0, |trigger| trigger as u8)
    }

    /// Returns the trigger of a number; `None` for none.
    pub fn of_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|trigger| *trigger as u8 == code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_has_its_number() {
        for trigger in Trigger::ALL.map(Some).into_iter().chain([None]) {
            assert_eq!(Trigger::of_code(Trigger::code(trigger)), trigger);
        }
    }
}
