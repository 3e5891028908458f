//! Detection of loss spikes: losses that stand out from those before them.
//!
//! The residual of a loss is its difference from the median of the eight losses before it. Its
//! robust z-score is the distance of the residual from the median residual of the 128 steps before,
//! in standard deviations estimated from their median absolute deviation. A falling loss, or noise
//! that depends on the previous step, is in all of these residuals alike, so neither needs a model;
//! and a spike among them moves neither median.

use std::collections::VecDeque;

use record::statistics::DEVIATIONS_PER_MAD;

/// Number of losses whose median a loss is compared with.
const BEFORE: usize = 8;
/// Number of residuals that estimate how much losses vary.
const WINDOW: usize = 128;
/// Smallest number of residuals for a z-score.
const WINDOW_LEAST: usize = 64;
/// Smallest standard deviation, as a share of the loss: where losses hardly vary, as with large
/// batches, a change that nobody would call a spike is none.
const DEVIATION_LEAST: f64 = 1e-3;
/// Largest z-score: larger values have no further meaning.
const Z_MAX: f64 = 1e6;
/// Share of the limit: a spike is over when the z-score is below it.
const OVER_SHARE: f64 = 0.5;

/// A loss above its limit, the first of a spike.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossSpike {
    /// The step, from 1.
    pub step: u64,
    /// Loss in nats per token.
    pub loss: f64,
    /// Median of the losses before it.
    pub before: f64,
    /// Robust z-score of the loss.
    pub z_score: f64,
}

impl LossSpike {
    /// Describes the spike in a sentence.
    pub fn text(&self) -> String {
        let Self { step, loss, before, z_score } = self;
        let loss = if *loss < 1e6 { format!("{loss:.4}") } else { format!("{loss:.3e}") };
        format!(
            "the loss spikes in step {step}: {loss} nats per token, and {before:.4} in the steps \
             before (robust z-score {z_score:.0})"
        )
    }
}

/// Result of the watch for a loss.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Observed {
    /// Robust z-score of the loss; `None` in the first steps.
    pub z_score: Option<f64>,
    /// Spike that begins with this loss.
    pub spike: Option<LossSpike>,
}

/// Watch of the last losses of a run. All ranks see the same losses and get the same result.
/// Allocates only on creation.
#[derive(Debug, Clone)]
pub struct LossWatch {
    limit: f64,
    losses: VecDeque<f64>,
    residuals: VecDeque<f64>,
    scratch: Vec<f64>,
    is_in_spike: bool,
}

impl LossWatch {
    /// Creates a watch that finds spikes above this z-score; 0 finds none.
    pub fn new(limit: f64) -> Self {
        Self {
            limit,
            losses: VecDeque::with_capacity(BEFORE),
            residuals: VecDeque::with_capacity(WINDOW),
            scratch: Vec::with_capacity(WINDOW),
            is_in_spike: false,
        }
    }

    /// Checks the loss of the next step.
    pub fn observe(&mut self, step: u64, loss: f64) -> Observed {
        if !loss.is_finite() {
            return Observed::default(); // the run ends
        }
        let mut observed = Observed::default();
        if self.losses.len() == BEFORE {
            let before = median(&mut self.scratch, &self.losses);
            let residual = loss - before;
            observed.z_score = self.z_score(residual, before);
            let z_score = observed.z_score.unwrap_or(0.0);
            let begins = self.begins_spike(z_score);
            observed.spike = begins.then_some(LossSpike { step, loss, before, z_score });
            push(&mut self.residuals, WINDOW, residual);
        }
        push(&mut self.losses, BEFORE, loss);
        observed
    }

    fn z_score(&mut self, residual: f64, before: f64) -> Option<f64> {
        if self.residuals.len() < WINDOW_LEAST {
            return None;
        }
        let middle = median(&mut self.scratch, &self.residuals);
        self.scratch.iter_mut().for_each(|it| *it = (*it - middle).abs());
        let deviation = DEVIATIONS_PER_MAD * median_of(&mut self.scratch);
        let least = (DEVIATION_LEAST * before.abs()).max(f64::MIN_POSITIVE);
        Some(((residual - middle) / deviation.max(least)).clamp(-Z_MAX, Z_MAX))
    }

    /// Returns whether a spike begins with a loss of this z-score.
    fn begins_spike(&mut self, z_score: f64) -> bool {
        let was_in_spike = self.is_in_spike;
        let limit = if was_in_spike { OVER_SHARE * self.limit } else { self.limit };
        self.is_in_spike = self.limit > 0.0 && z_score > limit;
        self.is_in_spike && !was_in_spike
    }
}

fn push(values: &mut VecDeque<f64>, len_max: usize, value: f64) {
    if values.len() == len_max {
        values.pop_front();
    }
    values.push_back(value);
}

/// Median of values, which are copied to `scratch`.
fn median(scratch: &mut Vec<f64>, values: &VecDeque<f64>) -> f64 {
    scratch.clear();
    scratch.extend(values);
    median_of(scratch)
}

/// Median; for an even number of values the upper one of the two in the middle.
fn median_of(values: &mut [f64]) -> f64 {
    let middle = values.len() / 2;
    *values.select_nth_unstable_by(middle, f64::total_cmp).1
}

#[cfg(test)]
#[path = "loss_watch_tests.rs"]
mod tests;
