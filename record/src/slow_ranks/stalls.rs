//! Steps that are slower by a quarter or more, too rare to move the mean of a block.

use super::Rule;
use super::noise::RANKS_WITH_SPREAD;
use super::window::{Slow, basis_of_others, least_of_others};
use crate::student::incomplete_beta;

/// Relative own time of a stall, as a logarithm: ln 1.25.
const STALL: f64 = 0.223_143_551_314_209_76;

/// Blocks that are kept.
const BLOCKS_MAX: usize = 256;

/// Least number of stalls of a rank that is named.
const STALLS_LEAST: f64 = 8.0;

/// A rank that is named has so many times the stalls of others: on a machine where all
/// stall often, they come in bursts, and chance is no measure of them.
const STALLS_OF_OTHERS: f64 = 4.0;

/// Stalls that must be missing until a rank is well: with so many, chance leaves it so in 0.7 %.
const STALLS_MISSED: f64 = 5.0;

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
    /// True for a rank that stalls: a slow step that follows another one is no stall of its own, as
    /// steps depend on each other.
    is_stalled: Vec<bool>,
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
        let (now, all) = (zeros(ranks), zeros(ranks));
        Self { ranks, blocks: 0, steps: 0.0, now, kept, all, is_stalled: vec![false; ranks] }
    }

    pub(super) fn add(&mut self, rank: usize, relative: f64) {
        let is_stall = relative >= STALL;
        let was_stalled = std::mem::replace(&mut self.is_stalled[rank], is_stall);
        if is_stall && !was_stalled {
            self.now[rank].count += 1.0;
        }
        if is_stall {
            self.now[rank].excess += libm::expm1(relative) as f32;
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
        let count = f64::from(count);
        let excess = libm::log1p(f64::from(excess) / self.steps);
        let least = least_of_others(rule, self.ranks);
        if self.ranks < 2 || count < STALLS_LEAST || excess < least {
            return None;
        }
        let most = self.most_of_others(rank);
        // More than one in a block moves the mean of blocks.
        let is_rare = count < self.blocks.min(BLOCKS_MAX) as f64;
        if !is_rare || count < STALLS_LEAST + STALLS_OF_OTHERS * most {
            return None;
        }
        let rate = (most + 1.0) / (self.steps + 1.0);
        // P(at least so many of the steps) = I(rate; count, steps - count + 1).
        let tail = incomplete_beta(rate.min(1.0), count, self.steps - count + 1.0);
        (tail < chance).then(|| Slow {
            basis: basis_of_others(self.ranks),
            blocks: self.blocks.min(BLOCKS_MAX),
            level: 0.0,
            least,
            excess,
            error: excess / count.sqrt(),
            z_score: count.sqrt(),
        })
    }

    /// Returns the stalls of the other rank that has most of them; with many others, of the upper
    /// quartile, as the ranks of a node may stall together.
    fn most_of_others(&self, rank: usize) -> f64 {
        let others = self.all.iter().enumerate().filter(|(other, _)| *other != rank);
        let mut counts: Vec<f64> = others.map(|(_, sum)| f64::from(sum.count)).collect();
        counts.sort_unstable_by(f64::total_cmp);
        let has_quartile = counts.len() + 1 >= RANKS_WITH_SPREAD;
        let index = if has_quartile { counts.len() * 3 / 4 } else { counts.len() - 1 };
        counts[index]
    }

    /// Blocks without a stall after which a rank no longer has them: as long as they would have
    /// brought several.
    pub(super) fn blocks_until_well(&self, rank: usize) -> usize {
        let blocks = self.blocks.min(BLOCKS_MAX) as f64;
        (STALLS_MISSED * blocks / f64::from(self.all[rank].count).max(1.0)).ceil() as usize
    }

    /// Returns whether the last blocks of a rank have no stall.
    pub(super) fn are_over(&self, rank: usize, blocks: usize) -> bool {
        let is_free = |back: usize| {
            let block = (self.blocks - 1 - back) % BLOCKS_MAX;
            self.kept[block * self.ranks + rank].count == 0.0
        };
        let blocks = blocks.min(BLOCKS_MAX);
        !self.is_stalled[rank] && self.blocks >= blocks && (0..blocks).all(is_free)
    }
}
