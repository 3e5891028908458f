//! Detection in simulated jobs: steps that depend on the one before, ranks that differ by nature,
//! and a slowdown of one.

use super::{Class, Finding, OwnTime, Rule};
use crate::Random;
use crate::phase::{ByPhase, PhaseTimes};

/// A job and its slow rank.
#[derive(Debug, Clone, Copy)]
struct Job {
    ranks: usize,
    steps: u64,
    /// Coefficient of variation of a rank's steps, and their correlation with the step before.
    of_steps: f64,
    correlation: f64,
    /// Coefficient of variation between ranks.
    of_ranks: f64,
    /// Excess of the slow rank, from this step on, in every n-th step n times as much.
    slower: f64,
    from: u64,
    every: u64,
}

const JOB: Job = Job {
    ranks: 64,
    steps: 2000,
    of_steps: 0.02,
    correlation: 0.7,
    of_ranks: 0.003,
    slower: 0.05,
    from: 1,
    every: 1,
};

/// What was found in a job.
#[derive(Debug, Clone, Copy, Default)]
struct Outcome {
    /// Steps until the slow rank was named.
    after: Option<u64>,
    wrong: bool,
}

fn own_time(seconds: f64) -> OwnTime {
    let phases: PhaseTimes = ByPhase { forward: (seconds * 1e9) as u64, ..PhaseTimes::default() };
    OwnTime::of_step(&phases, 0)
}

impl Job {
    fn run(self, seed: u64) -> Outcome {
        let slow = seed as usize % self.ranks;
        let mut noise = Random(seed);
        let paces: Vec<f64> =
            (0..self.ranks).map(|_| 1.0 + self.of_ranks * noise.normal()).collect();
        let mut states: Vec<f64> = (0..self.ranks).map(|_| noise.normal()).collect();
        let mut class = Class::new(self.ranks, Rule::default());
        if self.ranks < 8 {
            let known: Vec<_> = paces.iter().map(|pace| Some(*pace)).collect();
            class = class.with_paces(&known);
        }
        let mut outcome = Outcome::default();
        let rest = (1.0 - self.correlation * self.correlation).sqrt();
        for step in 1..=self.steps {
            let drift = 1.0 + 0.05 * step as f64 / self.steps as f64;
            let times: Vec<OwnTime> = (0..self.ranks)
                .map(|rank| {
                    states[rank] = self.correlation * states[rank] + rest * noise.normal();
                    let mut time = (1.0 + self.of_steps * states[rank]).max(0.2) * paces[rank];
                    let is_slow = rank == slow && step >= self.from && step % self.every == 0;
                    if is_slow {
                        time *= 1.0 + self.slower * self.every as f64;
                    }
                    own_time(time * drift)
                })
                .collect();
            for Finding { rank, until_step, .. } in class.take(step, 1.0, &times) {
                if rank == slow && self.slower > 0.0 && step >= self.from {
                    outcome.after.get_or_insert(step - self.from + 1);
                } else if until_step.is_none() {
                    outcome.wrong = true;
                }
            }
            if outcome.after.is_some() {
                break;
            }
        }
        outcome
    }
}

/// Returns the share of jobs in which the slow rank was found, the median and 95th percentile of
/// the steps until then, and the number of jobs with a wrong name.
fn summary(job: Job, jobs: u64) -> (f64, Option<u64>, Option<u64>, usize) {
    let outcomes: Vec<Outcome> = (0..jobs).map(|seed| job.run(seed)).collect();
    let mut after: Vec<u64> = outcomes.iter().filter_map(|outcome| outcome.after).collect();
    after.sort_unstable();
    let at = |share: f64| after.get((share * jobs as f64).ceil() as usize - 1).copied();
    let wrong = outcomes.iter().filter(|outcome| outcome.wrong).count();
    (after.len() as f64 / jobs as f64, at(0.5), at(0.95), wrong)
}

#[test]
#[ignore = "a table"]
fn table() {
    for (ranks, of_steps, of_ranks, from, steps) in [
        (2, 0.005, 0.003, 1, 3000),
        (2, 0.02, 0.003, 1, 3000),
        (4, 0.02, 0.003, 1, 3000),
        (8, 0.005, 0.003, 1, 2000),
        (8, 0.02, 0.003, 1, 2000),
        (64, 0.005, 0.003, 1, 1000),
        (64, 0.02, 0.003, 1, 1000),
        (8, 0.02, 0.01, 401, 3000),
        (64, 0.02, 0.01, 401, 2000),
    ] {
        let job = Job { ranks, of_steps, of_ranks, from, steps, ..JOB };
        println!("{ranks} {of_steps} {of_ranks} {from}: {:?}", summary(job, 100));
    }
    for ranks in [2, 8, 64] {
        let job = Job { ranks, slower: 0.0, steps: 3600, ..JOB };
        println!("{ranks} nothing: {:?}", summary(job, 50));
    }
}
