//! Conditions and reasons for which an attempt ends without a failure.

use super::options::RunOptions;
use record::TargetLoss;

/// Conditions to stop.
#[derive(Debug, Clone, Copy)]
pub(super) struct StopConditions {
    /// Last step of the run.
    pub(super) last_step: u64,
    /// Step that is likely the last one, for measurements that are spread over the run.
    pub(super) likely_last: u64,
    /// Loss to stop at.
    pub(super) target_loss: Option<TargetLoss>,
    /// True if the restored steps have reached the target loss.
    pub(super) is_target_reached: bool,
}

/// Returns the target of this start of the run, if it has one.
pub(super) fn target_loss(options: &RunOptions) -> Option<TargetLoss> {
    let is_held_out = options.eval_every.is_some();
    options.target_loss.map(|nats| TargetLoss { nats, is_held_out })
}

/// Reason why an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopReason {
    /// All steps are done.
    LastStep,
    /// Target loss is reached.
    TargetLoss,
    /// The wanted number of steady steps is measured.
    Measured,
    /// Stop was requested.
    Requested,
}

impl StopReason {
    /// Returns whether the run is complete.
    pub(super) fn is_end(self) -> bool {
        matches!(self, Self::LastStep | Self::TargetLoss | Self::Measured)
    }
}
