//! When and why an attempt ends without a failure.

use super::options::RunOptions;
use crate::record::{StepSample, StepSeries, TargetRecord};

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

/// The loss of `--target-loss`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct TargetLoss {
    /// Nats per token.
    pub(super) nats: f64,
    /// Whether it is a held-out loss, because the run evaluates, and not the loss of a step.
    pub(super) is_held_out: bool,
}

impl TargetLoss {
    /// The target of this start of the run, if it has one.
    pub(super) fn of(options: &RunOptions) -> Option<Self> {
        let is_held_out = options.eval_every.is_some();
        options.target_loss.map(|nats| Self { nats, is_held_out })
    }

    /// Whether a step reaches it, given its loss and the held-out loss if that was evaluated.
    pub(super) fn is_reached(self, loss: f64, evaluation_loss: Option<f64>) -> bool {
        let loss = if self.is_held_out { evaluation_loss } else { Some(loss) };
        loss.is_some_and(|loss| loss <= self.nats)
    }

    /// The first step that reaches it.
    pub(super) fn first_step<'a>(
        self,
        samples: impl IntoIterator<Item = &'a StepSample>,
    ) -> Option<u64> {
        let reaches = |it: &&StepSample| self.is_reached(it.loss, it.evaluation_loss);
        samples.into_iter().find(reaches).map(|sample| sample.step)
    }

    /// For the record: whether and when the run has reached it.
    pub(super) fn recorded(self, series: &StepSeries) -> TargetRecord {
        let step = self.first_step(&series.samples);
        let seconds = step.map(|step| series.seconds_until(step));
        TargetRecord { nats: self.nats, held_out: self.is_held_out, step, seconds }
    }
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
