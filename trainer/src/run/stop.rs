//! When and why an attempt ends without a failure.

/// When to stop.
#[derive(Debug, Clone, Copy)]
pub(super) struct StopConditions {
    /// The last step of the run.
    pub(super) last_step: u64,
    /// Loss to stop at: the held-out loss if the run evaluates, else that of each step.
    pub(super) target_loss: Option<f64>,
}

/// Why an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopReason {
    /// All steps are done.
    LastStep,
    /// The target loss is reached.
    TargetLoss,
    /// A stop was requested.
    Requested,
}
