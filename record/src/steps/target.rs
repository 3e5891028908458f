//! The loss of `--target-loss`.

use std::fmt;

/// Target loss to stop at.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TargetLoss {
    /// Loss in nats per token.
    pub nats: f64,
    /// True for a held-out loss, as the run evaluates; false for the loss of a step.
    pub is_held_out: bool,
}

impl fmt::Display for TargetLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let loss = if self.is_held_out { "the held-out loss" } else { "the loss of a step" };
        write!(f, "{loss} is at most {}", self.nats)
    }
}

impl TargetLoss {
    /// Returns whether a step reaches the target, given its loss and the held-out loss if that was
    /// evaluated.
    pub fn is_reached(self, loss: f64, evaluation_loss: Option<f64>) -> bool {
        let loss = if self.is_held_out { evaluation_loss } else { Some(loss) };
        loss.is_some_and(|loss| loss <= self.nats)
    }
}
