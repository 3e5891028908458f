//! Ranks that do the same work on the same kind of device, and which of them are slow.

use super::history::History;
use super::noise::{Noise, RANKS_WITH_SPREAD, WINDOWS};
use super::stalls::Stalls;
use super::window::{Slow, Test};
use super::{Basis, OwnTime, Rule};
use crate::statistics::median_of;
use crate::{Kind, student};

/// Blocks at the end over which a named rank must be well again.
const BLOCKS_WELL: usize = 6;

/// Share of jobs in which a natural outlier among the ranks is named.
const OUTLIERS: f64 = 0.01;

/// Ranks from which the median of the others is that of all.
const RANKS_WITH_ONE_MEDIAN: usize = 32;

/// Blocks over which the kind of the excess is found.
const BLOCKS_OF_KINDS: usize = 16;

/// Tests of a rank after a block: each window by two bases.
const TESTS: f64 = 2.0 * WINDOWS.len() as f64;

/// A rank that is slow, or no longer is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Finding {
    /// Number of the rank in its class.
    pub rank: usize,
    /// What it is compared with.
    pub basis: Basis,
    /// Kind of work with the largest excess.
    pub kind: Kind,
    /// Excess of its own time, as a share, and its interval of two standard errors.
    pub slower_share: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Excess over the gate in standard errors.
    pub z_score: f64,
    /// First step in which it was slow, to a few blocks.
    pub since_step: u64,
    /// Step from which it no longer is; `None` while it is slow.
    pub until_step: Option<u64>,
}

/// A rank that was named.
#[derive(Debug, Clone, Copy)]
struct Named {
    finding: Finding,
    /// Level that counts as healthy, as a logarithm.
    level: f64,
    /// Number of the block after which it was named.
    at_block: usize,
}

/// Detector for the ranks of one class.
#[derive(Debug)]
pub struct Class {
    rule: Rule,
    ranks: usize,
    history: History,
    stalls: Stalls,
    noise: Noise,
    /// Steps of the block in progress.
    steps: usize,
    /// First step of the run, and seconds of the steps since.
    first_step: Option<u64>,
    seconds: f64,
    steps_taken: u64,
    /// Sums of the block in progress: of relative own times, and of seconds by kind.
    relative: Vec<f64>,
    kinds: Vec<[f32; Kind::ALL.len()]>,
    /// Seconds by kind of the last blocks.
    kinds_of_blocks: Vec<[f32; Kind::ALL.len()]>,
    named: Vec<Option<Named>>,
    /// Known excess of each rank over the others, by its device's pace.
    offsets: Vec<Option<f64>>,
    scratch: Vec<f64>,
}

impl Class {
    /// A detector for so many ranks. A single one has no others, and is never named.
    pub fn new(ranks: usize, rule: Rule) -> Self {
        Self {
            rule,
            ranks,
            history: History::new(ranks),
            stalls: Stalls::new(ranks),
            noise: Noise::default(),
            steps: 0,
            first_step: None,
            seconds: 0.0,
            steps_taken: 0,
            relative: vec![0.0; ranks],
            kinds: vec![Default::default(); ranks],
            kinds_of_blocks: vec![Default::default(); ranks * BLOCKS_OF_KINDS],
            named: vec![None; ranks],
            offsets: vec![None; ranks],
            scratch: Vec::with_capacity(ranks),
        }
    }

    /// Sets the seconds that a step is known to take each rank's device, by an earlier measurement
    /// of the same work; `None` where that is not known.
    #[must_use]
    pub fn with_paces(mut self, seconds: &[Option<f64>]) -> Self {
        let logarithm = |seconds: &Option<f64>| seconds.map(libm::log);
        let paces: Vec<Option<f64>> = seconds.iter().map(logarithm).collect();
        for rank in 0..self.ranks {
            let others = (0..self.ranks).filter(|other| *other != rank);
            let others: Option<Vec<f64>> = others.map(|other| paces[other]).collect();
            self.offsets[rank] =
                paces[rank].zip(others).map(|(own, mut others)| own - median_of(&mut others));
        }
        self
    }

    /// Takes the own times of all ranks in a step of so many seconds. At the end of a block,
    /// returns ranks that are slow since then, and those that no longer are.
    pub fn take(&mut self, step: u64, seconds: f64, times: &[OwnTime]) -> Vec<Finding> {
        if self.ranks < 2 || times.iter().any(|time| time.total() <= 0.0) {
            return Vec::new(); // the first step: none is known yet
        }
        self.first_step.get_or_insert(step);
        self.seconds += seconds;
        self.steps_taken += 1;
        self.add(times);
        if self.steps < self.rule.block_steps {
            return Vec::new();
        }
        self.end_block();
        self.judge(step)
    }

    fn add(&mut self, times: &[OwnTime]) {
        let logarithms: Vec<f64> = times.iter().map(|time| libm::log(time.total())).collect();
        let of_all = (self.ranks >= RANKS_WITH_ONE_MEDIAN).then(|| {
            self.scratch.clone_from(&logarithms);
            median_of(&mut self.scratch)
        });
        for (rank, own) in logarithms.iter().enumerate() {
            let median = of_all.unwrap_or_else(|| {
                self.scratch.clear();
                self.scratch.extend(&logarithms[..rank]);
                self.scratch.extend(&logarithms[rank + 1..]);
                median_of(&mut self.scratch)
            });
            let relative = own - median;
            self.relative[rank] += relative;
            self.stalls.add(rank, relative);
            let sums = self.kinds[rank].iter_mut().zip(times[rank].by_kind());
            sums.for_each(|(sum, (_, seconds))| *sum += seconds as f32);
        }
        self.steps += 1;
    }

    fn end_block(&mut self) {
        let steps = self.steps as f64;
        let block = self.history.count() % BLOCKS_OF_KINDS * self.ranks;
        self.kinds_of_blocks[block..block + self.ranks].copy_from_slice(&self.kinds);
        self.kinds.fill(Default::default());
        self.history.push(self.relative.iter().map(|sum| sum / steps));
        self.relative.fill(0.0);
        self.stalls.end_block(self.steps);
        self.steps = 0;
        let blocks = self.history.count();
        if blocks < 32 || blocks.is_multiple_of(8) || self.ranks < RANKS_WITH_SPREAD {
            self.noise = Noise::of(&self.history, self.ranks);
        }
    }

    fn judge(&mut self, step: u64) -> Vec<Finding> {
        if self.history.len() < WINDOWS[0] || self.noise.block <= 0.0 {
            return Vec::new();
        }
        let block_hours =
            self.seconds / self.steps_taken as f64 * self.rule.block_steps as f64 / 3600.0;
        let chance = self.rule.false_per_1000h / 1000.0 * block_hours / (TESTS * self.ranks as f64);
        let independent = if self.ranks <= 8 { self.ranks - 1 } else { self.ranks };
        let freedom = 0.25 * independent as f64 * (self.history.len() - 1) as f64;
        let among = 2.0 * OUTLIERS / self.ranks as f64;
        let test = Test {
            history: &self.history,
            rule: &self.rule,
            noise: self.noise,
            ranks: self.ranks,
            z_least: student::quantile(2.0 * chance, freedom.max(2.0)),
            z_among_ranks: student::quantile(among, 1e6),
        };
        let slow: Vec<Slow> = (0..self.ranks)
            .filter(|rank| self.named[*rank].is_none())
            .filter_map(|rank| {
                let slow = test.slow(rank, self.offsets[rank]);
                slow.or_else(|| self.stalls.slow(rank, chance, &self.rule))
            })
            .collect();
        let mut findings = self.well(step);
        findings.extend(slow.into_iter().map(|slow| self.name(step, slow)));
        findings
    }

    /// Returns the ranks that are no longer slow.
    fn well(&mut self, step: u64) -> Vec<Finding> {
        let mut findings = Vec::new();
        for rank in 0..self.ranks {
            if let Some(named) = self.named[rank].filter(|named| self.is_well(rank, named)) {
                self.named[rank] = None;
                findings.push(Finding { until_step: Some(step), ..named.finding });
            }
        }
        findings
    }

    fn name(&mut self, step: u64, slow: Slow) -> Finding {
        let finding = self.finding(step, slow);
        let (level, at_block) = (self.level(slow), self.history.count());
        self.named[slow.rank] = Some(Named { finding, level, at_block });
        finding
    }

    /// Returns whether a named rank is no longer slow.
    fn is_well(&self, rank: usize, named: &Named) -> bool {
        let last = || self.history.of_rank(rank).take(BLOCKS_WELL);
        let mean = last().sum::<f64>() / BLOCKS_WELL as f64;
        let is_long_enough = self.history.count() >= named.at_block + BLOCKS_WELL;
        is_long_enough && mean - named.level < 0.5 * self.rule.least_slower
    }

    /// The level from which the excess counts.
    fn level(&self, slow: Slow) -> f64 {
        match slow.basis {
            Basis::Change => {
                let mut before: Vec<f64> =
                    self.history.of_rank(slow.rank).skip(slow.blocks).collect();
                median_of(&mut before)
            }
            Basis::Pace => self.offsets[slow.rank].unwrap_or(0.0),
            Basis::Peers | Basis::Few | Basis::Stalls => 0.0,
        }
    }

    fn finding(&self, step: u64, slow: Slow) -> Finding {
        let steps = (slow.blocks * self.rule.block_steps) as u64;
        let first = self.first_step.unwrap_or(step);
        Finding {
            rank: slow.rank,
            basis: slow.basis,
            kind: self.kind(slow.rank, slow.blocks),
            slower_share: libm::expm1(slow.excess),
            low: libm::expm1(slow.excess - 2.0 * slow.error),
            high: libm::expm1(slow.excess + 2.0 * slow.error),
            z_score: slow.z_score,
            since_step: (step + 1).saturating_sub(steps).max(first),
            until_step: None,
        }
    }

    /// Returns the kind of time with the largest excess over the median of the others.
    fn kind(&self, rank: usize, blocks: usize) -> Kind {
        let blocks = blocks.min(BLOCKS_OF_KINDS).min(self.history.len());
        let excess = |kind: usize| -> f64 {
            let of_block = |back: usize| {
                let block = (self.history.count() - 1 - back) % BLOCKS_OF_KINDS * self.ranks;
                let rows = &self.kinds_of_blocks[block..block + self.ranks];
                let others = rows.iter().enumerate().filter(|(other, _)| *other != rank);
                let mut others: Vec<f64> =
                    others.map(|(_, times)| f64::from(times[kind])).collect();
                f64::from(rows[rank][kind]) - median_of(&mut others)
            };
            (0..blocks).map(of_block).sum()
        };
        let most = (0..Kind::ALL.len()).max_by(|a, b| excess(*a).total_cmp(&excess(*b)));
        most.map_or(Kind::Compute, |kind| Kind::ALL[kind])
    }
}
