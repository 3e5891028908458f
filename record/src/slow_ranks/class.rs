//! Ranks that do the same work on the same kind of device, and which of them are slow.

use super::Rule;
use super::history::History;
use super::noise::{Noise, RANKS_WITH_SPREAD};
use super::own_time::{OwnTime, StepTimes};
use super::recent::{Recent, Slowest};
use super::series::End;
use super::stalls::Stalls;
use super::window::{Slow, Test, WINDOWS};
use crate::statistics::median_of;
use crate::{Kind, Pattern, Straggler};

/// Ranks from which the median of the others is that of all.
const RANKS_WITH_ONE_MEDIAN: usize = 32;

/// Blocks over which the kind of the excess is found.
const BLOCKS_OF_KINDS: usize = 16;

type Kinds = [f32; OwnTime::FIELDS];

/// A step of the job.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step<'a> {
    pub(super) times: &'a [StepTimes],
    /// Logarithms of own times.
    pub(super) logarithms: &'a [f64],
    pub(super) slowest: Slowest,
}

/// A rank that was named.
#[derive(Debug, Clone, Copy)]
struct Named {
    straggler: Straggler,
    slow: Slow,
    /// Number of the block after which it was named.
    at_block: usize,
    /// For stalls, blocks without one until it is well.
    without_stalls: Option<usize>,
}

/// Detector for the ranks of one class.
#[derive(Debug)]
pub(super) struct Class {
    rule: Rule,
    /// Numbers of the ranks in the job.
    ranks: Vec<usize>,
    history: History,
    /// Logarithms of own times as they are, where one rank can move the median of the others.
    absolute: Option<History>,
    recent: Recent,
    stalls: Stalls,
    noise: Noise,
    /// Sums of the block in progress: of relative own times, of their absolute logarithms, and of
    /// seconds by kind.
    relative: Vec<f64>,
    logarithms: Vec<f64>,
    kinds: Vec<Kinds>,
    /// Seconds by kind of the last blocks.
    kinds_of_blocks: Vec<Kinds>,
    named: Vec<Option<Named>>,
    /// Number of the block from which a rank's windows begin: the one at which it was last well.
    fresh_from: Vec<usize>,
    /// Known excess of each rank over the others, by its device's pace.
    paces: Vec<Option<f64>>,
    scratch: Vec<f64>,
}

impl Class {
    pub(super) fn new(ranks: Vec<usize>, rule: Rule) -> Self {
        let count = ranks.len();
        let has_few = count < RANKS_WITH_SPREAD;
        Self {
            rule,
            ranks,
            history: History::new(count),
            absolute: has_few.then(|| History::new(count)),
            recent: Recent::new(count),
            stalls: Stalls::new(count),
            noise: Noise::default(),
            relative: vec![0.0; count],
            logarithms: vec![0.0; count],
            kinds: vec![Kinds::default(); count],
            kinds_of_blocks: vec![Kinds::default(); count * BLOCKS_OF_KINDS],
            named: vec![None; count],
            fresh_from: vec![0; count],
            paces: vec![None; count],
            scratch: Vec::with_capacity(count),
        }
    }

    /// Sets the seconds that a step is known to take each rank of the job; `None` where that is not
    /// known.
    pub(super) fn set_paces(&mut self, seconds: &[Option<f64>]) {
        let pace = |rank: &usize| seconds[*rank].map(libm::log);
        let paces: Vec<Option<f64>> = self.ranks.iter().map(pace).collect();
        let mut known: Vec<f64> = paces.iter().flatten().copied().collect();
        // A median of few of many is not theirs.
        if known.len() < 2 || 2 * known.len() < paces.len() {
            return;
        }
        known.sort_unstable_by(f64::total_cmp);
        let relative = |own: f64| own - median_without(&known, own);
        self.paces = paces.into_iter().map(|own| own.map(relative)).collect();
    }

    /// Returns whether a rank is slow now.
    pub(super) fn has_slow_ranks(&self) -> bool {
        self.named.iter().any(Option::is_some)
    }

    /// Adds the ranks' times in a step.
    pub(super) fn add(&mut self, step: &Step<'_>) {
        let reference = self.reference(step);
        self.recent.push(step.slowest);
        for (index, &rank) in self.ranks.iter().enumerate() {
            let own = step.logarithms[rank];
            let relative = own - reference.unwrap_or_else(|| median_without(&self.scratch, own));
            self.relative[index] += relative;
            self.logarithms[index] += own;
            self.recent.set(index, relative);
            self.stalls.add(index, relative);
            let seconds = step.times[rank].own.by_kind();
            self.kinds[index].iter_mut().zip(seconds).for_each(|(sum, it)| *sum += it as f32);
        }
    }

    /// Returns the logarithm that all ranks are compared with: the median of a large class, and for
    /// a class of one that of all other ranks. For other classes returns `None`, and leaves the
    /// logarithms of all ranks in order in the scratch.
    fn reference(&mut self, step: &Step<'_>) -> Option<f64> {
        self.scratch.clear();
        if let [only] = self.ranks[..] {
            let (before, others) = step.logarithms.split_at(only);
            self.scratch.extend(before.iter().chain(&others[1..]));
            return Some(median_of(&mut self.scratch));
        }
        self.scratch.extend(self.ranks.iter().map(|rank| step.logarithms[*rank]));
        if self.ranks.len() >= RANKS_WITH_ONE_MEDIAN {
            return Some(median_of(&mut self.scratch));
        }
        self.scratch.sort_unstable_by(f64::total_cmp);
        None
    }

    /// Ends a block, and returns ranks that are slow since then, and those that no longer are.
    pub(super) fn end_block(&mut self, end: End) -> Vec<Straggler> {
        self.push(end.steps as f64);
        self.stalls.end_block(end.steps);
        let (count, blocks) = (self.ranks.len(), self.history.count());
        if Noise::is_due(blocks) {
            self.noise = Noise::of(&self.history, count);
        }
        let mut found = self.well(end.step);
        if self.history.len() >= WINDOWS[0] && self.noise.block > 0.0 {
            found.extend(self.slow(end));
        }
        found
    }

    /// Moves the block in progress to those that are kept.
    fn push(&mut self, steps: f64) {
        let block = self.history.count() % BLOCKS_OF_KINDS * self.ranks.len();
        self.kinds_of_blocks[block..block + self.ranks.len()].copy_from_slice(&self.kinds);
        self.kinds.fill(Kinds::default());
        self.history.push(self.relative.iter().map(|sum| sum / steps));
        self.relative.fill(0.0);
        if let Some(absolute) = &mut self.absolute {
            absolute.push(self.logarithms.iter().map(|sum| sum / steps));
        }
        self.logarithms.fill(0.0);
    }

    /// Names ranks that are slow.
    fn slow(&mut self, end: End) -> Vec<Straggler> {
        let count = self.ranks.len();
        let test = Test::new(&self.history, &self.rule, self.noise, count, end.chance)
            .with_absolute(self.absolute.as_ref());
        let mut found = Vec::new();
        for index in 0..count {
            if self.named[index].is_some() {
                continue;
            }
            let fresh = self.history.count() - self.fresh_from[index];
            let by_windows = test.slow(index, self.paces[index], fresh);
            let by_stalls = || self.stalls.slow(index, end.chance, &self.rule);
            let without_stalls = by_windows.is_none().then(|| self.stalls.blocks_until_well(index));
            let Some(slow) = by_windows.or_else(by_stalls) else { continue };
            let straggler = self.straggler(index, slow, end, without_stalls.is_some());
            let at_block = self.history.count();
            found.push((index, Named { straggler, slow, at_block, without_stalls }));
        }
        let named = |(index, named): (usize, Named)| {
            self.named[index] = Some(named);
            named.straggler
        };
        found.into_iter().map(named).collect()
    }

    /// Returns the ranks that are no longer slow.
    fn well(&mut self, step: u64) -> Vec<Straggler> {
        let mut found = Vec::new();
        for index in 0..self.ranks.len() {
            if let Some(named) = self.named[index].filter(|named| self.is_well(index, named)) {
                self.named[index] = None;
                self.fresh_from[index] = self.history.count();
                found.push(Straggler { until_step: Some(step), ..named.straggler });
            }
        }
        if !found.is_empty() {
            // Of all ranks: their numbers are compared with each other.
            self.stalls = Stalls::new(self.ranks.len());
        }
        found
    }

    fn is_well(&self, index: usize, named: &Named) -> bool {
        let since = self.history.count() - named.at_block;
        if let Some(blocks) = named.without_stalls {
            return since >= blocks && self.stalls.are_over(index, blocks);
        }
        let is_long_enough = since >= named.slow.blocks_until_well();
        is_long_enough && named.slow.is_over(self.history.of_rank(index))
    }

    fn straggler(&self, index: usize, slow: Slow, end: End, has_stalls: bool) -> Straggler {
        let steps = slow.blocks * end.steps;
        let pattern = if has_stalls {
            Pattern::Stalls
        } else if self.recent.is_intermittent(index, slow.level, steps) {
            Pattern::Intermittent
        } else {
            Pattern::Steady
        };
        let share = |excess: f64| libm::expm1(excess);
        Straggler {
            rank: self.ranks[index],
            basis: Some(slow.basis),
            kind: self.kind(index, slow.blocks),
            pattern: Some(pattern),
            slower_share: share(slow.excess),
            low: Some(share(slow.excess - 2.0 * slow.error)),
            high: Some(share(slow.excess + 2.0 * slow.error)),
            job_gain_share: Some(self.recent.gain_share(self.ranks[index], steps)),
            z_score: slow.z_score,
            since_step: end.since_step(slow.blocks),
            until_step: None,
        }
    }

    /// Returns the kind of time with the largest excess over the median of the others.
    fn kind(&self, index: usize, blocks: usize) -> Kind {
        let count = self.ranks.len();
        let blocks = blocks.min(BLOCKS_OF_KINDS).min(self.history.len());
        let excess = |kind: usize| -> f64 {
            let of_block = |back: usize| {
                let block = (self.history.count() - 1 - back) % BLOCKS_OF_KINDS * count;
                let rows = &self.kinds_of_blocks[block..block + count];
                let others = rows.iter().enumerate().filter(|(other, _)| *other != index);
                let mut others: Vec<f64> =
                    others.map(|(_, times)| f64::from(times[kind])).collect();
                f64::from(rows[index][kind]) - median_of(&mut others)
            };
            (0..blocks).map(of_block).sum()
        };
        let most = (0..Kind::ALL.len()).max_by(|a, b| excess(*a).total_cmp(&excess(*b)));
        most.map_or(Kind::Compute, |kind| Kind::ALL[kind])
    }
}

/// Returns the median of values in order without one of them.
fn median_without(sorted: &[f64], value: f64) -> f64 {
    let position = sorted.partition_point(|it| *it < value);
    let other = |index: usize| sorted[index + usize::from(index >= position)];
    let others = sorted.len() - 1;
    let upper = other(others / 2);
    if others.is_multiple_of(2) { (other(others / 2 - 1) + upper) / 2.0 } else { upper }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_the_others_are_those_of_lists_without_a_value() {
        for values in [vec![2.0, 1.0], vec![3.0, 1.0, 2.0], vec![4.0, 4.0, 1.0, 9.0, 7.0, 4.0]] {
            let mut sorted = values.clone();
            sorted.sort_by(f64::total_cmp);
            for index in 0..values.len() {
                let mut others = values.clone();
                let value = others.remove(index);
                assert_eq!(median_without(&sorted, value), median_of(&mut others), "{values:?}");
            }
        }
    }
}
