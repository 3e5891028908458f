//! Test of one rank over windows of blocks that end now.

use std::cell::OnceCell;

use super::Rule;
use super::history::History;
use super::noise::{Noise, RANKS_WITH_SPREAD};
use crate::statistics::median_of;
use crate::{Basis, student};

/// Windows that are tested, in blocks.
pub(super) const WINDOWS: [usize; 7] = [4, 8, 16, 32, 64, 128, 256];

/// A block counts at most so many deviations above the limit, so that no single pause decides.
const CLIPPED_AT: f64 = 3.5;

/// Least number of blocks at the end over which a slow rank must be well again.
const BLOCKS_WELL: usize = 6;

/// Least number of blocks before a window that show a rank's own earlier pace.
const BLOCKS_BEFORE: usize = 16;

/// Variance of a median of normal values over that of their mean.
const VARIANCE_OF_MEDIAN: f64 = std::f64::consts::FRAC_PI_2;

/// Least excess over the median rank of one that has changed, as a share of the least change.
const CHANGED_SLOWER: f64 = 1.0 / 3.0;

/// Share of jobs in which a natural outlier among the ranks is named.
const OUTLIERS: f64 = 0.01;

/// Limits of a basis: an excess below the gate is natural, below the least it is not reported.
#[derive(Debug, Clone, Copy)]
struct Limits {
    gate: f64,
    least: f64,
}

/// Basis of a test, and its limits.
#[derive(Debug, Clone, Copy)]
struct Compared {
    basis: Basis,
    limits: Limits,
}

/// A window in which a rank is slow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Slow {
    pub(super) basis: Basis,
    /// Blocks of the window.
    pub(super) blocks: usize,
    /// Level from which the excess counts, as a natural logarithm.
    pub(super) level: f64,
    /// Least excess that is reported.
    pub(super) least: f64,
    /// Excess, as a natural logarithm, and its standard error.
    pub(super) excess: f64,
    pub(super) error: f64,
    /// Excess over the gate in standard errors.
    pub(super) z_score: f64,
}

impl Slow {
    /// Blocks at the end over which a slow rank must be well again: fewer are not as certain as the
    /// window in which it was found slow.
    pub(super) fn blocks_until_well(&self) -> usize {
        BLOCKS_WELL.max(self.blocks / 2)
    }

    /// Returns whether blocks, the newest first, show that it is over.
    pub(super) fn is_over(&self, blocks: impl Iterator<Item = f64>) -> bool {
        let count = self.blocks_until_well();
        let excess = blocks.take(count).sum::<f64>() / count as f64 - self.level;
        excess < self.least / 2.0
    }
}

/// Deviations among ranks beyond which one is an outlier.
fn z_among(ranks: usize) -> f64 {
    student::quantile(2.0 * OUTLIERS / ranks as f64, 1e6)
}

/// Comparisons that decide about a rank of a class.
#[derive(Debug)]
pub(super) struct Test<'a> {
    pub(super) history: &'a History,
    absolute: Option<&'a History>,
    rule: &'a Rule,
    noise: Noise,
    ranks: usize,
    /// Probability of a false finding for each test.
    chance: f64,
    /// Excess in standard errors from which chance is ruled out, once it is needed.
    z_least: OnceCell<f64>,
    against: Option<Compared>,
}

impl<'a> Test<'a> {
    /// A test of so many ranks, of which a single one is compared with itself only.
    pub(super) fn new(
        history: &'a History,
        rule: &'a Rule,
        noise: Noise,
        ranks: usize,
        chance: f64,
    ) -> Self {
        let against = (ranks > 1).then(|| of_others(rule, noise, ranks));
        let z_least = OnceCell::new();
        Self { history, absolute: None, rule, noise, ranks, chance, z_least, against }
    }

    /// Also takes the logarithms of own times as they are; `None` where there are enough other
    /// ranks for a median that one of them does not move.
    pub(super) fn with_absolute(self, absolute: Option<&'a History>) -> Self {
        Self { absolute, ..self }
    }

    /// Returns the shortest window of at most so many blocks in which a rank is slow. `pace` is its
    /// known excess over the others, by an earlier measurement; `None` if that is not known.
    pub(super) fn slow(&self, rank: usize, pace: Option<f64>, blocks: usize) -> Option<Slow> {
        let blocks = blocks.min(self.history.len());
        let all: OnceCell<Vec<f64>> = OnceCell::new();
        let noise: OnceCell<f64> = OnceCell::new();
        let windows = WINDOWS.into_iter().filter(|window| *window >= self.noise.window_least);
        windows.take_while(|window| *window <= blocks).find_map(|window| {
            if self.is_as_fast(rank, pace, window) {
                return None;
            }
            let all = all.get_or_init(|| self.history.of_rank(rank).collect());
            let noise = *noise.get_or_init(|| self.noise.of_rank(all));
            let (now, before) = (&all[..window], before(all, window, blocks));
            let error = noise / (window as f64).sqrt();
            let decide = |compared, level| self.decide(compared, now, level, noise, error);
            let of_others = || decide(self.against?, 0.0);
            let changed = || self.changed(rank, now, before, noise);
            let off_its_pace = || decide(self.paced(), pace?);
            of_others().or_else(changed).or_else(off_its_pace)
        })
    }

    /// Returns whether a rank is not slower than the others by what any basis requires: most ranks
    /// are not, and only the others are worth the rest. Clipped means are at most these.
    fn is_as_fast(&self, rank: usize, pace: Option<f64>, window: usize) -> bool {
        let least = CHANGED_SLOWER * self.rule.least_slower;
        let mean = self.history.mean(window, rank);
        self.against.is_some() && mean.max(mean - pace.unwrap_or(0.0)) < least
    }

    fn z_least(&self) -> f64 {
        *self.z_least.get_or_init(|| {
            let Self { ranks, chance, history, .. } = self;
            let independent = if *ranks <= 8 { ranks.saturating_sub(1).max(1) } else { *ranks };
            let freedom = 0.25 * independent as f64 * (history.len() - 1) as f64;
            student::quantile(2.0 * chance, freedom.max(2.0))
        })
    }

    fn paced(&self) -> Compared {
        let least = self.rule.least_slower;
        Compared { basis: Basis::Pace, limits: Limits { gate: least / 1.5, least } }
    }

    /// Compares a rank with itself before the window.
    fn changed(&self, rank: usize, now: &[f64], before: &[f64], noise: f64) -> Option<Slow> {
        if before.len() < BLOCKS_BEFORE {
            return None;
        }
        let level = median_of(&mut before.to_vec());
        let least = self.rule.least_slower;
        let gate = least / 2.0;
        let share = now.len() as f64 / before.len() as f64;
        let error = noise / (now.len() as f64).sqrt() * (1.0 + VARIANCE_OF_MEDIAN * share).sqrt();
        let compared = Compared { basis: Basis::Change, limits: Limits { gate, least } };
        let slow = self.decide(compared, now, level, noise, error)?;
        // Not one that was faster than the others, and not one whose only peer became faster.
        let is_slower = self.against.is_none()
            || clipped(now, median_of(&mut now.to_vec()), noise) > CHANGED_SLOWER * least;
        (is_slower && self.takes_longer(rank, now.len(), gate)).then_some(slow)
    }

    /// Returns whether a rank's own time itself has grown, where that is known.
    fn takes_longer(&self, rank: usize, window: usize, gate: f64) -> bool {
        let Some(absolute) = self.absolute else { return true };
        let mut now: Vec<f64> = absolute.of_rank(rank).collect();
        let mut before = now.split_off(window);
        median_of(&mut now) - median_of(&mut before) > gate
    }

    /// Decides about blocks relative to a level.
    fn decide(
        &self,
        Compared { basis, limits: Limits { gate, least } }: Compared,
        blocks: &[f64],
        level: f64,
        noise: f64,
        error: f64,
    ) -> Option<Slow> {
        let relative: Vec<f64> = blocks.iter().map(|block| block - level).collect();
        let z_score = (clipped(&relative, gate, noise) - gate) / error;
        if z_score <= 0.0 || z_score < self.z_least() {
            return None;
        }
        let excess = clipped(&relative, median_of(&mut relative.clone()), noise);
        let blocks = blocks.len();
        (excess >= least).then_some(Slow { basis, blocks, level, least, excess, error, z_score })
    }
}

/// Comparison with other ranks: with fewer than eight their natural differences are not known.
fn of_others(rule: &Rule, noise: Noise, ranks: usize) -> Compared {
    let least = least_of_others(rule, ranks);
    let basis = basis_of_others(ranks);
    let gate = match basis {
        Basis::Few => 0.6 * least,
        _ => (z_among(ranks) * noise.spread).max(least / 2.0),
    };
    Compared { basis, limits: Limits { gate, least } }
}

/// Least excess over the others that is reported.
pub(super) fn least_of_others(rule: &Rule, ranks: usize) -> f64 {
    match basis_of_others(ranks) {
        Basis::Few => rule.least_slower_of_few.max(rule.least_slower),
        _ => rule.least_slower,
    }
}

/// Returns the blocks before a window that show the earlier pace: those since the rank was last
/// well, if there are enough, as it was slow before that.
fn before(all: &[f64], window: usize, fresh: usize) -> &[f64] {
    let since = &all[window..fresh];
    if since.len() >= BLOCKS_BEFORE { since } else { &all[window..] }
}

/// Basis on which a rank of so many is compared with the others.
pub(super) fn basis_of_others(ranks: usize) -> Basis {
    if ranks < RANKS_WITH_SPREAD { Basis::Few } else { Basis::Peers }
}

/// Mean of blocks of which none counts for more than some deviations above a level.
fn clipped(blocks: &[f64], level: f64, noise: f64) -> f64 {
    let most = level + CLIPPED_AT * noise;
    blocks.iter().map(|block| block.min(most)).sum::<f64>() / blocks.len() as f64
}
