//! Detection of the end of an attempt's warm-up.

use super::block::StepBlock;
use crate::statistics::percentile;

/// Number of steps at the start of an attempt that are never measured, because caches, page tables
/// and connections are still cold.
const WARMUP_STEPS_MIN: u64 = 2;

/// Number of blocks of a batch.
const BATCH: usize = 5;

/// Smallest number of batches that can show a trend.
const BATCHES_MIN: usize = 8;

/// Relative difference of both halves from which on step times have not settled.
const DRIFT_LIMIT: f64 = 0.05;

/// The blocks of an attempt before its steady state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Warmup {
    pub(super) blocks: usize,
    /// True if step times settle in the first half of the attempt.
    pub(super) is_steady: bool,
}

/// Finds the warm-up: the first 2 steps, if there are more than 4, and as many more as minimise the
/// standard error of the mean of the rest. This is the rule MSER-5 of K. P. White, M. J. Cobb and
/// S. C. Spratt, "A comparison of five steady-state truncation heuristics for simulation" (2000),
/// on medians of batches of 5, so that one late outlier does not count as a warm-up. A minimum in
/// the last quarter of the half that may be dropped shows that step times have not settled: then
/// only the first 2 steps are dropped. The rule cannot detect a warm-up of more than half, nor a
/// drift, so both halves of the rest must take the same time, too.
pub(super) fn warmup_blocks(blocks: &[StepBlock]) -> Warmup {
    let steps: u64 = blocks.iter().map(|block| block.steps).sum();
    if steps <= 2 * WARMUP_STEPS_MIN {
        return Warmup { blocks: 0, is_steady: false };
    }
    let cold = cold_blocks(blocks);
    let batches: Vec<f64> = blocks[cold..].chunks_exact(BATCH).map(median_ms).collect();
    if batches.len() < BATCHES_MIN {
        return Warmup { blocks: cold, is_steady: false };
    }
    let half = batches.len() / 2;
    let truncated = (0..=half)
        .min_by(|&a, &b| squared_error(&batches[a..]).total_cmp(&squared_error(&batches[b..])));
    let truncated = truncated.unwrap_or(0);
    if truncated > half - half / 4 {
        return Warmup { blocks: cold, is_steady: false };
    }
    let is_steady = halves_differ(&batches[truncated..]) < DRIFT_LIMIT;
    Warmup { blocks: cold + truncated * BATCH, is_steady }
}

/// Difference of the medians of both halves, relative to that of the first.
fn halves_differ(batches: &[f64]) -> f64 {
    let (first, second) = batches.split_at(batches.len() / 2);
    let before = median(first);
    (median(second) - before).abs() / before
}

/// Returns whether the last batch is complete, so that the warm-up stays the same until the next
/// batch is.
pub(super) fn completes_batch(blocks: &[StepBlock]) -> bool {
    blocks.len() > cold_blocks(blocks) && (blocks.len() - cold_blocks(blocks)).is_multiple_of(BATCH)
}

/// Number of blocks that are never measured.
fn cold_blocks(blocks: &[StepBlock]) -> usize {
    blocks.partition_point(|block| block.first_step < blocks[0].first_step + WARMUP_STEPS_MIN)
}

fn median_ms(batch: &[StepBlock]) -> f64 {
    let times: Vec<f64> = batch.iter().map(StepBlock::step_ms).collect();
    median(&times)
}

fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    percentile(&sorted, 50.0).expect("a batch")
}

/// Square of the standard error of the mean.
fn squared_error(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count * count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::sample;

    /// Blocks of one step each, which take these milliseconds.
    fn blocks(times: impl IntoIterator<Item = f64>) -> Vec<StepBlock> {
        let block = |(step, ms): (u64, f64)| {
            let mut sample = sample(1, step);
            sample.phases.forward = 0;
            sample.phases.forward = (ms * 1e6) as u64 - sample.phases.wall_ns();
            StepBlock::of(&sample)
        };
        (1..).zip(times).map(block).collect()
    }

    /// A little noise that depends on the step only.
    fn noise(step: u32) -> f64 {
        f64::from(step.wrapping_mul(2_654_435_761) >> 16) / 65_536.0 - 0.5
    }

    #[test]
    fn a_slow_start_is_not_measured() {
        let slow = |step: u32| if step < 30 { 150.0 } else { 100.0 } + noise(step);
        let warmup = warmup_blocks(&blocks((0..200).map(slow)));
        assert!((30..40).contains(&warmup.blocks) && warmup.is_steady, "{warmup:?}");
    }

    #[test]
    fn steady_steps_are_measured_with_their_outliers() {
        let step = |step: u32| if step % 60 == 59 { 300.0 } else { 100.0 } + noise(step);
        let warmup = warmup_blocks(&blocks((0..200).map(step)));
        assert!(warmup.blocks <= 30 && warmup.is_steady, "{warmup:?}");
    }

    #[test]
    fn steps_that_do_not_settle_are_not_steady() {
        let falling = warmup_blocks(&blocks((0..200).map(|step| 300.0 - f64::from(step))));
        assert_eq!(falling, Warmup { blocks: 2, is_steady: false });
        let long = |step: u32| if step < 60 { 150.0 } else { 100.0 } + noise(step);
        let long = warmup_blocks(&blocks((0..102).map(long)));
        assert!(!long.is_steady, "a warm-up of more than half: {long:?}");
        let few = warmup_blocks(&blocks((0..30).map(noise).map(|noise| 100.0 + noise)));
        assert_eq!(few, Warmup { blocks: 2, is_steady: false }, "too few to tell");
    }
}
