//! Test of one rank over windows of blocks that end now.

use super::history::History;
use super::noise::{Noise, RANKS_WITH_SPREAD, WINDOWS};
use super::{Basis, Rule};
use crate::statistics::median_of;

/// A block counts at most so many deviations above the limit, so that no single pause decides.
const CLIPPED_AT: f64 = 3.5;

/// Least number of blocks before a window that show a rank's own earlier pace.
const BLOCKS_BEFORE: usize = 16;

/// Variance of a median of normal values over that of their mean: π/2.
const VARIANCE_OF_MEDIAN: f64 = std::f64::consts::FRAC_PI_2;

/// Least excess over the median rank of one that has changed.
const CHANGED_SLOWER: f64 = 0.01;

/// Limits of the bases: an excess below the gate is natural, below the least it is not reported.
#[derive(Debug, Clone, Copy)]
struct Limits {
    gate: f64,
    least: f64,
}

/// A window in which a rank is slow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Slow {
    pub(super) rank: usize,
    pub(super) basis: Basis,
    /// Blocks of the window.
    pub(super) blocks: usize,
    /// Excess, as a natural logarithm, and its standard error.
    pub(super) excess: f64,
    pub(super) error: f64,
    pub(super) z_score: f64,
}

/// What decides about a rank of a class after a block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Test<'a> {
    pub(super) history: &'a History,
    pub(super) rule: &'a Rule,
    pub(super) noise: Noise,
    /// Ranks of the class.
    pub(super) ranks: usize,
    /// Excess in deviations from which chance is ruled out.
    pub(super) z_least: f64,
    /// Deviations among ranks beyond which one is an outlier.
    pub(super) z_among_ranks: f64,
}

impl Test<'_> {
    /// Returns the shortest window in which a rank is slow. `offset` is its known excess over the
    /// others, by its pace in an earlier measurement; `None` if that is not known.
    pub(super) fn slow(&self, rank: usize, offset: Option<f64>) -> Option<Slow> {
        let blocks: Vec<f64> = self.history.of_rank(rank).collect();
        let own = std::cell::OnceCell::new();
        let noise = || *own.get_or_init(|| self.noise.of_rank(self.history, rank));
        WINDOWS.into_iter().take_while(|window| *window <= blocks.len()).find_map(|window| {
            if window < self.noise.window_least {
                return None;
            }
            let (now, before) = blocks.split_at(window);
            let mean = now.iter().sum::<f64>() / window as f64;
            // Most ranks are not slow by anything: only others are worth the rest.
            let most = offset.map_or(mean, |offset| mean.max(mean - offset));
            if most < 0.5 * self.rule.least_slower {
                return None;
            }
            let error = noise() / (window as f64).sqrt();
            let of_peers = || self.decide(rank, self.among_peers(), now, 0.0, noise(), error);
            let changed = || {
                let earlier =
                    (before.len() >= BLOCKS_BEFORE).then(|| median_of(&mut before.to_vec()))?;
                let share = window as f64 / before.len() as f64;
                let error = error * (1.0 + VARIANCE_OF_MEDIAN * share).sqrt();
                let limits = Limits { gate: 0.015, least: self.rule.least_slower };
                let is_slower =
                    clipped(now, median_of(&mut now.to_vec()), noise()) > CHANGED_SLOWER;
                let decided =
                    self.decide(rank, (Basis::Change, limits), now, earlier, noise(), error);
                decided.filter(|_| is_slower)
            };
            let off_its_pace = || {
                let limits = Limits { gate: 0.02, least: self.rule.least_slower };
                self.decide(rank, (Basis::Pace, limits), now, offset?, noise(), error)
            };
            of_peers().or_else(changed).or_else(off_its_pace)
        })
    }

    fn among_peers(&self) -> (Basis, Limits) {
        if self.ranks < RANKS_WITH_SPREAD {
            return (Basis::Few, Limits { gate: 0.06, least: self.rule.least_slower_of_few });
        }
        let gate = (self.z_among_ranks * self.noise.spread).max(0.015);
        (Basis::Peers, Limits { gate, least: self.rule.least_slower })
    }

    /// Decides about blocks relative to `origin`.
    fn decide(
        &self,
        rank: usize,
        (basis, limits): (Basis, Limits),
        blocks: &[f64],
        origin: f64,
        noise: f64,
        error: f64,
    ) -> Option<Slow> {
        let relative: Vec<f64> = blocks.iter().map(|block| block - origin).collect();
        let middle = median_of(&mut relative.clone());
        let z_score = (clipped(&relative, limits.gate, noise) - limits.gate) / error;
        let excess = clipped(&relative, middle, noise);
        let is_slow = z_score >= self.z_least && excess >= limits.least;
        is_slow.then_some(Slow { rank, basis, blocks: blocks.len(), excess, error, z_score })
    }
}

/// Mean of blocks of which none counts for more than some deviations above a level.
fn clipped(blocks: &[f64], level: f64, noise: f64) -> f64 {
    let most = level + CLIPPED_AT * noise;
    blocks.iter().map(|block| block.min(most)).sum::<f64>() / blocks.len() as f64
}
