//! Tests of the detector's accuracy on running jobs, in recorded and in synthetic step times.

use std::fmt::Write;

use rayon::prelude::*;

use super::tests::{Job, LARGE, NOISY, QUIET, STEPS, Slow, found_by, own_times};
use record::{Kind, Straggler};

use record::Random;
use record::fixtures::step_times::{OwnMs, SEEDS, SHARES, Trace, percent};
use record::phase::{ByPhase, PhaseTimes};
use record::slow_ranks::OwnTime;

/// Source of the step times.
enum Source<'a> {
    Recorded { trace: &'a Trace, ranks: usize },
    Synthetic(Job),
}

/// Numbers of jobs by outcome.
#[derive(Debug, Default)]
struct Counts {
    /// The slow rank was named, with its kind.
    right: u64,
    /// The slow rank was named, with another kind.
    wrong_kind: u64,
    /// Another rank was named.
    wrong_rank: u64,
}

impl Source<'_> {
    fn ranks(&self) -> usize {
        match self {
            Self::Recorded { ranks, .. } => *ranks,
            Self::Synthetic(job) => job.ranks,
        }
    }

    /// Returns all stragglers found in a job.
    fn found(&self, slow: Option<Slow>, seed: u64) -> Vec<Straggler> {
        match self {
            Self::Synthetic(job) => found_by(own_times(*job, slow, seed), job.ranks),
            Self::Recorded { trace, ranks } => {
                let job = trace.job(*ranks, STEPS as usize, &mut Random(seed));
                let step = |times: Vec<OwnMs>| -> Vec<OwnTime> {
                    let of_rank = |(rank, own)| recorded(own, slow.filter(|it| it.rank == rank));
                    times.into_iter().enumerate().map(of_rank).collect()
                };
                found_by(job.into_iter().map(step), *ranks)
            }
        }
    }

    fn count(&self, share: f64) -> Counts {
        let counts = (0..SEEDS).into_par_iter().map(|seed| {
            let kind = [Kind::Compute, Kind::Data, Kind::Host][seed as usize % 3];
            let slow = Slow::throughout(seed as usize % self.ranks(), kind, share);
            let slow = Some(slow).filter(|_| share > 0.0);
            Counts::of(&self.found(slow, seed), slow)
        });
        counts.reduce(Counts::default, Counts::and)
    }
}

impl Counts {
    /// Counts one job.
    fn of(found: &[Straggler], slow: Option<Slow>) -> Self {
        let is_it = |it: &&Straggler| slow.is_some_and(|slow| it.rank == slow.rank);
        let is_kind = |it: &Straggler| slow.is_some_and(|slow| it.kind == slow.kind);
        Self {
            right: u64::from(found.iter().filter(is_it).any(is_kind)),
            wrong_kind: u64::from(!found.iter().filter(is_it).all(is_kind)),
            wrong_rank: u64::from(!found.iter().all(|it| is_it(&it))),
        }
    }

    fn and(self, other: Self) -> Self {
        Self {
            right: self.right + other.right,
            wrong_kind: self.wrong_kind + other.wrong_kind,
            wrong_rank: self.wrong_rank + other.wrong_rank,
        }
    }
}

/// Returns a recorded step with an injected slowdown.
fn recorded(own: OwnMs, slow: Option<Slow>) -> OwnTime {
    let added = slow.map_or(0.0, |slow| slow.share * own.total());
    let added_to = |kind| if slow.is_some_and(|slow| slow.kind == kind) { added } else { 0.0 };
    let ns = |ms: f64| (ms * 1e6) as u64;
    let phases: PhaseTimes = ByPhase {
        forward: ns(own.compute + added_to(Kind::Compute)),
        data: ns(own.data + added_to(Kind::Data)),
        other: ns(own.host + added_to(Kind::Host)),
        ..PhaseTimes::default()
    };
    OwnTime::of_step(&phases, 0)
}

/// Returns the table of every machine and every slowdown. No row may name a wrong rank.
fn table() -> String {
    let quiet = Trace::quiet();
    let noisy = Trace::noisy();
    let recorded = |trace, ranks| Source::Recorded { trace, ranks };
    let sources = [
        ("recorded, quiet", recorded(&quiet, 2), &SHARES[..]),
        ("recorded, quiet", recorded(&quiet, 4), &SHARES),
        ("recorded, noisy", recorded(&noisy, 2), &SHARES),
        ("recorded, noisy", recorded(&noisy, 4), &SHARES),
        ("synthetic, 2 %", Source::Synthetic(QUIET), &SHARES),
        ("synthetic, 8 %", Source::Synthetic(NOISY), &SHARES),
        ("synthetic, 2 %", Source::Synthetic(LARGE), &[0.0, 0.25]),
    ];
    let mut table = String::new();
    table += "| step times | ranks | one is slow by | found | wrong kind | wrong rank |\n";
    table += "| --- | ---: | ---: | ---: | ---: | ---: |\n";
    for (name, source, shares) in &sources {
        for share in *shares {
            let Counts { right, wrong_kind, wrong_rank } = source.count(*share);
            assert_eq!(wrong_rank, 0, "{name}, {}", percent(*share));
            let (ranks, slow) = (source.ranks(), percent(*share));
            let counts = format!("{right} | {wrong_kind} | {wrong_rank}");
            writeln!(table, "| {name} | {ranks} | {slow} | {counts} |").unwrap();
        }
    }
    table
}

/// Compares the table. To rewrite it:
/// `YARDSTICK_UPDATE_GOLDEN=1 cargo test --profile testing --workspace recorded::`.
#[test]
fn the_documented_table_is_what_is_found() {
    record::fixtures::step_times::assert_documented("running", &table());
}
