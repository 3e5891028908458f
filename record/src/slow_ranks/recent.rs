//! The last steps one by one, for what a block does not show of a rank that is slow.

use crate::statistics::median_of;

/// Steps that are kept.
const STEPS_MAX: usize = 160;

/// The two longest own times of a step in a job: the slowest rank's delays all others.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Slowest {
    rank: usize,
    seconds: f64,
    second_seconds: f64,
}

impl Slowest {
    /// Finds them in the own times of all ranks.
    pub(super) fn of(seconds: impl Iterator<Item = f64>) -> Self {
        let mut slowest = Self::default();
        for (rank, seconds) in seconds.enumerate() {
            if seconds > slowest.seconds {
                slowest = Self { rank, seconds, second_seconds: slowest.seconds };
            } else {
                slowest.second_seconds = slowest.second_seconds.max(seconds);
            }
        }
        slowest
    }

    /// Share of the longest own time that the job would gain if a rank took no time.
    fn gain_share(&self, rank: usize) -> f64 {
        if rank == self.rank { 1.0 - self.second_seconds / self.seconds } else { 0.0 }
    }
}

/// Ring of steps.
#[derive(Debug)]
pub(super) struct Recent {
    ranks: usize,
    /// By step modulo [`STEPS_MAX`], and in each by rank: relative own times, as logarithms.
    relative: Vec<f32>,
    slowest: Vec<Slowest>,
    count: usize,
}

impl Recent {
    pub(super) fn new(ranks: usize) -> Self {
        let slowest = vec![Slowest::default(); STEPS_MAX];
        Self { ranks, relative: vec![0.0; ranks * STEPS_MAX], slowest, count: 0 }
    }

    /// Begins a step.
    pub(super) fn push(&mut self, slowest: Slowest) {
        self.slowest[self.count % STEPS_MAX] = slowest;
        self.count += 1;
    }

    /// Sets the relative own time of a rank in the newest step.
    pub(super) fn set(&mut self, rank: usize, relative: f64) {
        self.relative[(self.count - 1) % STEPS_MAX * self.ranks + rank] = relative as f32;
    }

    /// Positions of the last steps.
    fn last(&self, steps: usize) -> impl Iterator<Item = usize> + use<> {
        let count = self.count;
        (0..steps.min(STEPS_MAX).min(count)).map(move |back| (count - 1 - back) % STEPS_MAX)
    }

    /// Returns the mean share of the last steps that the job would gain without a rank, by its
    /// number in the job.
    pub(super) fn gain_share(&self, rank: usize, steps: usize) -> f64 {
        let gains = self.last(steps).map(|step| self.slowest[step].gain_share(rank));
        gains.sum::<f64>() / self.last(steps).count().max(1) as f64
    }

    /// Returns whether a rank's excess over a level comes from fewer than half of the last steps.
    pub(super) fn is_intermittent(&self, rank: usize, level: f64, steps: usize) -> bool {
        let of_step = |step: usize| f64::from(self.relative[step * self.ranks + rank]) - level;
        let mut relative: Vec<f64> = self.last(steps).map(of_step).collect();
        let mean = relative.iter().sum::<f64>() / relative.len().max(1) as f64;
        median_of(&mut relative) < 0.5 * mean
    }
}
