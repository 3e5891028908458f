//! Detection of enough measured steady steps.

use super::sample::StepSample;
use super::series::StepSeries;

/// Counts the measured steps of an attempt, on rank 0: other ranks do not know the step times of
/// the record, and learn from its vote that the next step is the last.
#[derive(Debug)]
pub struct SteadyWatch {
    wanted: u64,
    series: StepSeries,
    /// Number of steps at which the rule is next applied: it takes longer the more steps there are.
    next_check: u64,
    is_done: bool,
}

/// Divisor: the rule is applied again after this fraction of the current number of steps.
const STEPS_PER_CHECK: u64 = 16;

impl SteadyWatch {
    /// Creates a watch that waits for `wanted` measured steps.
    pub fn new(wanted: u64, world: usize) -> Self {
        let series = StepSeries::new(world, None);
        Self { wanted, series, next_check: wanted, is_done: false }
    }

    /// Adds the next step.
    pub fn observe(&mut self, sample: &StepSample) {
        self.series.push(sample);
        let steps = self.series.recorded;
        if steps >= self.next_check && self.series.completes_batch() {
            self.is_done = self.series.will_have_measured(self.wanted);
            self.next_check = steps + steps / STEPS_PER_CHECK;
        }
    }

    /// Returns whether one more step is enough.
    pub fn is_done(&self) -> bool {
        self.is_done
    }
}
