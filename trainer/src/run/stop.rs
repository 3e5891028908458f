//! When and why an attempt ends without a failure.

use super::options::RunOptions;
use record::TargetLoss;

/// When to stop.
#[derive(Debug, Clone, Copy)]
pub(super) struct StopConditions {
    /// The last step of the run.
    pub(super) last_step: u64,
    /// The step that is likely the last one, for measurements that are to be spread over the run.
    pub(super) likely_last: u64,
    /// Loss to stop at.
    pub(super) target_loss: Option<TargetLoss>,
    /// Whether the restored steps have reached that loss.
    pub(super) is_target_reached: bool,
}

/// The target of this start of the run, if it has one.
pub(super) fn target_loss(options: &RunOptions) -> Option<TargetLoss> {
    let is_held_out = options.eval_every.is_some();
    options.target_loss.map(|nats| TargetLoss { nats, is_held_out })
}

/// Why an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopReason {
    /// All steps are done.
    LastStep,
    /// The target loss is reached.
    TargetLoss,
    /// As many steady steps as wanted are measured.
    Measured,
    /// A stop was requested.
    Requested,
}

impl StopReason {
    /// Whether the run is complete.
    pub(super) fn is_end(self) -> bool {
        matches!(self, Self::LastStep | Self::TargetLoss | Self::Measured)
    }
}
