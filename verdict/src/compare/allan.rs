//! Drift of the pace within a run, a lower bound of the deviation that is assumed between runs.

use super::estimate::mean;
use record::{Record, StepBlock};

/// Number of parts of a run whose means are compared with their neighbours.
const PARTS: usize = 4;

/// Relative Allan deviation of a run's step times at a quarter of its measured steps: the root of
/// half the mean square of the differences between neighbouring quarters' means. `None` with fewer
/// blocks of steps than quarters.
pub(super) fn deviation(record: &Record) -> Option<f64> {
    let blocks = measured_blocks(record);
    let total: u64 = blocks.iter().map(|block| block.steps).sum();
    if total == 0 {
        return None;
    }
    let mut parts: [Part; PARTS] = Default::default();
    let mut before = 0;
    for block in blocks {
        // Assigned by the middle of the block, so that no block is split.
        let middle = 2 * before + block.steps;
        let part = (middle as usize * PARTS / (2 * total as usize)).min(PARTS - 1);
        parts[part].steps += block.steps;
        parts[part].step_ns += block.phases_ns.step_ns();
        before += block.steps;
    }
    let logarithms: Option<Vec<f64>> = parts.iter().map(Part::log_of_mean).collect();
    let squares: Vec<f64> =
        logarithms?.windows(2).map(|pair| (pair[1] - pair[0]) * (pair[1] - pair[0])).collect();
    Some((0.5 * mean(&squares)).sqrt())
}

/// Returns the blocks of the last attempt that has steps, after its warm-up.
fn measured_blocks(record: &Record) -> &[StepBlock] {
    let Some(steps) = &record.steps else { return &[] };
    let Some(last) = steps.series.last() else { return &[] };
    let first = steps.series.partition_point(|block| block.attempt < last.attempt);
    let of_attempt = &steps.series[first..];
    let measured_from = of_attempt[0].first_step + steps.warmup;
    &of_attempt[of_attempt.partition_point(|block| block.first_step < measured_from)..]
}

#[derive(Default)]
struct Part {
    steps: u64,
    step_ns: u64,
}

impl Part {
    fn log_of_mean(&self) -> Option<f64> {
        (self.steps > 0 && self.step_ns > 0)
            .then(|| libm::log(self.step_ns as f64 / self.steps as f64))
    }
}
