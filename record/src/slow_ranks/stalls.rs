//! Steps that are slower by a quarter or more, too rare to move the mean of a block.

use super::window::Slow;
use super::{Basis, Rule};
use crate::student::incomplete_beta;

/// Relative own time of a stall, as a logarithm: ln 1.25.
const STALL: f64 = 0.223_143_551_314_209_76;

/// Blocks that are kept.
const BLOCKS_MAX: usize = 256;

/// Least number of stalls of a rank that is named.
const STALLS_LEAST: f64 = 3.0;

/// Stalls of the last blocks.
#[derive(Debug)]
pub(super) struct Stalls {
    ranks: usize,
    blocks: usize,
    /// Steps of the blocks that are kept.
    steps: f64,
    /// Number and excess of the stalls of each rank in the block in progress, in each block that is
    /// kept, and in all of these.
    now: Vec<Sum>,
    kept: Vec<Sum>,
    all: Vec<Sum>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    count: f32,
    excess: f32,
}

impl Stalls {
    pub(super) fn new(ranks: usize) -> Self {
        let zeros = |count| vec![Sum::default(); count];
        let kept = zeros(ranks * BLOCKS_MAX);
        Self { ranks, blocks: 0, steps: 0.0, now: zeros(ranks), kept, all: zeros(ranks) }
    }

    pub(super) fn add(&mut self, rank: usize, relative: f64) {
        if relative >= STALL {
            self.now[rank].count += 1.0;
            self.now[rank].excess += relative as f32;
        }
    }

    pub(super) fn end_block(&mut self, steps: usize) {
        let start = self.blocks % BLOCKS_MAX * self.ranks;
        let oldest = &mut self.kept[start..start + self.ranks];
        for ((all, now), oldest) in self.all.iter_mut().zip(&mut self.now).zip(oldest) {
            all.count += now.count - oldest.count;
            all.excess += now.excess - oldest.excess;
            *oldest = std::mem::take(now);
        }
        self.blocks += 1;
        self.steps = (self.blocks.min(BLOCKS_MAX) * steps) as f64;
    }

    /// Returns a rank's stalls if the others' rate does not explain them, with this probability,
    /// and they cost enough.
    pub(super) fn slow(&self, rank: usize, chance: f64, rule: &Rule) -> Option<Slow> {
        let Sum { count, excess } = self.all[rank];
        let (count, excess) = (f64::from(count), f64::from(excess) / self.steps);
        if count < STALLS_LEAST || excess < rule.least_slower {
            return None;
        }
        let of_others = self.all.iter().map(|sum| f64::from(sum.count)).sum::<f64>() - count;
        let rate = (of_others + 1.0) / (self.steps * (self.ranks - 1) as f64 + 1.0);
        // P(at least so many of the steps) = I(rate; count, steps - count + 1).
        let tail = incomplete_beta(rate.min(1.0), count, self.steps - count + 1.0);
        (tail < chance).then(|| Slow {
            rank,
            basis: Basis::Stalls,
            blocks: self.blocks.min(BLOCKS_MAX),
            excess,
            error: excess / count.sqrt(),
            z_score: count.sqrt(),
        })
    }
}
