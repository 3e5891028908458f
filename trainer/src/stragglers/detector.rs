//! Detector of slow ranks, by their own times in steps.
//!
//! In every step the own time of a rank is compared with that of the median rank, so that a common
//! slowdown of all ranks does not count. A rank is called slow if two conditions hold in each of a
//! few consecutive windows of steps. It was slower by at least a limit, and robust z-scores show
//! that this is not chance. One z-score is relative to the variation from step to step, which is
//! noise of a machine. With many ranks there is another, relative to the spread of the ranks.

use record::Straggler;

use record::Kind;
use record::slow_ranks::OwnTime;

/// Conditions for calling a rank slow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Limits {
    /// Steps of a window.
    pub(crate) window_steps: usize,
    /// Consecutive windows in which it must be slow.
    pub(crate) windows: u32,
    /// Least excess over the median rank, as a share of that rank's own time.
    pub(crate) least_slower: f64,
}

/// Least robust z-score: chance does not reach it, even if step times are autocorrelated, which
/// makes a window worth fewer steps than it has.
const Z_LEAST: f64 = 6.0;

/// Least number of ranks whose spread shows how much ranks usually differ.
const RANKS_WITH_SPREAD: usize = 8;

/// Robust z-score from which a rank is an outlier among the ranks: 3.5, as usual.
const Z_AMONG_RANKS: f64 = 3.5;

/// Standard deviations per median absolute deviation, for a normal distribution.
const DEVIATIONS_PER_MAD: f64 = 1.4826;

/// State of the suspicion about a rank.
#[derive(Debug, Clone, Copy, Default)]
struct Suspicion {
    /// Consecutive windows in which it was slow.
    windows: u32,
    /// First step of the first of these windows.
    since_step: u64,
    /// True if it was called slow.
    is_called: bool,
}

/// Windows of all ranks. Allocates only at the end of a window.
#[derive(Debug)]
pub(crate) struct Detector {
    limits: Limits,
    world: usize,
    /// Own times of the window by step, and for each step by rank.
    times: Vec<OwnTime>,
    /// First step of the window.
    first_step: u64,
    suspicions: Vec<Suspicion>,
    scratch: Vec<f64>,
    /// Own time of the median rank in each step of the window.
    medians: Vec<f64>,
    /// Median of the relative own time of each rank in the window, as a logarithm.
    relative: Vec<f64>,
}

impl Detector {
    /// Creates a detector for so many ranks. Without other ranks, or windows, it finds none.
    pub(crate) fn new(world: usize, limits: Limits) -> Self {
        let kept = if world > 1 { world * limits.window_steps } else { 0 };
        Self {
            limits,
            world,
            times: Vec::with_capacity(kept),
            first_step: 0,
            suspicions: vec![Suspicion::default(); world],
            scratch: Vec::with_capacity(world.max(limits.window_steps)),
            medians: Vec::with_capacity(limits.window_steps),
            relative: Vec::with_capacity(world),
        }
    }

    /// Takes the own times of all ranks in a step. At the end of a window, returns ranks that are
    /// slow since then, and those that no longer are.
    pub(crate) fn take(
        &mut self,
        step: u64,
        times: impl Iterator<Item = OwnTime>,
    ) -> Vec<Straggler> {
        if self.times.capacity() == 0 {
            return Vec::new();
        }
        if self.times.is_empty() {
            self.first_step = step;
        }
        let taken = self.times.len();
        self.times.extend(times);
        if self.times[taken..].contains(&OwnTime::ZERO) {
            self.times.truncate(taken); // the first step: none is known yet
        }
        if self.times.len() < self.world * self.limits.window_steps {
            return Vec::new();
        }
        let verdicts = self.judge();
        self.times.clear();
        verdicts
    }

    fn judge(&mut self) -> Vec<Straggler> {
        self.medians.clear();
        for step in self.times.chunks(self.world) {
            self.scratch.clear();
            self.scratch.extend(step.iter().map(OwnTime::total));
            self.medians.push(middle(&mut self.scratch).max(1e-9));
        }
        self.relative.clear();
        for rank in 0..self.world {
            self.fill_relative(rank);
            let median = median(&mut self.scratch);
            self.relative.push(median);
        }
        (0..self.world).filter_map(|rank| self.judge_rank(rank)).collect()
    }

    /// Fills the scratch with the logarithms of a rank's own time relative to the median rank's.
    fn fill_relative(&mut self, rank: usize) {
        let steps = self.times.chunks(self.world).zip(&self.medians);
        self.scratch.clear();
        self.scratch.extend(steps.map(|(step, median)| libm::log(step[rank].total() / median)));
    }

    fn judge_rank(&mut self, rank: usize) -> Option<Straggler> {
        let slower = libm::expm1(self.relative[rank]);
        let z_score = self.z_score(rank);
        let is_slow = slower >= self.limits.least_slower
            && z_score >= Z_LEAST
            && self.z_among_ranks(rank).is_none_or(|z| z >= Z_AMONG_RANKS);
        let is_reported = is_slow || self.suspicions[rank].is_called;
        let kind = if is_reported { self.kind(rank) } else { Kind::Compute };
        let first_step = self.first_step;
        let suspicion = &mut self.suspicions[rank];
        if !is_slow {
            let was = std::mem::take(suspicion);
            return was.is_called.then_some(Straggler {
                rank,
                kind,
                slower_share: slower,
                z_score,
                since_step: was.since_step,
                until_step: Some(first_step),
            });
        }
        if suspicion.windows == 0 {
            suspicion.since_step = first_step;
        }
        suspicion.windows += 1;
        let is_new = !suspicion.is_called && suspicion.windows >= self.limits.windows;
        suspicion.is_called |= is_new;
        let since_step = suspicion.since_step;
        is_new.then_some(Straggler {
            rank,
            kind,
            slower_share: slower,
            z_score,
            since_step,
            until_step: None,
        })
    }

    /// Returns the median of a rank's relative time in standard errors, estimated from its
    /// deviations.
    fn z_score(&mut self, rank: usize) -> f64 {
        self.fill_relative(rank);
        let median_ratio = self.relative[rank];
        self.scratch.iter_mut().for_each(|ratio| *ratio = (*ratio - median_ratio).abs());
        let deviation = DEVIATIONS_PER_MAD * median(&mut self.scratch);
        let error = deviation / (self.limits.window_steps as f64).sqrt();
        // With exact times, as in tests, any difference is certain.
        if error > 0.0 { (median_ratio / error).min(1e6) } else { 1e6 * median_ratio.signum() }
    }

    /// Returns the distance of the rank from the median rank, in units of the spread of ranks;
    /// `None` if there are too few.
    fn z_among_ranks(&self, rank: usize) -> Option<f64> {
        let deviation = robust_deviation(&self.relative)?;
        let middle = median(&mut self.relative.clone());
        Some((self.relative[rank] - middle) / deviation.max(f64::MIN_POSITIVE))
    }

    /// Returns the kind of time with the largest excess over the median rank.
    fn kind(&self, rank: usize) -> Kind {
        let mut of_ranks = vec![0.0; self.world];
        let mut added = [(Kind::Compute, 0.0); OwnTime::FIELDS];
        for step in self.times.chunks(self.world) {
            for (index, (kind, own)) in step[rank].by_kind().enumerate() {
                let seconds = |time: &OwnTime| time.by_kind().nth(index).map_or(0.0, |it| it.1);
                of_ranks.iter_mut().zip(step).for_each(|(it, time)| *it = seconds(time));
                added[index] = (kind, added[index].1 + own - middle(&mut of_ranks));
            }
        }
        let most = added.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
        most.map_or(Kind::Compute, |it| it.0)
    }
}

/// Returns the spread of ranks, as a standard deviation that resists outliers; `None` if there are
/// too few ranks.
pub(super) fn robust_deviation(of_ranks: &[f64]) -> Option<f64> {
    if of_ranks.len() < RANKS_WITH_SPREAD {
        return None;
    }
    let middle = median(&mut of_ranks.to_vec());
    let mut distances: Vec<f64> = of_ranks.iter().map(|it| (it - middle).abs()).collect();
    Some(DEVIATIONS_PER_MAD * median(&mut distances))
}

/// Returns the value of the median rank: of two ranks the lower one, so that one of them can be
/// slow.
pub(super) fn middle(of_ranks: &mut [f64]) -> f64 {
    if of_ranks.len() == 2 { lower_median(of_ranks) } else { median(of_ranks) }
}

fn lower_median(values: &mut [f64]) -> f64 {
    let middle = (values.len() - 1) / 2;
    *values.select_nth_unstable_by(middle, f64::total_cmp).1
}

fn median(values: &mut [f64]) -> f64 {
    let middle = values.len() / 2;
    let upper = *values.select_nth_unstable_by(middle, f64::total_cmp).1;
    if values.len() % 2 == 1 { upper } else { (upper + lower_median(values)) / 2.0 }
}
