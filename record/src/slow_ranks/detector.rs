//! Detector of a job: its classes of ranks, and what all ranks share.

use super::Rule;
use super::class::{Class, Step};
use super::notice::{Notice, SharedPart};
use super::own_time::StepTimes;
use super::recent::Slowest;
use super::series::{Change, End, Series};
use super::window::WINDOWS;
use crate::Straggler;
use crate::statistics::median_of;

/// Changes that the end of a block shows.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Findings {
    /// Ranks that are slow, or no longer are.
    pub stragglers: Vec<Straggler>,
    /// Parts that are slower for all ranks, or no longer are.
    pub notices: Vec<Notice>,
}

/// Tests of a rank after a block: each window by three bases, and stalls.
const TESTS: usize = 3 * WINDOWS.len() + 1;

/// Shortest wait for communication whose growth counts.
const LEAST_WAIT_SECONDS: f64 = 1e-6;

/// Detector of the slow ranks of a job. Memory is allocated once, beside that of a test.
#[derive(Debug)]
pub struct Detector {
    rule: Rule,
    ranks: usize,
    classes: Vec<Class>,
    network: Series,
    own_time: Series,
    /// Steps of the block in progress.
    steps: usize,
    /// Seconds of the steps so far, and their number.
    seconds: f64,
    steps_taken: u64,
    /// Times of the ranks in a step, and the logarithms of their own ones.
    times: Vec<StepTimes>,
    logarithms: Vec<f64>,
    scratch: Vec<f64>,
}

impl Detector {
    /// A detector for classes of ranks, each a list of numbers in the job. A job of one rank, or
    /// without steps of a block, has none.
    pub fn new(classes: Vec<Vec<usize>>, rule: Rule) -> Self {
        let ranks = classes.iter().map(Vec::len).sum();
        let is_off = ranks < 2 || rule.block_steps == 0;
        let classes = if is_off { Vec::new() } else { classes };
        Self {
            rule,
            ranks,
            classes: classes.into_iter().map(|ranks| Class::new(ranks, rule)).collect(),
            network: Series::new(),
            own_time: Series::new(),
            steps: 0,
            seconds: 0.0,
            steps_taken: 0,
            times: Vec::with_capacity(ranks),
            logarithms: Vec::with_capacity(ranks),
            scratch: Vec::with_capacity(ranks),
        }
    }

    /// Sets the seconds that a step is known to take each rank's device, by an earlier measurement
    /// of the same work; `None` where that is not known.
    #[must_use]
    pub fn with_paces(mut self, seconds: &[Option<f64>]) -> Self {
        self.classes.iter_mut().for_each(|class| class.set_paces(seconds));
        self
    }

    /// Takes the times of all ranks in a step, by rank, which began so many seconds after the one
    /// before: false names are bounded by the hour. Returns changes at the end of a block.
    ///
    /// # Panics
    /// Unless there are as many as ranks.
    pub fn take(
        &mut self,
        number: u64,
        seconds: f64,
        times: impl IntoIterator<Item = StepTimes>,
    ) -> Findings {
        if self.classes.is_empty() {
            return Findings::default();
        }
        let mut kept = std::mem::take(&mut self.times);
        kept.clear();
        kept.extend(times);
        let findings = self.take_step(number, seconds, &kept);
        self.times = kept;
        findings
    }

    fn take_step(&mut self, number: u64, seconds: f64, times: &[StepTimes]) -> Findings {
        assert_eq!(times.len(), self.ranks, "times of every rank");
        if times.iter().any(|times| times.own.total() <= 0.0) {
            return Findings::default(); // the first step: none is known yet
        }
        self.logarithms.clear();
        self.logarithms.extend(times.iter().map(|times| libm::log(times.own.total())));
        self.add_shared(times);
        self.seconds += seconds;
        self.steps_taken += 1;
        self.steps += 1;
        let slowest = Slowest::of(times.iter().map(|times| times.own.total()));
        let step = Step { times, logarithms: &self.logarithms, slowest };
        self.classes.iter_mut().for_each(|class| class.add(&step));
        if self.steps < self.rule.block_steps {
            return Findings::default();
        }
        self.end_block(number)
    }

    /// Adds what all ranks share: the wait of the one that waits least, and the median own time.
    fn add_shared(&mut self, times: &[StepTimes]) {
        self.scratch.clone_from(&self.logarithms);
        let median = median_of(&mut self.scratch);
        let exposed = times.iter().map(|times| times.exposed_seconds);
        let least = exposed.fold(f64::INFINITY, f64::min).max(0.0);
        let share = libm::log1p(least / libm::exp(median));
        self.network.add(share, libm::log(least.max(LEAST_WAIT_SECONDS)));
        self.own_time.add(median, median);
    }

    fn end_block(&mut self, step: u64) -> Findings {
        let steps = std::mem::take(&mut self.steps);
        let block_seconds = self.seconds / self.steps_taken as f64 * steps as f64;
        let per_block = self.rule.false_per_1000h / 1000.0 * block_seconds / 3600.0;
        let chance = per_block / TESTS as f64;
        let of_rank = End { step, steps, chance: chance / self.ranks as f64 };
        let of_class = |class: &mut Class| class.end_block(of_rank);
        let stragglers: Vec<Straggler> = self.classes.iter_mut().flat_map(of_class).collect();
        let is_explained = self.classes.iter().any(Class::has_slow_ranks);
        let end = End { step, steps, chance };
        let changed = |series: &mut Series| series.end_block(end, &self.rule, is_explained);
        let network = changed(&mut self.network).map(|it| notice(SharedPart::Network, it));
        let own_time = changed(&mut self.own_time).map(|it| notice(SharedPart::OwnTime, it));
        Findings { stragglers, notices: network.into_iter().chain(own_time).collect() }
    }
}

fn notice(part: SharedPart, change: Change) -> Notice {
    let Change { slow, since_step, until_step } = change;
    Notice { part, slower_share: libm::expm1(slow.excess), since_step, until_step }
}
