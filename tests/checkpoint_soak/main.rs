//! Random kills and losses of small runs. They save on a tier of each node and a shared one, which
//! is a folder or an object store that has faults too; or on the disks of two or four nodes alone,
//! which keep copies of each other's files, in layouts that shard state. Each is resumed, and at
//! the end every run has the bits of an undisturbed one, or its losses where attempts add in other
//! orders.
//!
//! `make soak-checkpoints` sets `YARDSTICK_SOAK_FAULTS`, and prints tables of the outcomes.
//! `YARDSTICK_SOAK_SEED` chooses other faults.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic and tell")]
#![cfg(feature = "mpi")]

mod damage;
mod job;
mod layout;
mod shared_tier;
mod survey;
mod tally;

use std::time::Duration;

use job::{Fault, Job};
use layout::Layouts;
use models::rng::{Purpose, Stream};
use support::RunResult;
use tally::{Outcome, Tally};

/// Largest number of faults in one run.
const FAULTS_PER_RUN: usize = 8;

/// Random numbers, one after the other.
struct Random {
    stream: Stream,
    drawn: u64,
}

impl Random {
    fn new(seed: u64) -> Self {
        Self { stream: Stream::new(seed, Purpose::Fault), drawn: 0 }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.drawn += 1;
        self.stream.below(self.drawn, bound as u64) as usize
    }

    fn choose<T: Copy>(&mut self, among: &[T]) -> T {
        among[self.below(among.len())]
    }

    fn chance(&mut self) -> bool {
        self.below(2) == 0
    }

    /// Draws a moment from shortly before the first step of an attempt to its end.
    fn moment(&mut self) -> Duration {
        Duration::from_millis(300 + self.below(900) as u64)
    }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

#[test]
fn random_kills_and_losses_end_with_the_same_bits() {
    let faults = setting("YARDSTICK_SOAK_FAULTS", 6) as usize;
    let seed = setting("YARDSTICK_SOAK_SEED", 1);
    let mut random = Random::new(seed);
    let mut tally = Tally::default();
    let mut undisturbed: Vec<Option<RunResult>> = vec![None, None];
    while tally.faults() < faults {
        let kind = tally.runs / 2 % 2; // of the world size
        let world = 2 + kind;
        let expected = undisturbed[kind].get_or_insert_with(|| {
            let job = Job::on_folders(world);
            job.run_to_its_end(&mut random);
            job.result()
        });
        // Few faults are of both kinds of runs, too.
        let left = FAULTS_PER_RUN.min(faults.div_ceil(2)).min(faults - tally.faults());
        let on_objects = tally.runs % 2 == 1;
        let job = if on_objects { Job::on_object_store(world) } else { Job::on_folders(world) };
        let result = disturb(job, left, &mut random, &mut tally);
        assert!(result == *expected, "seed {seed}, run {}: other bits\n{tally}", tally.runs);
        tally.runs += 1;
    }
    println!("seed {seed}\n\n{tally}");
}

/// Largest relative difference of losses between orders of addition.
const ROUNDING: f64 = 1e-4;

#[test]
fn random_kills_of_sharded_layouts_lose_nothing_without_a_farther_tier() {
    let faults = setting("YARDSTICK_SOAK_FAULTS", 24).div_ceil(4) as usize;
    let seed = setting("YARDSTICK_SOAK_SEED", 1);
    let mut random = Random::new(seed);
    let mut tally = Tally::default();
    let undisturbed = Job::with_partners(Layouts::Hybrid, 2);
    undisturbed.run_to_its_end(&mut random);
    let expected = undisturbed.result();
    while tally.faults() < faults {
        let layouts = Layouts::ALL[tally.runs % Layouts::ALL.len()];
        let left = FAULTS_PER_RUN.min(faults.div_ceil(3)).min(faults - tally.faults());
        let ranks_per_node = 1 + tally.runs % 2;
        let job = Job::with_partners(layouts, ranks_per_node);
        let result = disturb(job, left, &mut random, &mut tally);
        let run = format!("seed {seed}, run {}, {layouts:?}, {ranks_per_node} a node", tally.runs);
        if layouts == Layouts::Any {
            assert_eq!(result.losses.len(), expected.losses.len(), "{run}");
            for (expected, found) in expected.losses.iter().zip(&result.losses) {
                let difference = expected.relative_difference(*found);
                assert!(difference < ROUNDING, "{run}: {expected:?}: {difference:e}\n{tally}");
            }
        } else {
            assert!(result == expected, "{run}: other bits\n{tally}");
        }
        tally.runs += 1;
    }
    println!("seed {seed}, without a farther tier\n\n{tally}");
}

/// Runs a job through some faults, or fewer if it ends before, and then to its end.
fn disturb(mut job: Job, faults: usize, random: &mut Random, tally: &mut Tally) -> RunResult {
    for _ in 0..faults {
        let fault = Fault::random(&job, random);
        let of_store = job.shared_tier().random_fault(job.needs_shared(), random);
        let before = job.newest_intact();
        let attempt = job.attempt(&fault, of_store.as_ref(), random);
        let requests = job.shared_tier().end_fault();
        of_store.iter().for_each(|fault| tally.count_of_store(fault, requests));
        let after = job.newest_intact();
        assert!(after >= before, "{fault:?} lost the last good: {before:?}, then {after:?}");
        if attempt.is_complete {
            return job.result();
        }
        let fault = job.lose(fault, random);
        let surviving = job.newest_intact();
        let outcome = match (&after, &surviving) {
            (None, _) => Outcome::NothingSavedYet,
            (Some(newest), Some(left)) if newest == left => Outcome::Newest,
            _ => Outcome::OlderLeft,
        };
        tally.count(&fault, outcome);
    }
    job.run_to_its_end(random);
    job.result()
}
