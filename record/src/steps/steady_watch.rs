//! When enough steady steps are measured.

use super::sample::StepSample;
use super::series::StepSeries;

/// Counts the measured steps of an attempt, on rank 0: other ranks do not know the step times that
/// the record is of, and learn from its vote that the next step is the last.
#[derive(Debug)]
pub struct SteadyWatch {
    wanted: u64,
    series: StepSeries,
    /// Steps from which on it looks again: the rule takes longer, the more steps there are.
    next_look: u64,
    is_done: bool,
}

/// It looks again when there are so many more steps, as a share of those that there are.
const STEPS_PER_LOOK: u64 = 16;

impl SteadyWatch {
    /// Waits for so many steps.
    pub fn new(wanted: u64, world: usize) -> Self {
        let series = StepSeries::new(world, None);
        Self { wanted, series, next_look: wanted, is_done: false }
    }

    /// Adds the next step.
    pub fn observe(&mut self, sample: &StepSample) {
        self.series.push(sample);
        let steps = self.series.recorded;
        if steps >= self.next_look && self.series.completes_batch() {
            self.is_done = self.series.will_have_measured(self.wanted);
            self.next_look = steps + steps / STEPS_PER_LOOK;
        }
    }

    /// Whether one more step is enough.
    pub fn is_done(&self) -> bool {
        self.is_done
    }
}
