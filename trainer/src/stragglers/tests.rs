//! Tests of slow ranks in synthetic steps, with the noise of real machines: each step depends on
//! the one before, and the machine drifts.

use super::*;
use record::Random;
use record::phase::{ByPhase, PhaseTimes};
use record::slow_ranks::OwnTime;
use record::{Kind, Straggler};

const SEEDS: u64 = 200;
pub(super) const STEPS: u64 = 200;
pub(super) const LIMITS: Limits = Limits { window_steps: 20, windows: 3, least_slower: 0.1 };

/// Job on some machine.
#[derive(Clone, Copy)]
pub(super) struct Job {
    pub(super) ranks: usize,
    /// Coefficient of variation of a rank's steps, each of which depends on the one before.
    of_steps: f64,
    /// Coefficient of variation between ranks, beside that of their steps.
    of_ranks: f64,
}

/// Injected slowdown.
#[derive(Clone, Copy)]
pub(super) struct Slow {
    pub(super) rank: usize,
    pub(super) kind: Kind,
    pub(super) share: f64,
    /// First step in which it is slow.
    from: u64,
    until: u64,
}

impl Slow {
    pub(super) fn throughout(rank: usize, kind: Kind, share: f64) -> Self {
        Self { rank, kind, share, from: 1, until: STEPS }
    }
}

/// Returns all stragglers found in a job.
fn found(job: Job, slow: Option<Slow>, seed: u64) -> Vec<Straggler> {
    found_by(own_times(job, slow, seed), job.ranks)
}

/// Returns all stragglers found in the own times of each step.
pub(super) fn found_by(
    steps: impl IntoIterator<Item = Vec<OwnTime>>,
    ranks: usize,
) -> Vec<Straggler> {
    let mut detector = Detector::new(ranks, LIMITS);
    let steps = (1..).zip(steps);
    steps.flat_map(|(step, times)| detector.take(step, times.into_iter())).collect()
}

/// Returns the own time of each rank in each step.
pub(super) fn own_times(job: Job, slow: Option<Slow>, seed: u64) -> Vec<Vec<OwnTime>> {
    let mut noise = Random(seed);
    let mut normal = || noise.normal();
    let paces: Vec<f64> = (0..job.ranks).map(|_| 1.0 + job.of_ranks * normal()).collect();
    let mut states = vec![0.0; job.ranks];
    let mut step = |step: u64| {
        let drift = 1.0 + 0.05 * step as f64 / STEPS as f64;
        let mut own = |rank: usize| {
            states[rank] = 0.7 * states[rank] + (1.0_f64 - 0.49).sqrt() * normal();
            let ms = 100.0 * paces[rank] * drift * (1.0 + job.of_steps * states[rank]);
            let slow = slow.filter(|it| it.rank == rank && (it.from..=it.until).contains(&step));
            own_time(ms, slow)
        };
        (0..job.ranks).map(&mut own).collect()
    };
    (1..=STEPS).map(&mut step).collect()
}

fn own_time(ms: f64, slow: Option<Slow>) -> OwnTime {
    let ns = |ms: f64| (ms * 1e6) as u64;
    let mut phases: PhaseTimes = ByPhase {
        data: ns(0.02 * ms),
        forward: ns(0.3 * ms),
        backward: ns(0.6 * ms),
        optimizer: ns(0.05 * ms),
        other: ns(0.03 * ms),
        ..PhaseTimes::default()
    };
    let Some(Slow { kind, share, .. }) = slow else { return OwnTime::of_step(&phases, 0) };
    let added = ns(share * ms);
    match kind {
        Kind::Compute => phases.forward += added,
        Kind::Data => phases.data += added,
        Kind::Host => phases.other += added,
        Kind::Communication => {
            phases.backward += added;
            return OwnTime::of_step(&phases, added);
        }
        Kind::Checkpoint => panic!("not in steps"),
    }
    OwnTime::of_step(&phases, 0)
}

pub(super) const QUIET: Job = Job { ranks: 4, of_steps: 0.02, of_ranks: 0.005 };
pub(super) const NOISY: Job = Job { ranks: 4, of_steps: 0.08, of_ranks: 0.02 };
pub(super) const LARGE: Job = Job { ranks: 64, of_steps: 0.02, of_ranks: 0.01 };

#[test]
fn a_slow_rank_is_found_with_its_kind() {
    let kinds = [Kind::Compute, Kind::Data, Kind::Communication, Kind::Host];
    for (job, least) in [(QUIET, SEEDS), (LARGE, SEEDS), (NOISY, SEEDS * 9 / 10)] {
        let mut named = 0;
        for seed in 0..SEEDS {
            let kind = kinds[seed as usize % kinds.len()];
            let rank = seed as usize % job.ranks;
            let found = found(job, Some(Slow::throughout(rank, kind, 0.25)), seed);
            assert!(found.iter().all(|it| it.rank == rank && it.kind == kind), "{found:?}");
            named += u64::from(!found.is_empty());
        }
        assert!(named >= least, "{named} of {SEEDS} in {} ranks", job.ranks);
    }
}

#[test]
fn one_of_two_ranks_is_found() {
    let two = Job { ranks: 2, ..QUIET };
    for seed in 0..SEEDS {
        let found = found(two, Some(Slow::throughout(1, Kind::Compute, 0.25)), seed);
        assert_eq!(found.iter().map(|it| it.rank).collect::<Vec<_>>(), [1], "{found:?}");
    }
}

#[test]
fn no_rank_is_named_where_none_is_slow() {
    for job in [QUIET, NOISY, LARGE, Job { ranks: 2, ..NOISY }] {
        let named = (0..SEEDS).filter(|seed| !found(job, None, *seed).is_empty()).count();
        assert_eq!(named, 0, "{} ranks", job.ranks);
    }
}

#[test]
fn a_rank_that_recovers_is_called_slow_for_as_long_as_it_was() {
    let slow = Slow { from: 41, until: 140, ..Slow::throughout(2, Kind::Data, 0.5) };
    let found = found(QUIET, Some(slow), 1);
    let [begun, over] = found[..] else { panic!("{found:?}") };
    assert_eq!((begun.since_step, begun.until_step), (41, None));
    assert_eq!((over.since_step, over.until_step), (41, Some(141)));
    assert!((begun.slower_share - 0.5).abs() < 0.05, "{begun:?}");
}

#[test]
fn steps_without_times_are_left_out() {
    let mut detector = Detector::new(2, Limits { window_steps: 2, windows: 1, ..LIMITS });
    let own = |ms| own_time(ms, None);
    assert_eq!(detector.take(0, [OwnTime::ZERO; 2].into_iter()), []);
    assert_eq!(detector.take(1, [own(10.0), own(15.0)].into_iter()), []);
    let found = detector.take(2, [own(10.0), own(15.0)].into_iter());
    assert_eq!(found.iter().map(|it| (it.rank, it.since_step)).collect::<Vec<_>>(), [(1, 1)]);
    let mut alone = Detector::new(1, LIMITS);
    assert!((1..100).all(|step| alone.take(step, [own(10.0)].into_iter()).is_empty()));
}
