//! The `[sdc]` section: checks for silent data corruption.

use record::CorruptionAction;
use serde::{Deserialize, Serialize};

/// The `[sdc]` section.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CorruptionConfig {
    /// Steps between comparisons of ranks that hold the same weights and moments; 0 for none, also
    /// before saves.
    pub every_steps: u64,
    /// Steps between those in which each rank also computes the gradients of another one; 0 for
    /// none, and no self-test at the start.
    pub recompute_every_steps: u64,
    /// Effect of gradients that are right when they are computed again: the run goes on with those,
    /// or ends.
    pub action: CorruptionAction,
}

impl Default for CorruptionConfig {
    fn default() -> Self {
        Self { every_steps: 10, recompute_every_steps: 100, action: CorruptionAction::Repeat }
    }
}
