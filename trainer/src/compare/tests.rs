//! Comparisons of synthetic runs, whose steps are noisy as on real machines: each depends on the
//! one before, the machine drifts, and runs differ from each other.

use std::path::PathBuf;

use super::comparison::Settings;
use super::design::Method;
use super::side::{Side, Source};
use super::{Comparison, Verdict};
use crate::bench::Random;
use crate::detection::OwnMs;
use crate::record::tests::finished;
use crate::record::{Attempt, Record, Reference, StepSample, StepSeries};
use crate::timing::phase::{ByPhase, PhaseTimes};

const STEPS: u64 = 200;
pub(super) const RANKS: usize = 4;

/// How a machine behaves.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Machine {
    /// Coefficient of variation of steps.
    of_steps: f64,
    /// The same of runs, beside that of their steps.
    of_runs: f64,
    /// Relative change of the pace from the start of a run to its end.
    drift: f64,
}

pub(super) const QUIET: Machine = Machine { of_steps: 0.02, of_runs: 0.003, drift: 0.002 };
pub(super) const NOISY: Machine = Machine { of_steps: 0.06, of_runs: 0.08, drift: 0.05 };

/// What is slow.
#[derive(Clone, Copy)]
pub(super) struct Slow {
    pub(super) rank: Option<usize>,
    pub(super) share: f64,
}

pub(super) const AS_USUAL: Slow = Slow { rank: None, share: 0.0 };

/// The record of a run that starts at some minute and takes half of one. Each rank computes for 100
/// ms, more or less, and then all wait for the slowest.
pub(super) fn run(machine: Machine, slow: Slow, minute: u64, noise: &mut Random) -> Record {
    let pace = 1.0 + machine.of_runs * noise.normal();
    let mut state = [0.0; RANKS];
    let mut step = |step: u64| {
        let drift = 1.0 + machine.drift * step as f64 / STEPS as f64;
        let own = |rank: usize| {
            // An autoregressive process of order 1 with variance 1.
            state[rank] = 0.7 * state[rank] + (1.0_f64 - 0.49).sqrt() * noise.normal();
            let ms = 100.0 * pace * drift * (1.0 + machine.of_steps * state[rank]);
            OwnMs { compute: 0.99 * ms, data: 0.01 * ms, host: 0.0 }
        };
        (0..RANKS).map(own).collect()
    };
    record_of((1..=STEPS).map(&mut step), slow, minute)
}

/// The record of a run with these steps of each rank, of which one or all are slow at compute.
pub(super) fn record_of(
    steps: impl IntoIterator<Item = Vec<OwnMs>>,
    slow: Slow,
    minute: u64,
) -> Record {
    let mut series: Vec<StepSeries> = (0..RANKS).map(|_| StepSeries::new(RANKS, None)).collect();
    for (step, mut own) in (1..).zip(steps) {
        let is_slow = |rank: usize| slow.rank.is_none_or(|slow| slow == rank);
        for (_, own) in own.iter_mut().enumerate().filter(|(rank, _)| is_slow(*rank)) {
            own.compute += slow.share * own.total();
        }
        let slowest = own.iter().map(|own| own.total()).fold(0.0, f64::max);
        for (series, own) in series.iter_mut().zip(own) {
            series.push(&sample(step, own, slowest - own.total() + 5.0));
        }
    }
    record(&series, minute)
}

fn sample(step: u64, own: OwnMs, wait_ms: f64) -> StepSample {
    let ns = |ms: f64| (ms * 1e6) as u64;
    let phases: PhaseTimes = ByPhase {
        data: ns(own.data),
        forward: ns(0.34 * own.compute),
        backward: ns(0.6 * own.compute),
        optimizer: ns(0.06 * own.compute),
        other: ns(own.host),
        comm_exposed: ns(wait_ms),
        ..PhaseTimes::default()
    };
    let sample = crate::record::steps::sample::tests::sample(1, step);
    StepSample { phases, wall_ns: phases.wall_ns(), ..sample }
}

fn record(series: &[StepSeries], minute: u64) -> Record {
    let mut record = finished();
    let started_unix_ms = minute * 60_000;
    record.attempts = vec![Attempt {
        number: 1,
        resumed_after_step: Some(0),
        recovery: None,
        last_step: STEPS,
        started_unix_ms,
        ended_unix_ms: Some(started_unix_ms + 30_000),
        ..record.attempts[1].clone()
    }];
    record.checkpoints = None;
    let rank = record.ranks[0].clone();
    record.ranks = (0..RANKS)
        .map(|number| crate::record::RankRecord {
            rank: number,
            host: format!("node-{number}"),
            phases_ns: Some(series[number].phase_totals(1)),
            times: Some(series[number].own_times(1, 64)),
            ..rank.clone()
        })
        .collect();
    record.measure(&series[0], &Reference::default(), None);
    record
}

fn side(records: Vec<Record>) -> Side {
    let source = |record| Source { path: PathBuf::from("record.json"), record };
    Side::new(records.into_iter().map(source).collect()).unwrap()
}

fn settings() -> Settings {
    Settings { threshold: 0.03, thresholds: Vec::new(), per_rank: false, deviation: None }
}

pub(super) fn compare(base: Vec<Record>, new: Vec<Record>) -> Comparison {
    Comparison::of(&side(base), &side(new), &settings()).unwrap()
}

/// On a machine with a pace for each session, runs within one agree with each other.
#[test]
fn one_session_a_side_cannot_tell() {
    let mut noise = Random(1);
    let calm = Machine { of_runs: 0.001, ..QUIET };
    let slower = Slow { rank: None, share: 0.1 };
    let mut runs = |slow, hour: u64, count: u64| -> Vec<Record> {
        (0..count).map(|minute| run(calm, slow, 60 * hour + minute, &mut noise)).collect()
    };
    let one = compare(runs(AS_USUAL, 0, 5), runs(slower, 3, 5));
    assert_eq!((one.method, one.verdict), (Method::Assumed, Verdict::TooNoisy));
    let far = Slow { rank: None, share: 0.9 };
    let far = compare(runs(AS_USUAL, 0, 1), runs(far, 3, 1));
    assert_eq!((far.method, far.verdict), (Method::Assumed, Verdict::Worse), "beyond any noise");
    let nights = |runs: &mut dyn FnMut(Slow, u64, u64) -> Vec<Record>| -> Vec<Record> {
        (0..5).flat_map(|night| runs(AS_USUAL, 24 * night, 2)).collect()
    };
    let base = nights(&mut runs);
    let baseline = compare(base.clone(), runs(slower, 240, 2));
    assert_eq!((baseline.method, baseline.verdict), (Method::Sessions, Verdict::Worse));
    let same = compare(base, runs(AS_USUAL, 240, 2));
    assert_eq!(same.verdict, Verdict::Same, "{same}");
}

#[test]
fn what_cannot_be_compared_is_refused() {
    let mut noise = Random(1);
    let base = run(QUIET, AS_USUAL, 0, &mut noise);
    let error = |new: Record, settings: &Settings| {
        let compared = Comparison::of(&side(vec![base.clone()]), &side(vec![new]), settings);
        compared.err().map(|failure| failure.to_string()).unwrap_or_default()
    };
    let mut other = base.clone();
    other.workload.id = "aaaaaaaaaaaa".to_owned();
    assert!(error(other, &settings()).contains("only runs of the same workload"));
    let mut smaller = base.clone();
    smaller.ranks.truncate(2);
    assert!(error(smaller.clone(), &settings()).contains("2 ranks"));
    assert_eq!(error(smaller, &Settings { per_rank: true, ..settings() }), "");
    let unknown = Settings { thresholds: vec![("speed".to_owned(), 0.1)], ..settings() };
    assert!(error(base.clone(), &unknown).contains("expected one of tokens_per_second, step_ms"));
    let failed = Record { status: crate::record::Status::Failed, ..base.clone() };
    let source = Source { path: PathBuf::from("failed.json"), record: failed };
    let refused = Side::new(vec![source]).err().unwrap().to_string();
    assert!(refused.contains("failed.json: expected a complete run, found failed"), "{refused}");
}

#[test]
fn a_comparison_says_what_makes_up_the_difference() {
    let mut noise = Random(3);
    let slow = Slow { rank: Some(2), share: 0.1 };
    let base: Vec<_> = (0..4).map(|pair| run(QUIET, AS_USUAL, 2 * pair, &mut noise)).collect();
    let mut new: Vec<_> = (0..4).map(|pair| run(QUIET, slow, 2 * pair + 1, &mut noise)).collect();
    new.iter_mut().for_each(|record| record.environment.machine.kernel = "6.13".to_owned());
    let page = compare(base, new).to_string();
    for part in [
        "smoke (0123456789ab): worse, tokens/s -",
        "|           step_ms |",
        " WORSE |",
        "  comm_exposed +",
        "  rank 2 on node-2, compute: its own time +",
        "  environment.kernel: 6.12 -> 6.13",
    ] {
        assert!(page.contains(part), "no {part:?} in\n{page}");
    }
    assert!(page.lines().all(|line| line.len() <= 80), "{page}");
}
