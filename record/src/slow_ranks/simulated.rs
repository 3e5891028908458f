//! Detection in simulated jobs: steps that depend on the one before, ranks that differ by nature,
//! and a slowdown of one.

use std::fmt::Write;

use rayon::prelude::*;

use super::{Detector, OwnTime, Rule, StepTimes};
use crate::fixtures::step_times::{assert_documented, percent};
use crate::phase::{ByPhase, PhaseTimes};
use crate::{Random, Straggler};

/// A job and its slow rank.
#[derive(Debug, Clone, Copy)]
pub(super) struct Job {
    pub(super) ranks: usize,
    pub(super) steps: u64,
    /// Coefficient of variation of a rank's steps, and their correlation with the step before.
    pub(super) of_steps: f64,
    pub(super) correlation: f64,
    /// True if the noise has the tails of Student's t with three degrees of freedom.
    pub(super) has_tails: bool,
    /// Coefficient of variation between ranks.
    pub(super) of_ranks: f64,
    /// Excess of the slow rank from a step on, as a mean over all steps: in every n-th step it is
    /// n times as much.
    pub(super) slower: f64,
    pub(super) from: u64,
    pub(super) every: u64,
}

pub(super) const JOB: Job = Job {
    ranks: 64,
    steps: 2000,
    of_steps: 0.02,
    correlation: 0.7,
    has_tails: false,
    of_ranks: 0.003,
    slower: 0.05,
    from: 1,
    every: 1,
};

/// Result of a job.
#[derive(Debug, Clone, Copy, Default)]
struct Outcome {
    /// Steps until the slow rank was named.
    after: Option<u64>,
    /// True if another rank was named, or the slow one before.
    is_wrong: bool,
}

pub(super) fn step_times(seconds: f64) -> StepTimes {
    let phases = PhaseTimes { forward: (seconds * 1e9) as u64, ..ByPhase::default() };
    OwnTime::of_step(&phases, 0).into()
}

impl Job {
    /// The slow rank.
    pub(super) fn slow_rank(self, seed: u64) -> usize {
        seed as usize % self.ranks
    }

    /// Calls `each` with every straggler, and the step; it returns whether the job goes on.
    pub(super) fn run(self, seed: u64, mut each: impl FnMut(u64, &Straggler) -> bool) {
        let mut noise = Random(seed);
        let paces: Vec<f64> =
            (0..self.ranks).map(|_| 1.0 + self.of_ranks * noise.normal()).collect();
        let mut states: Vec<f64> = (0..self.ranks).map(|_| noise.normal()).collect();
        let mut detector = Detector::new(vec![(0..self.ranks).collect()], Rule::default());
        if self.ranks < 8 {
            let known: Vec<_> = paces.iter().map(|pace| Some(*pace)).collect();
            detector = detector.with_paces(&known);
        }
        let rest = (1.0 - self.correlation * self.correlation).sqrt();
        let slow = self.slow_rank(seed);
        for step in 1..=self.steps {
            let drift = 1.0 + 0.05 * step as f64 / self.steps as f64;
            let times = (0..self.ranks).map(|rank| {
                let added = if self.has_tails { tailed(&mut noise) } else { noise.normal() };
                states[rank] = self.correlation * states[rank] + rest * added;
                let mut seconds = (1.0 + self.of_steps * states[rank]).max(0.2) * paces[rank];
                if rank == slow && step >= self.from && step.is_multiple_of(self.every) {
                    seconds *= 1.0 + self.slower * self.every as f64;
                }
                step_times(seconds * drift)
            });
            let times: Vec<StepTimes> = times.collect();
            if !detector.take(step, 1.0, times).stragglers.iter().all(|found| each(step, found)) {
                return;
            }
        }
    }

    fn outcome(self, seed: u64) -> Outcome {
        let slow = self.slow_rank(seed);
        let mut outcome = Outcome::default();
        self.run(seed, |step, found| {
            let is_it = self.slower > 0.0 && found.rank == slow && step >= self.from;
            if is_it {
                outcome.after.get_or_insert(step - self.from + 1);
            } else if found.until_step.is_none() {
                outcome.is_wrong = true;
            }
            outcome.after.is_none()
        });
        outcome
    }
}

/// Student's t with three degrees of freedom, of variance 1.
fn tailed(noise: &mut Random) -> f64 {
    let squares: f64 = (0..3).map(|_| noise.normal().powi(2)).sum();
    noise.normal() / (squares / 3.0).sqrt() / 3.0_f64.sqrt()
}

/// Counts over jobs.
#[derive(Debug)]
struct Summary {
    found: usize,
    /// Median and 95th percentile of the steps until it was found, over all jobs.
    median: Option<u64>,
    most: Option<u64>,
    wrong: usize,
}

impl Summary {
    fn of(job: Job, jobs: u64) -> Self {
        let outcomes: Vec<Outcome> =
            (0..jobs).into_par_iter().map(|seed| job.outcome(seed)).collect();
        let mut after: Vec<u64> = outcomes.iter().filter_map(|outcome| outcome.after).collect();
        after.sort_unstable();
        let at = |share: f64| after.get((share * jobs as f64).ceil() as usize - 1).copied();
        let wrong = outcomes.iter().filter(|outcome| outcome.is_wrong).count();
        Self { found: after.len(), median: at(0.5), most: at(0.95), wrong }
    }
}

/// Returns the table of jobs with a slow rank.
fn table() -> String {
    let from_start = |ranks, of_steps, jobs| (Job { ranks, of_steps, ..JOB }, jobs);
    let mid_run =
        |ranks, jobs| (Job { ranks, of_ranks: 0.01, from: 401, steps: 2400, ..JOB }, jobs);
    let other = |job: Job| (job, 200);
    let rows = [
        from_start(2, 0.005, 200),
        from_start(2, 0.02, 200),
        from_start(4, 0.02, 200),
        from_start(8, 0.005, 200),
        from_start(8, 0.02, 200),
        from_start(64, 0.005, 200),
        from_start(64, 0.02, 200),
        from_start(512, 0.02, 50),
        (Job { ranks: 4096, steps: 500, ..JOB }, 4),
        mid_run(2, 200),
        mid_run(4, 200),
        mid_run(8, 200),
        mid_run(64, 100),
        (Job { ranks: 4, of_steps: 0.08, steps: 6000, ..JOB }, 40),
        (Job { ranks: 8, of_steps: 0.08, steps: 6000, ..JOB }, 40),
        (Job { of_steps: 0.08, steps: 5000, ..JOB }, 20),
        (Job { correlation: 0.9, ..JOB }, 50),
        other(Job { slower: 0.04, ..JOB }),
        (Job { slower: 0.03, steps: 3000, ..JOB }, 50),
        other(Job { slower: 0.02, ..JOB }),
        other(Job { every: 10, ..JOB }),
        other(Job { every: 25, ..JOB }),
        other(Job { has_tails: true, ..JOB }),
    ];
    let mut table = String::new();
    table += "| ranks | steps vary by | ranks by | one is slow by | from step | jobs | found | \
              steps: median | 95th percentile | wrong |\n";
    table += &"| ---: ".repeat(10);
    table += "|\n";
    for (job, jobs) in rows {
        let Job { ranks, of_steps, of_ranks, slower, from, every, .. } = job;
        let Summary { found, median, most, wrong } = Summary::of(job, jobs);
        let steps = |steps: Option<u64>| steps.map_or("-".to_owned(), |steps| steps.to_string());
        let often = if every > 1 { format!(", in every {every}th step") } else { String::new() };
        let mut noise = if job.has_tails { ", t3".to_owned() } else { String::new() };
        if job.correlation != JOB.correlation {
            noise = format!(", correlation {}", job.correlation);
        }
        let (of_steps, of_ranks) = (100.0 * of_steps, 100.0 * of_ranks);
        writeln!(
            table,
            "| {ranks} | {of_steps} %{noise} | {of_ranks} % | {}{often} | {from} | {jobs} | \
             {found} | {} | {} | {wrong} |",
            percent(slower),
            steps(median),
            steps(most),
        )
        .unwrap();
    }
    table
}

/// Compares the table. To rewrite it:
/// `YARDSTICK_UPDATE_GOLDEN=1 cargo test --profile testing --workspace simulated::`.
#[test]
fn the_documented_table_is_what_is_found() {
    assert_documented("simulated", &table());
}

/// Hours of each row in which no rank is slow; `make soak-stragglers` has a thousand.
fn hours() -> u64 {
    let hours = std::env::var("YARDSTICK_SOAK_JOB_HOURS").ok();
    hours.map_or(20, |hours| hours.parse().unwrap())
}

#[test]
#[allow(clippy::print_stdout, reason = "the rates of a soak")]
fn healthy_ranks_are_not_named() {
    const STEPS: u64 = 3600; // an hour
    let healthy = Job { slower: 0.0, steps: STEPS, ..JOB };
    let rows = [
        healthy,
        Job { ranks: 2, ..healthy },
        Job { ranks: 4, of_steps: 0.08, ..healthy },
        Job { ranks: 8, correlation: 0.9, ..healthy },
        Job { ranks: 8, of_steps: 0.08, has_tails: true, ..healthy },
    ];
    for job in rows {
        let Summary { wrong, .. } = Summary::of(job, hours());
        println!("{wrong} of {} job-hours with a false name: {job:?}", hours());
        // One false name in 1,000 hours is the rule; more than five have a chance of 0.06 %.
        assert!(wrong as u64 <= hours().div_ceil(1000) * 5 * u64::from(hours() >= 1000), "{job:?}");
    }
}
