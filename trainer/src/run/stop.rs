//! When and why an attempt ends without a failure.

use super::options::RunOptions;
use crate::record::{StepSample, StepSeries, TargetLoss, TargetRecord};

/// When to stop.
#[derive(Debug, Clone, Copy)]
pub(super) struct StopConditions {
    /// The last step of the run.
    pub(super) last_step: u64,
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

impl TargetRecord {
    /// Whether and when the steps have reached the target.
    pub(super) fn of(target: TargetLoss, series: &StepSeries) -> Self {
        let reached = series.reached();
        Self {
            nats: target.nats,
            held_out: target.is_held_out,
            step: reached.map(|reached| reached.step),
            seconds: reached.map(|reached| reached.seconds),
        }
    }
}

/// Counts the measured steps of an attempt, on rank 0: other ranks do not know the step times that
/// the record is of, and learn from its vote that the next step is the last.
#[derive(Debug)]
pub(super) struct SteadyWatch {
    wanted: u64,
    series: StepSeries,
}

impl SteadyWatch {
    /// Waits for so many steps.
    pub(super) fn new(wanted: u64, world: usize) -> Self {
        Self { wanted, series: StepSeries::new(world, None) }
    }

    /// Adds the next step.
    pub(super) fn observe(&mut self, sample: &StepSample) {
        self.series.push(sample);
    }

    /// Whether one more step is enough.
    pub(super) fn is_done(&self) -> bool {
        self.series.will_have_measured(self.wanted)
    }
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
