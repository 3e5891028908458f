//! Comparisons of synthetic runs, whose steps are as noisy as on real machines: each depends on the
//! one before, the machine drifts, and runs differ from each other.

use std::path::{Path, PathBuf};

use super::comparison::Settings;
use super::design::Method;
use super::gate::Gate;
use super::side::{Side, Source};
use super::{Comparison, Verdict};
use record::Random;
use record::fixtures::finished;
use record::fixtures::step_times::OwnMs;
use record::phase::{ByPhase, PhaseTimes};
use record::{
    Attempt, Record, Reference, StepSample, StepSeries, TargetRecord, TunedProducts, TuningSource,
};
use serde_json::json;

const STEPS: u64 = 200;
pub(super) const RANKS: usize = 4;

/// Noise of a machine.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Machine {
    /// Coefficient of variation of steps.
    of_steps: f64,
    /// Coefficient of variation of runs, in addition to that of their steps.
    of_runs: f64,
    /// Relative change of the pace from the start of a run to its end.
    drift: f64,
}

pub(super) const QUIET: Machine = Machine { of_steps: 0.02, of_runs: 0.003, drift: 0.002 };
pub(super) const NOISY: Machine = Machine { of_steps: 0.06, of_runs: 0.08, drift: 0.05 };

/// Slowdown of a rank or of all.
#[derive(Clone, Copy)]
pub(super) struct Slow {
    pub(super) rank: Option<usize>,
    pub(super) share: f64,
}

pub(super) const AS_USUAL: Slow = Slow { rank: None, share: 0.0 };

/// Builds the record of a run that starts at some minute and takes half a minute. Each rank
/// computes for about 100 ms, and then all wait for the slowest.
pub(super) fn run(machine: Machine, slow: Slow, minute: u64, noise: &mut Random) -> Record {
    let pace = 1.0 + machine.of_runs * noise.normal();
    let mut state = [0.0; RANKS];
    let mut step = |step: u64| {
        let drift = 1.0 + machine.drift * step as f64 / STEPS as f64;
        let own = |rank: usize| {
            // Autoregressive process of order 1 with variance 1.
            state[rank] = 0.7 * state[rank] + (1.0_f64 - 0.49).sqrt() * noise.normal();
            let ms = 100.0 * pace * drift * (1.0 + machine.of_steps * state[rank]);
            OwnMs { compute: 0.99 * ms, data: 0.01 * ms, host: 0.0 }
        };
        (0..RANKS).map(own).collect()
    };
    record_of((1..=STEPS).map(&mut step), slow, minute)
}

/// Builds the record of a run with these steps of each rank; one or all are slow at compute.
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
    let sample = record::fixtures::sample(1, step);
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
        .map(|number| record::RankRecord {
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

pub(super) fn side(records: Vec<Record>) -> Side {
    let source = |record| Source { path: PathBuf::from("record.json"), record };
    Side::new(records.into_iter().map(source).collect())
}

pub(super) fn settings() -> Settings {
    Settings {
        threshold: 0.03,
        gates: vec![Gate::primary()],
        per_rank: false,
        deviation: None,
        allow_injected: false,
        allow_noisy: false,
    }
}

fn compare(base: Vec<Record>, new: Vec<Record>) -> Comparison {
    Comparison::of(&side(base), &side(new), &settings()).unwrap()
}

/// Runs within one session agree with each other on a machine with a pace for each session.
#[test]
fn one_session_a_side_cannot_tell() {
    let mut noise = Random(1);
    let calm = Machine { of_runs: 0.001, ..QUIET };
    let slower = Slow { rank: None, share: 0.1 };
    let mut runs = |slow, hour: u64, count: u64| -> Vec<Record> {
        (0..count).map(|minute| run(calm, slow, 60 * hour + minute, &mut noise)).collect()
    };
    let one = compare(runs(AS_USUAL, 0, 5), runs(slower, 3, 5));
    assert_eq!((one.evidence.method, one.verdict), (Method::Assumed, Verdict::TooNoisy));
    let far = Slow { rank: None, share: 0.9 };
    let far = compare(runs(AS_USUAL, 0, 1), runs(far, 3, 1));
    assert_eq!(
        (far.evidence.method, far.verdict),
        (Method::Assumed, Verdict::Worse),
        "beyond any noise"
    );
    let nights = |runs: &mut dyn FnMut(Slow, u64, u64) -> Vec<Record>| -> Vec<Record> {
        (0..5).flat_map(|night| runs(AS_USUAL, 24 * night, 2)).collect()
    };
    let base = nights(&mut runs);
    let baseline = compare(base.clone(), runs(slower, 240, 2));
    assert_eq!((baseline.evidence.method, baseline.verdict), (Method::Sessions, Verdict::Worse));
    let same = compare(base, runs(AS_USUAL, 240, 2));
    assert_eq!(same.verdict, Verdict::Same, "{same}");
}

/// Returns the exit code and message.
fn refusal(base: &Record, new: Record, settings: &Settings) -> String {
    let compared = Comparison::of(&side(vec![base.clone()]), &side(vec![new]), settings);
    compared.err().map_or("compared".to_owned(), |it| format!("{}: {it}", it.exit_code() as u8))
}

#[test]
fn what_cannot_be_compared_is_refused() {
    let mut noise = Random(1);
    let base = run(QUIET, AS_USUAL, 0, &mut noise);
    let expect = |new: Record, settings: &Settings, expected: &str| {
        let found = refusal(&base, new, settings);
        assert!(found.contains(expected), "expected {expected:?}, found {found:?}");
    };
    let changed = |change: &dyn Fn(&mut Record)| {
        let mut record = base.clone();
        record.attempts[0].started_unix_ms += 60_000;
        change(&mut record);
        record
    };
    let other = changed(&|it| it.workload.id = "aaaaaaaaaaaa".to_owned());
    expect(other, &settings(), "12: not comparable: record.json: computed");
    let smaller = changed(&|it| it.ranks.truncate(2));
    expect(smaller.clone(), &settings(), "12: not comparable: record.json: 2 ranks");
    expect(smaller, &Settings { per_rank: true, ..settings() }, "compared");
    let failed = changed(&|it| it.status = record::Status::Failed);
    expect(failed, &settings(), "12: not comparable: record.json: expected a complete run, found");
    let void = changed(&|it| it.status = record::Status::Void);
    expect(void, &settings(), "expected a complete run, found void");
    let few = changed(&|it| it.steps.as_mut().unwrap().measured = 19);
    expect(few, &settings(), "at least 20 measured steps, found 19");
    let target = TargetRecord { nats: 5.0, held_out: false, step: Some(9), seconds: Some(1.0) };
    let target = changed(&|it| it.target_loss = Some(target));
    expect(target, &settings(), "its target loss ended at step 9");
    let injected = changed(&|it| it.attempts[0].injected = vec!["nan@step=1".to_owned()]);
    expect(injected.clone(), &settings(), "found --inject nan@step=1");
    expect(injected, &Settings { allow_injected: true, ..settings() }, "compared");
    for value in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let wrong = changed(&|it| it.tokens_per_second.as_mut().unwrap().step.total = value);
        expect(wrong, &settings(), "12: not comparable: record.json: expected a value of tokens");
    }
    let gates = |text: &str| {
        let gates = text.split(',').map(|gate| gate.parse().unwrap()).collect();
        Settings { gates, ..settings() }
    };
    let twice = gates("step_ms=50%,step_ms");
    expect(changed(&|_| ()), &twice, "2: --gate step_ms: expected each metric once");
    let missing = gates("checkpoint_rate=10%");
    expect(changed(&|_| ()), &missing, "12: not comparable: record.json: expected a value of");
    expect(changed(&|it| it.ranks.clear()), &settings(), "12: not comparable: record.json: expec");
    expect(base.clone(), &settings(), "expected two runs, found one on both sides");
    assert!("speed".parse::<Gate>().unwrap_err().contains("tokens_per_second, step_ms"));
}

#[test]
fn other_algorithms_of_products_are_a_difference() {
    let mut noise = Random(5);
    let mut run = |seed| run(QUIET, AS_USUAL, seed, &mut noise);
    let base = run(0);
    let mut new = run(1);
    new.tuned_products = Some(TunedProducts {
        source: TuningSource::Measured,
        products: 3,
        changed: 1,
        gain_percent: 4.0,
        digest: "0123".to_owned(),
    });
    let comparison = compare(vec![base], vec![new]);
    let names: Vec<_> = comparison.differences.iter().map(|it| it.name.as_str()).collect();
    assert!(names.contains(&"tuned_products.digest"), "{names:?}");
}

#[test]
fn other_dimensions_of_the_ranks_are_a_difference() {
    let mut noise = Random(5);
    let mut run = |seed, data| {
        let mut record = run(QUIET, AS_USUAL, seed, &mut noise);
        record.run["parallel"] = json!({ "data": data, "shard": 0, "sharded": "optimizer" });
        record
    };
    let comparison = compare(vec![run(0, 1)], vec![run(1, 2)]);
    let found = comparison.differences.iter().find(|it| it.name == "run.parallel.data");
    let found = found.unwrap_or_else(|| panic!("{:?}", comparison.differences));
    assert_eq!((&*found.base, &*found.new), (&["1".to_owned()][..], &["2".to_owned()][..]));
    assert!(!comparison.differences.iter().any(|it| it.name == "run.parallel.shard"));
}

#[test]
fn a_sharded_optimizer_of_an_earlier_version_is_no_difference() {
    let mut noise = Random(5);
    let mut run = |seed, settings| {
        let mut record = run(QUIET, AS_USUAL, seed, &mut noise);
        record.run = settings;
        let bytes = serde_json::to_vec(&record.sealed()).unwrap();
        Record::parse(Path::new("record.json"), &bytes).unwrap()
    };
    let former = run(0, json!({ "run": { "shard_optimizer": true } }));
    let division = json!({
        "data": 1, "shard": 0, "sharded": "optimizer", "gather_ahead": 1, "reshard": true,
    });
    let today = run(1, json!({ "run": {}, "parallel": division }));
    let comparison = compare(vec![former], vec![today]);
    let of_run = comparison.differences.iter().find(|it| it.name.starts_with("run."));
    assert_eq!(of_run, None);
}

#[test]
fn only_gated_metrics_decide() {
    let mut noise = Random(5);
    let mut runs = |first: u64| -> Vec<Record> {
        (0..10).map(|pair| run(QUIET, AS_USUAL, 2 * pair + first, &mut noise)).collect()
    };
    let base = runs(0);
    let mut new = runs(1);
    for record in &mut new {
        record.ranks.iter_mut().for_each(|rank| rank.planned_bytes += rank.planned_bytes / 20);
        record.tokens_per_second.as_mut().unwrap().step.total *= 2.0;
    }
    let of_speed = compare(base.clone(), new.clone());
    assert_eq!((of_speed.verdict, of_speed.exit_code), (Verdict::Better, 0), "{of_speed}");
    assert!(
        of_speed.headline.starts_with("better: tokens/s (step clock) +"),
        "{}",
        of_speed.headline
    );
    assert!(of_speed.headline.contains(" (10 pairs)"), "{}", of_speed.headline);
    let names: Vec<_> = of_speed.differences.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["planned_bytes of a rank"]);

    for record in &mut new {
        record.steps.as_mut().unwrap().step_ms.mean *= 1.5;
    }
    let with_slow_steps = compare(base.clone(), new.clone());
    assert_eq!(with_slow_steps.exit_code, 0);
    let headline = &with_slow_steps.headline;
    assert!(
        headline.contains("; not gated: step_ms +5")
            || headline.contains("; not gated: step_ms +49"),
        "{headline}"
    );
    let gates = vec![Gate::primary(), "step_ms".parse().unwrap()];
    let settings = Settings { gates, ..settings() };
    let gated = Comparison::of(&side(base.clone()), &side(new.clone()), &settings).unwrap();
    assert_eq!((gated.exit_code, gated.decided_by.as_str()), (10, "step_ms"), "{gated}");
    assert!(gated.headline.starts_with("worse: step_ms +"), "{}", gated.headline);
    let lenient = Settings { gates: vec!["step_ms=90%".parse().unwrap()], ..settings };
    let gated = Comparison::of(&side(base), &side(new), &lenient).unwrap();
    assert_eq!(gated.exit_code, 0, "{gated}");
}

/// Seen on a machine whose pace changes by a third between minutes.
#[test]
fn one_run_against_one_is_never_better_or_the_same_unless_both_are_steady() {
    let mut noise = Random(9);
    let base = run(QUIET, AS_USUAL, 0, &mut noise);
    let faster = |times: f64, is_steady: bool| {
        let mut record = run(QUIET, AS_USUAL, 200, &mut Random(10));
        record.tokens_per_second.as_mut().unwrap().step.total *= times;
        record.steps.as_mut().unwrap().is_steady = is_steady;
        record
    };
    let verdict = |new: Record| compare(vec![base.clone()], vec![new]).verdict;
    assert_eq!(verdict(faster(1.9, true)), Verdict::Better);
    assert_eq!(verdict(faster(1.33, true)), Verdict::NotWorse);
    for times in [1.0, 1.39, 1.9] {
        assert_eq!(verdict(faster(times, false)), Verdict::TooNoisy, "{times}");
    }
    assert_eq!(verdict(faster(0.4, false)), Verdict::Worse);
    let unsteady = compare(vec![base.clone()], vec![faster(1.39, false)]);
    assert_eq!(unsteady.exit_code, 11);
    assert!(unsteady.headline.contains("(deviation assumed; 1 of 2 not steady)"), "{unsteady}");
    // The pace that wanders within a run also wanders between runs.
    let wandering = Machine { of_runs: 0.0, drift: 2.0, ..QUIET };
    let mut wandering = run(wandering, AS_USUAL, 200, &mut noise);
    wandering.tokens_per_second = faster(1.9, true).tokens_per_second;
    wandering.steps.as_mut().unwrap().is_steady = true;
    assert_eq!(verdict(wandering), Verdict::TooNoisy);
}

#[test]
fn a_new_run_that_is_not_steady_does_not_pass_sessions() {
    let mut noise = Random(2);
    let base: Vec<_> = (0..5).map(|day| run(QUIET, AS_USUAL, 1440 * day, &mut noise)).collect();
    let mut new = run(QUIET, AS_USUAL, 1440 * 5, &mut noise);
    assert_eq!(compare(base.clone(), vec![new.clone()]).exit_code, 0);
    new.steps.as_mut().unwrap().is_steady = false;
    assert_eq!(compare(base.clone(), vec![new.clone()]).exit_code, 11);
    let allow = Settings { allow_noisy: true, ..settings() };
    let allowed = Comparison::of(&side(base), &side(vec![new]), &allow).unwrap();
    assert_eq!((allowed.verdict, allowed.exit_code), (Verdict::TooNoisy, 0));
}

/// Compares ten runs each night with a single run, on a machine whose runs differ by 4 %.
#[test]
fn a_run_is_not_judged_by_how_much_means_of_more_runs_differ() {
    let mut noise = Random(11);
    let like = run(QUIET, AS_USUAL, 0, &mut noise);
    let mut at = |minute: u64| {
        let mut record = like.clone();
        record.steps.as_mut().unwrap().series.clear();
        record.attempts[0].started_unix_ms = 60_000 * minute;
        record.attempts[0].ended_unix_ms = Some(60_000 * minute + 30_000);
        let rate = &mut record.tokens_per_second.as_mut().unwrap().step.total;
        *rate *= 1.0 + 0.04 * noise.normal();
        record
    };
    let mut decided = 0;
    for _ in 0..50 {
        let nights = (0..5).flat_map(|night| (0..10).map(move |minute| 1440 * night + minute));
        let base = nights.map(&mut at).collect();
        let compared = compare(base, vec![at(1440 * 6)]);
        assert_eq!(compared.evidence.method, Method::Sessions);
        decided += u32::from([Verdict::Worse, Verdict::Better].contains(&compared.verdict));
    }
    assert!(decided <= 5, "{decided} of 50");
}

/// Alternating runs that differ in length or are days apart have nothing in common.
#[test]
fn runs_that_are_not_alike_are_no_pairs() {
    let mut noise = Random(12);
    let mut method = |minutes_apart: u64, more_steps: u64| {
        let mut of = |pair: u64, new: u64| {
            let minute = 30 * pair * minutes_apart + new * minutes_apart;
            let mut record = run(QUIET, AS_USUAL, minute, &mut noise);
            record.steps.as_mut().unwrap().completed += new * more_steps;
            record
        };
        let base = (0..3).map(|pair| of(pair, 0)).collect();
        let new = (0..3).map(|pair| of(pair, 1)).collect();
        compare(base, new).evidence.method
    };
    assert_eq!(method(1, 0), Method::Pairs);
    assert_ne!(method(1, 100), Method::Pairs);
    assert_ne!(method(90, 0), Method::Pairs);
}

#[test]
fn a_comparison_has_the_same_bytes_each_time() {
    let mut noise = Random(4);
    let base: Vec<_> = (0..4).map(|pair| run(NOISY, AS_USUAL, 2 * pair, &mut noise)).collect();
    let new: Vec<_> = (0..4).map(|pair| run(NOISY, AS_USUAL, 2 * pair + 1, &mut noise)).collect();
    let bytes = || serde_json::to_vec(&compare(base.clone(), new.clone())).unwrap();
    let first = bytes();
    (0..100).for_each(|_| assert_eq!(bytes(), first));
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
        "smoke (0123456789ab): worse: tokens/s (step clock) -",
        "|           step_ms |",
        " WORSE |",
        " not gated |",
        "  comm_exposed +",
        "  rank 2 on node-2, compute: its own time +",
        "  environment.kernel: 6.12 -> 6.13",
    ] {
        assert!(page.contains(part), "no {part:?} in\n{page}");
    }
    assert!(page.lines().all(|line| line.len() <= 80), "{page}");
}
