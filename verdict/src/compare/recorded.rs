//! Rates at which slower runs are called worse, and attributed to the right rank, in recorded and
//! in synthetic step times: ten alternating runs of each side, as `--run` makes them.

use std::fmt::Write;

use rayon::prelude::*;

use super::tests::{AS_USUAL, Machine, NOISY, QUIET, RANKS, Slow, record_of, run, settings, side};
use super::{Comparison, Gate, Settings, Verdict};
use record::Random;
use record::Record;
use record::fixtures::step_times::{SEEDS, Trace, percent};

/// Source of step times.
enum Source<'a> {
    Recorded(&'a Trace),
    Synthetic(Machine),
}

/// Numbers of comparisons by outcome.
#[derive(Debug, Default, PartialEq)]
struct Counts {
    worse: u64,
    /// Worse, with the slow rank and its kind.
    right: u64,
    /// Worse, with another rank or kind.
    wrong: u64,
    /// Any verdict, with another rank.
    wrong_rank: u64,
    too_noisy: u64,
}

/// Number of steps of a run from recorded step times.
const STEPS: usize = 60;

impl Source<'_> {
    fn run(&self, slow: Slow, minute: u64, random: &mut Random) -> Record {
        match self {
            Self::Synthetic(machine) => run(*machine, slow, minute, random),
            Self::Recorded(trace) => record_of(trace.job(RANKS, STEPS, random), slow, minute),
        }
    }

    fn in_turn(&self, slow: Slow, random: &mut Random) -> Comparison {
        let mut runs = |slow, first: u64| -> Vec<Record> {
            (0..10_u64).map(|pair| self.run(slow, 2 * pair + first, random)).collect()
        };
        let base = side(runs(AS_USUAL, 0));
        let gates = vec![Gate::primary(), "slowest_rank".parse().unwrap()];
        let settings = Settings { gates, ..settings() };
        Comparison::of(&base, &side(runs(slow, 1)), &settings).unwrap()
    }

    fn count(&self, slow: Slow) -> Counts {
        let counts = (0..SEEDS).into_par_iter().map(|seed| {
            let mut random = Random(seed);
            Counts::of(self.in_turn(slow, &mut random), slow)
        });
        counts.reduce(Counts::default, Counts::and)
    }
}

impl Counts {
    /// Counts one comparison.
    fn of(comparison: Comparison, slow: Slow) -> Self {
        let is = |verdict| u64::from(comparison.verdict == verdict);
        let ranks = comparison.attribution.map_or(Vec::new(), |attribution| attribution.ranks);
        let named: Vec<_> = ranks.iter().map(|part| (part.rank, part.kind.name())).collect();
        let expected: Vec<_> = slow.rank.map(|rank| (rank, "compute")).into_iter().collect();
        let is_wrong = named.iter().any(|it| !expected.contains(it));
        let worse = is(Verdict::Worse);
        Self {
            worse,
            right: worse * u64::from(named == expected),
            wrong: worse * u64::from(is_wrong),
            wrong_rank: u64::from(named.iter().any(|(rank, _)| Some(*rank) != slow.rank)),
            too_noisy: is(Verdict::TooNoisy),
        }
    }

    fn and(self, other: Self) -> Self {
        Self {
            worse: self.worse + other.worse,
            right: self.right + other.right,
            wrong: self.wrong + other.wrong,
            wrong_rank: self.wrong_rank + other.wrong_rank,
            too_noisy: self.too_noisy + other.too_noisy,
        }
    }
}

const SLOW_RANK: usize = 2;

/// Slowdowns by a share, of all ranks or of one.
const ALL_5: Slow = Slow { rank: None, share: 0.05 };
const ALL_25: Slow = Slow { rank: None, share: 0.25 };
const ONE_5: Slow = Slow { rank: Some(SLOW_RANK), share: 0.05 };
const ONE_10: Slow = Slow { rank: Some(SLOW_RANK), share: 0.1 };
const ONE_25: Slow = Slow { rank: Some(SLOW_RANK), share: 0.25 };

/// Checks the rates: few comparisons may call equal runs worse, and hardly any may name a rank that
/// is not slow. A quiet machine decides 5 % nearly always, and is right then.
fn check(name: &str, source: &Source<'_>, slow: Slow, counts: &Counts) {
    assert!(counts.wrong * 100 <= SEEDS && counts.wrong_rank * 100 <= SEEDS, "{name}: {counts:?}");
    assert!(slow.share > 0.0 || counts.worse * 20 <= SEEDS, "{name}: {counts:?}");
    if let (Source::Synthetic(_), Some(_)) = (source, slow.rank) {
        assert!(counts.wrong_rank == 0, "{name}: {counts:?}");
    }
    if matches!(source, Source::Synthetic(machine) if *machine == QUIET) && slow.share > 0.0 {
        let is_right = slow.rank.is_none() || counts.right * 20 >= counts.worse * 19;
        assert!(counts.worse * 10 >= SEEDS * 9 && is_right, "{name}: {counts:?}");
    }
}

/// Builds the table of every machine and every slowdown.
fn table() -> String {
    let quiet = Trace::quiet();
    let noisy = Trace::noisy();
    let of_recorded = [AS_USUAL, ONE_5, ONE_10, ONE_25, ALL_25];
    let sources = [
        ("recorded, quiet", Source::Recorded(&quiet), &of_recorded[..]),
        ("recorded, noisy", Source::Recorded(&noisy), &of_recorded[..]),
        ("steps 2 %, runs 0.3 %", Source::Synthetic(QUIET), &[AS_USUAL, ALL_5, ONE_5]),
        ("steps 6 %, runs 8 %", Source::Synthetic(NOISY), &[AS_USUAL, ONE_5, ONE_25]),
    ];
    let mut table = String::new();
    table += "| step times | slow | called worse | right rank and kind | wrong rank or kind \
              | wrong rank, any verdict | too noisy |\n";
    table += "| --- | --- | ---: | ---: | ---: | ---: | ---: |\n";
    for (name, source, slow) in &sources {
        for slow in *slow {
            let counts = source.count(*slow);
            check(name, source, *slow, &counts);
            let Counts { worse, right, wrong, wrong_rank, too_noisy } = counts;
            let right = if slow.rank.is_some() { right.to_string() } else { "-".to_owned() };
            let counts = format!("{worse} | {right} | {wrong} | {wrong_rank} | {too_noisy}");
            writeln!(table, "| {name} | {} | {counts} |", slow_text(*slow)).unwrap();
        }
    }
    table
}

fn slow_text(slow: Slow) -> String {
    match slow.rank {
        _ if slow.share == 0.0 => percent(slow.share),
        None => format!("all ranks, {}", percent(slow.share)),
        Some(_) => format!("one rank, {}", percent(slow.share)),
    }
}

/// Rewrite with `YARDSTICK_UPDATE_GOLDEN=1 cargo test --profile testing --workspace recorded::`.
#[test]
fn the_documented_table_is_what_is_found() {
    record::fixtures::step_times::assert_documented("compared", &table());
}
