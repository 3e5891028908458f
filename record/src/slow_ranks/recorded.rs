//! Detection in recorded step times of real machines, with a slowdown that begins during the run.

use std::fmt::Write;

use rayon::prelude::*;

use super::{Detector, OwnTime, Rule};
use crate::fixtures::step_times::{OwnMs, SEEDS, SHARES, Trace, assert_documented, percent};
use crate::phase::{ByPhase, PhaseTimes};
use crate::{Kind, Random, Straggler};

/// Steps of a job, and the one from which a rank is slow.
const STEPS: usize = 4000;
const FROM: u64 = 1001;

/// Steps that a job goes on after the slow rank was named: no other may be named then.
const GOES_ON: u64 = 1000;

/// Seconds of a step, for the bound on false names in an hour.
const SECONDS: f64 = 1.0;

/// Injected slowdown.
#[derive(Debug, Clone, Copy)]
struct Slow {
    rank: usize,
    kind: Kind,
    share: f64,
}

/// Returns a recorded step with an injected slowdown.
fn own_time(own: OwnMs, slow: Option<Slow>) -> OwnTime {
    let added = slow.map_or(0.0, |slow| slow.share * own.total());
    let added_to = |kind| if slow.is_some_and(|slow| slow.kind == kind) { added } else { 0.0 };
    let ns = |ms: f64| (ms * 1e6) as u64;
    let phases = PhaseTimes {
        forward: ns(own.compute + added_to(Kind::Compute)),
        data: ns(own.data + added_to(Kind::Data)),
        other: ns(own.host + added_to(Kind::Host)),
        ..ByPhase::default()
    };
    OwnTime::of_step(&phases, 0)
}

/// Returns all stragglers of a job, each with the step at which it was named.
fn found(trace: &Trace, ranks: usize, slow: Option<Slow>, seed: u64) -> Vec<(u64, Straggler)> {
    let mut detector = Detector::new(vec![(0..ranks).collect()], Rule::default());
    let job = trace.job(ranks, STEPS, &mut Random(seed));
    let mut all = Vec::new();
    let mut end = u64::MAX;
    for (step, times) in (1..).zip(job) {
        if step > end {
            break;
        }
        let of_rank = |(rank, own)| {
            let slow = slow.filter(|slow| step >= FROM && slow.rank == rank);
            own_time(own, slow).into()
        };
        let times = times.into_iter().enumerate().map(of_rank);
        let found = detector.take(step, SECONDS, times);
        let is_it = |it: &Straggler| slow.is_some_and(|slow| it.rank == slow.rank);
        if step >= FROM && found.stragglers.iter().any(is_it) {
            end = end.min(step + GOES_ON);
        }
        all.extend(found.stragglers.into_iter().map(|straggler| (step, straggler)));
    }
    all
}

/// Numbers of jobs by outcome.
#[derive(Debug, Default)]
struct Counts {
    /// Steps until the slow rank was named with its kind, of each job in which it was.
    right: Vec<u64>,
    /// The slow rank was named, with another kind.
    wrong_kind: u64,
    /// Another rank was named, or the slow one before it was.
    wrong_rank: u64,
    /// The slow rank was called well.
    ended: u64,
}

impl Counts {
    fn of_job(trace: &Trace, ranks: usize, share: f64, seed: u64) -> Self {
        let kinds = [Kind::Compute, Kind::Data, Kind::Host];
        let kind = kinds[seed as usize / ranks % kinds.len()];
        let slow = Slow { rank: seed as usize % ranks, kind, share };
        let slow = Some(slow).filter(|_| share > 0.0);
        let mut found = found(trace, ranks, slow, seed);
        let count = found.len();
        found.retain(|(_, straggler)| straggler.until_step.is_none());
        let is_it = |(step, it): &&(u64, Straggler)| {
            *step >= FROM && slow.is_some_and(|slow| slow.rank == it.rank)
        };
        let is_kind = |it: &&(u64, Straggler)| slow.is_some_and(|slow| slow.kind == it.1.kind);
        let right = found.iter().filter(is_it).find(is_kind);
        Self {
            right: right.map(|(step, _)| step + 1 - FROM).into_iter().collect(),
            wrong_kind: u64::from(!found.iter().filter(is_it).all(|it| is_kind(&it))),
            wrong_rank: u64::from(!found.iter().all(|it| is_it(&it))),
            ended: u64::from(found.len() < count),
        }
    }

    fn and(mut self, other: Self) -> Self {
        self.right.extend(other.right);
        self.wrong_kind += other.wrong_kind;
        self.wrong_rank += other.wrong_rank;
        self.ended += other.ended;
        self
    }
}

/// Returns the table of every machine and every slowdown.
fn table() -> String {
    let traces = [("quiet", Trace::quiet().centred()), ("noisy", Trace::noisy().centred())];
    let mut table = String::new();
    table += "| step times | ranks | one is slow by | found | steps: median | wrong kind | wrong \
              rank | called well |\n";
    table += "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n";
    for (name, trace) in &traces {
        for ranks in [2, 4, 8] {
            for share in SHARES {
                let jobs = (0..SEEDS).into_par_iter();
                let counts = jobs.map(|seed| Counts::of_job(trace, ranks, share, seed));
                let mut counts = counts.reduce(Counts::default, Counts::and);
                counts.right.sort_unstable();
                let found = counts.right.len();
                let median = counts.right.get((SEEDS / 2) as usize - 1);
                let median = median.map_or("-".to_owned(), u64::to_string);
                let Counts { wrong_kind, wrong_rank, ended, .. } = counts;
                let slow = percent(share);
                writeln!(
                    table,
                    "| {name} | {ranks} | {slow} | {found} | {median} | {wrong_kind} | \
                     {wrong_rank} | {ended} |"
                )
                .unwrap();
            }
        }
    }
    table
}

/// Compares the table. To rewrite it:
/// `YARDSTICK_UPDATE_GOLDEN=1 cargo test --profile testing --workspace recorded::`.
#[test]
fn the_documented_table_is_what_is_found() {
    assert_documented("running", &table());
}
