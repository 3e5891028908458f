//! The sum of a few consecutive steps.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::sample::StepSample;
use crate::phase::PhaseTimes;

/// Consecutive steps of one attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepBlock {
    /// Attempt that made the steps.
    pub attempt: u32,
    /// Number of the first step.
    pub first_step: u64,
    /// Number of steps.
    pub steps: u64,
    /// Mean training loss in nats per token; `null` if one was not finite.
    pub loss: Option<f64>,
    /// Last held-out loss among the steps, if there was one.
    pub evaluation_loss: Option<f64>,
    /// Mean of the gradient norm before clipping; `null` if one was not finite.
    pub gradient_norm: Option<f64>,
    /// Last norm of the parameters among the steps, if it was computed.
    #[serde(default)]
    pub parameter_norm: Option<f64>,
    /// Last ratio of the norm of an update to that of the parameters, if it was computed.
    #[serde(default)]
    pub update_ratio: Option<f64>,
    /// Largest robust z-score of a loss among the steps; `null` if none has one.
    #[serde(default)]
    pub loss_z_max: Option<f64>,
    /// Sum of the tokens.
    pub tokens: u64,
    /// Sum of the nanoseconds in each phase.
    pub phases_ns: PhaseTimes,
    /// Sum of the nanoseconds in which at least one bucket was in flight.
    pub comm_total_ns: u64,
    /// Part of that sum that was hidden behind computation.
    pub comm_hidden_ns: u64,
    /// Sum of the communicated bytes.
    pub comm_bytes: u64,
    /// One of the steps, chosen without regard to its number: intervals of saves and evaluations
    /// are often powers of two, as blocks are.
    #[serde(skip)]
    pub sampled: Option<SampledStep>,
}

/// Times of one step, for distributions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampledStep {
    step: u64,
    /// Time in each phase.
    pub phases_ns: PhaseTimes,
    /// Time in which at least one bucket was in flight.
    pub comm_total_ns: u64,
    /// Bytes of the buckets reduced and gathered.
    pub comm_bytes: u64,
}

impl StepBlock {
    /// Creates a block of one step.
    pub(super) fn of(sample: &StepSample) -> Self {
        let finite = |value: f64| Some(value).filter(|value| value.is_finite());
        Self {
            attempt: sample.attempt,
            first_step: sample.step,
            steps: 1,
            loss: finite(sample.loss),
            evaluation_loss: sample.evaluation_loss,
            gradient_norm: finite(sample.gradient_norm),
            parameter_norm: sample.parameter_norm,
            update_ratio: sample.update_ratio,
            loss_z_max: sample.loss_z,
            tokens: sample.tokens,
            phases_ns: sample.phases,
            comm_total_ns: sample.comm_total_ns,
            comm_hidden_ns: sample.comm_hidden_ns,
            comm_bytes: sample.comm_bytes,
            sampled: Some(SampledStep {
                step: sample.step,
                phases_ns: sample.phases,
                comm_total_ns: sample.comm_total_ns,
                comm_bytes: sample.comm_bytes,
            }),
        }
    }

    /// Returns whether the next block belongs to the same block of `block_steps` steps.
    pub(super) fn continues(&self, next: &Self, block_steps: u64) -> bool {
        let number = |block: &Self| (block.first_step - 1) / block_steps;
        self.attempt == next.attempt && number(self) == number(next)
    }

    /// Adds the next block.
    pub(super) fn add(&mut self, next: &Self) {
        let mean = |left: Option<f64>, right: Option<f64>| {
            let sum = left? * self.steps as f64 + right? * next.steps as f64;
            Some(sum / (self.steps + next.steps) as f64)
        };
        self.loss = mean(self.loss, next.loss);
        self.gradient_norm = mean(self.gradient_norm, next.gradient_norm);
        self.parameter_norm = next.parameter_norm.or(self.parameter_norm);
        self.update_ratio = next.update_ratio.or(self.update_ratio);
        let z_scores = [self.loss_z_max, next.loss_z_max].into_iter().flatten();
        self.loss_z_max = z_scores.reduce(f64::max);
        self.steps += next.steps;
        self.evaluation_loss = next.evaluation_loss.or(self.evaluation_loss);
        self.tokens += next.tokens;
        self.phases_ns = add_phases(&self.phases_ns, &next.phases_ns);
        self.comm_total_ns += next.comm_total_ns;
        self.comm_hidden_ns += next.comm_hidden_ns;
        self.comm_bytes += next.comm_bytes;
        let random = |sampled: &SampledStep| {
            blake3::hash(&sampled.step.to_le_bytes()).as_bytes().first_chunk::<8>().copied()
        };
        if next.sampled.as_ref().map(random) > self.sampled.as_ref().map(random) {
            self.sampled = next.sampled;
        }
    }

    /// Mean milliseconds of a step, without checkpoints and evaluation.
    pub fn step_ms(&self) -> f64 {
        self.phases_ns.step_ns() as f64 / self.steps as f64 / 1e6
    }

    /// Mean milliseconds of a step in which this rank did not wait for other ranks.
    pub fn own_ms(&self) -> f64 {
        let own_ns = self.phases_ns.step_ns() - self.phases_ns.comm_exposed;
        own_ns as f64 / self.steps as f64 / 1e6
    }
}

pub(super) fn add_phases(left: &PhaseTimes, right: &PhaseTimes) -> PhaseTimes {
    PhaseTimes::from_fn(|phase| left.get(phase) + right.get(phase))
}
