//! All steps of a run on one rank, in bounded memory.

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::block::{StepBlock, add_phases};
use super::file::{read_steps, steps_path};
use super::sample::StepSample;
use super::steady::{completes_batch, warmup_blocks};
use super::target::TargetLoss;
use crate::error::Error;
use crate::golden::{Found, GoldenWatch};
use crate::phase::PhaseTimes;

/// Maximum number of blocks; beyond it, neighbours are merged.
const BLOCKS_MAX: usize = 1 << 14;

/// The steps of a run in order, across attempts.
///
/// Sums are exact. Up to 16,384 steps, each step is a block of its own. In longer runs a block
/// stands for 2, 4, 8, ... steps, and distributions are those of one step of each block.
#[derive(Debug, Clone)]
pub struct StepSeries {
    /// Number of ranks.
    pub world: usize,
    /// Number of steps that were delayed because telemetry could not keep up.
    pub delayed_steps: u64,
    /// Number of steps; fewer than the number of the last step only if some were lost.
    pub recorded: u64,
    /// The first step.
    pub first: Option<StepSample>,
    /// The last step.
    pub last: Option<StepSample>,
    /// Last held-out loss.
    pub evaluation_loss_last: Option<f64>,
    /// Tokens of all steps.
    pub tokens: u64,
    /// Nanoseconds of all steps in each phase.
    pub phases_ns: PhaseTimes,
    /// Nanoseconds of all steps.
    pub wall_ns: u64,
    /// Times over all steps of the last attempt that has any.
    attempt_phases: PhaseTimes,
    target: Option<TargetLoss>,
    /// First step that reached the target, with the wall time up to and including it.
    reached: Option<TargetReached>,
    /// Comparison of losses with golden ones, if there are any.
    pub golden: Option<GoldenWatch>,
    /// Parts of the key in which golden losses of the workload differ, if no others are known.
    pub not_comparable: Option<String>,
    /// Digest of the bits of every loss, in the order of steps.
    losses: blake3::Hasher,
    blocks: Vec<StepBlock>,
    /// Number of steps of a whole block.
    block_steps: u64,
}

/// Step and time at which the target loss was reached.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TargetReached {
    /// First step that reached it.
    pub step: u64,
    /// Wall time of all steps up to and including this one.
    pub seconds: f64,
}

/// The steps that count in the figures of a run.
#[derive(Debug, Clone, Copy)]
pub struct MeasuredSteps<'series> {
    /// Blocks of one attempt, in order.
    pub blocks: &'series [StepBlock],
    /// Number of steps of the attempt before these blocks.
    pub warmup_steps: u64,
    /// True if step times were steady when these blocks began.
    pub is_steady: bool,
}

/// Mean milliseconds of a step in which a rank did not wait for other ranks, over each of a few
/// blocks of steps of one attempt.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct OwnTimes {
    /// Number of the first step of each block.
    pub first_steps: Vec<u64>,
    /// Time in forward, backward, optimizer, data and `other`: without waiting for communication,
    /// and without checkpoints and evaluation.
    pub own_ms: Vec<f64>,
}

impl StepSeries {
    /// Creates a series without steps.
    pub fn new(world: usize, target: Option<TargetLoss>) -> Self {
        Self {
            world,
            delayed_steps: 0,
            recorded: 0,
            first: None,
            last: None,
            evaluation_loss_last: None,
            tokens: 0,
            phases_ns: PhaseTimes::default(),
            wall_ns: 0,
            attempt_phases: PhaseTimes::default(),
            target,
            golden: None,
            not_comparable: None,
            reached: None,
            losses: blake3::Hasher::new(),
            blocks: Vec::new(),
            block_steps: 1,
        }
    }

    /// Adds a comparison of losses with golden ones, or the reason why there is none.
    pub fn with_golden(mut self, found: Found) -> Self {
        match found {
            Found::Golden(golden) => self.golden = Some(GoldenWatch::new(golden)),
            Found::NotComparable(differing) => self.not_comparable = Some(differing),
            Found::Nothing => {}
        }
        self
    }

    /// Target loss to stop at.
    pub fn target(&self) -> Option<TargetLoss> {
        self.target
    }

    /// Reads rank 0's steps from a run's folder.
    ///
    /// # Errors
    /// Same errors as [`read_steps`].
    pub fn read(dir: &Path, world: usize, target: Option<TargetLoss>) -> Result<Self, Error> {
        let mut series = Self::new(world, target);
        for line in read_steps(&steps_path(dir, 0))? {
            series.push(&line?.sample);
        }
        Ok(series)
    }

    /// Adds the next step.
    pub fn push(&mut self, sample: &StepSample) {
        if self.last.is_none_or(|last| last.attempt != sample.attempt) {
            self.attempt_phases = PhaseTimes::default();
        }
        self.recorded += 1;
        self.tokens += sample.tokens;
        self.phases_ns = add_phases(&self.phases_ns, &sample.phases);
        self.wall_ns += sample.wall_ns;
        self.attempt_phases = add_phases(&self.attempt_phases, &sample.phases);
        self.first.get_or_insert(*sample);
        self.last = Some(*sample);
        self.evaluation_loss_last = sample.evaluation_loss.or(self.evaluation_loss_last);
        if let Some(golden) = &mut self.golden {
            // The check records a miss; the training thread ends the run.
            let _ = golden.observe(sample.step, sample.loss, std::iter::empty());
        }
        self.losses.update(&sample.loss.to_bits().to_le_bytes());
        let is_reached =
            |target: TargetLoss| target.is_reached(sample.loss, sample.evaluation_loss);
        if self.reached.is_none() && self.target.is_some_and(is_reached) {
            let seconds = self.wall_ns as f64 / 1e9;
            self.reached = Some(TargetReached { step: sample.step, seconds });
        }
        self.push_block(StepBlock::of(sample));
        while self.blocks.len() > BLOCKS_MAX {
            self.block_steps *= 2;
            merge(&mut self.blocks, self.block_steps);
        }
    }

    fn push_block(&mut self, block: StepBlock) {
        match self.blocks.last_mut() {
            Some(last) if last.continues(&block, self.block_steps) => last.add(&block),
            _ => self.blocks.push(block),
        }
    }

    /// Nanoseconds in each phase over all steps of the attempt that is running or has ended last.
    /// Earlier attempts may have had other ranks.
    pub fn phase_totals(&self, attempt: u32) -> PhaseTimes {
        let has_steps = self.has_steps_of(attempt);
        if has_steps { self.attempt_phases } else { PhaseTimes::default() }
    }

    fn has_steps_of(&self, attempt: u32) -> bool {
        self.last.is_some_and(|last| last.attempt == attempt)
    }

    /// Step and time at which the target was reached.
    pub fn reached(&self) -> Option<TargetReached> {
        self.reached
    }

    /// BLAKE3 digest of the bits of every loss, as little-endian binary64, in the order of steps.
    pub fn losses_digest(&self) -> blake3::Hash {
        self.losses.finalize()
    }

    /// Blocks of the last attempt that has any: earlier attempts may have had another world size or
    /// machine.
    pub fn last_attempt(&self) -> &[StepBlock] {
        let mut attempts = self.blocks.chunk_by(|left, right| left.attempt == right.attempt);
        attempts.next_back().unwrap_or_default()
    }

    /// Measured steps: those of the last attempt, without its warm-up.
    pub fn measured(&self) -> MeasuredSteps<'_> {
        let blocks = self.last_attempt();
        let warmup = warmup_blocks(blocks);
        MeasuredSteps {
            blocks: &blocks[warmup.blocks..],
            warmup_steps: blocks[..warmup.blocks].iter().map(|block| block.steps).sum(),
            is_steady: warmup.is_steady,
        }
    }

    /// Returns whether the last step completes a batch of the rule for steady steps.
    pub fn completes_batch(&self) -> bool {
        completes_batch(self.last_attempt())
    }

    /// Returns whether `wanted` steady steps are measured, now and also after a few more steps.
    /// True only when a batch of the rule is complete and the next one just begins.
    pub fn will_have_measured(&self, wanted: u64) -> bool {
        if !self.completes_batch() {
            return false;
        }
        let MeasuredSteps { blocks, is_steady, .. } = self.measured();
        is_steady && blocks.iter().map(|block| block.steps).sum::<u64>() >= wanted
    }

    /// Returns all steps in at most about `count` blocks; more only if there are as many attempts.
    pub fn summarized(&self, count: usize) -> Vec<StepBlock> {
        let mut blocks = summarized(&self.blocks, self.block_steps, count);
        blocks.iter_mut().for_each(|block| block.sampled = None);
        blocks
    }

    /// Own times of the attempt's steps on this rank, in at most about `blocks_max` blocks, each
    /// with the same steps as on the other ranks.
    pub fn own_times(&self, attempt: u32, blocks_max: usize) -> OwnTimes {
        let blocks = self.last_attempt();
        let blocks = if self.has_steps_of(attempt) { blocks } else { &[] };
        let blocks = summarized(blocks, self.block_steps, blocks_max.max(1));
        OwnTimes {
            first_steps: blocks.iter().map(|block| block.first_step).collect(),
            own_ms: blocks.iter().map(StepBlock::own_ms).collect(),
        }
    }
}

/// Merges neighbours until there are at most `count` blocks, or nothing is left to merge.
fn summarized(blocks: &[StepBlock], mut block_steps: u64, count: usize) -> Vec<StepBlock> {
    let mut blocks = blocks.to_vec();
    let last = blocks.last().map_or(0, |block| block.first_step);
    while blocks.len() > count && block_steps <= last {
        block_steps *= 2;
        merge(&mut blocks, block_steps);
    }
    blocks
}

/// Merges neighbours into blocks of `block_steps` steps.
fn merge(blocks: &mut Vec<StepBlock>, block_steps: u64) {
    let mut merged: Vec<StepBlock> = Vec::with_capacity(blocks.len() / 2 + 1);
    for block in blocks.drain(..) {
        match merged.last_mut() {
            Some(last) if last.continues(&block, block_steps) => last.add(&block),
            _ => merged.push(block),
        }
    }
    *blocks = merged;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::sample;

    fn series(attempts: &[(u32, std::ops::RangeInclusive<u64>)]) -> StepSeries {
        let mut series = StepSeries::new(1, None);
        for (attempt, steps) in attempts {
            steps.clone().for_each(|step| series.push(&sample(*attempt, step)));
        }
        series
    }

    /// Step times that halve after 60 steps and then have a little noise.
    #[test]
    fn enough_is_measured_only_in_the_steady_state_and_stays_enough() {
        let mut series = StepSeries::new(1, None);
        let push = |series: &mut StepSeries, step: u64| {
            let mut slow = sample(1, step);
            let noise = step.wrapping_mul(2_654_435_761) >> 7 & 0xf_ffff;
            slow.phases.forward += if step <= 60 { 100_000_000 } else { 20_000_000 } + noise;
            slow.wall_ns = slow.phases.wall_ns();
            series.push(&slow);
        };
        let end = (1..400).find(|step| {
            push(&mut series, *step);
            series.will_have_measured(100)
        });
        let end = end.unwrap();
        assert!((160..180).contains(&end), "after step {end}");
        for step in end + 1..end + 5 {
            push(&mut series, step);
            let measured = series.measured();
            assert!(measured.is_steady && measured.blocks.len() >= 100, "{measured:?}");
            assert!(!series.will_have_measured(100), "the next batch is not complete");
        }
        push(&mut series, end + 5);
        assert!(series.will_have_measured(100));
    }

    #[test]
    fn the_last_attempt_is_measured_without_warmup() {
        let measured = |attempts: &[_]| -> Vec<u64> {
            series(attempts).measured().blocks.iter().map(|block| block.first_step).collect()
        };
        assert_eq!(measured(&[(1, 1..=5), (2, 6..=9)]), [6, 7, 8, 9], "too few to skip any");
        assert_eq!(measured(&[(1, 1..=5), (2, 6..=9), (3, 10..=14)]), [12, 13, 14]);
        assert_eq!(measured(&[]), [0; 0]);
    }

    #[test]
    fn phases_are_those_of_the_last_attempt() {
        let series = series(&[(1, 1..=5), (2, 6..=9)]);
        assert_eq!(series.phase_totals(2).forward, 4 * 30_000_000);
        assert_eq!(series.phase_totals(3), PhaseTimes::default(), "it has no steps");
    }

    #[test]
    fn a_long_run_keeps_every_sum_in_bounded_memory() {
        let steps = 5 * BLOCKS_MAX as u64 + 3;
        let long = series(&[(1, 1..=1000), (2, 1001..=steps)]);
        assert!(long.blocks.len() <= BLOCKS_MAX);
        let sum = |of: fn(&StepBlock) -> u64| long.blocks.iter().map(of).sum::<u64>();
        assert_eq!((long.recorded, sum(|block| block.steps)), (steps, steps));
        assert_eq!(sum(|block| block.tokens), steps * 4096);
        assert_eq!(sum(|block| block.phases_ns.wall_ns()), long.wall_ns);
        let in_order = long.blocks.windows(2).all(|pair| {
            pair[0].first_step + pair[0].steps == pair[1].first_step
                && (pair[0].attempt == pair[1].attempt || pair[1].first_step == 1001)
        });
        assert!(in_order, "no step is missing, and no block is of two attempts");
        let few = long.summarized(64);
        assert!((20..=66).contains(&few.len()), "{}", few.len());
        assert_eq!(few.iter().map(|block| block.steps).sum::<u64>(), steps);
    }

    #[test]
    fn the_target_is_reached_once() {
        let target = Some(TargetLoss { nats: 5.2, is_held_out: false });
        let mut series = StepSeries::new(1, target);
        assert_eq!(series.reached(), None);
        (1..=10).for_each(|step| series.push(&sample(1, step)));
        assert_eq!(series.reached(), Some(TargetReached { step: 3, seconds: 0.3 }));
    }
}
