//! Tests of single verdicts: patterns, classes, what all ranks share, and the end of a slowdown.

use super::simulated::{JOB, Job, step_times};
use super::{Detector, Findings, Notice, OwnTime, Rule, SharedPart, StepTimes};
use crate::phase::{ByPhase, PhaseTimes};
use crate::{Basis, Kind, Pattern, Random, Straggler};

/// Feeds a detector with steps, and returns all changes.
fn found(
    mut detector: Detector,
    steps: u64,
    mut times: impl FnMut(u64, usize, &mut Random) -> StepTimes,
    ranks: usize,
) -> Findings {
    let mut noise = Random(1);
    let mut all = Findings::default();
    for step in 1..=steps {
        let of_ranks: Vec<_> = (0..ranks).map(|rank| times(step, rank, &mut noise)).collect();
        let Findings { stragglers, notices } = detector.take(step, 1.0, of_ranks);
        all.stragglers.extend(stragglers);
        all.notices.extend(notices);
    }
    all
}

fn one_class(ranks: usize) -> Detector {
    Detector::new(vec![(0..ranks).collect()], Rule::default())
}

/// Seconds with a noise of 1 %.
fn noisy(seconds: f64, noise: &mut Random) -> f64 {
    seconds * (1.0 + 0.01 * noise.normal())
}

#[test]
fn a_rank_that_is_slow_in_some_steps_is_intermittent() {
    let mut first = None;
    Job { every: 10, ..JOB }.run(3, |_, found| {
        first.get_or_insert(*found);
        false
    });
    let found = first.unwrap();
    assert_eq!((found.rank, found.pattern), (3, Some(Pattern::Intermittent)), "{found:?}");
    let mut first = None;
    JOB.run(3, |_, found| {
        first.get_or_insert(*found);
        false
    });
    let found = first.unwrap();
    assert_eq!((found.rank, found.pattern), (3, Some(Pattern::Steady)), "{found:?}");
    assert_eq!(found.basis, Some(Basis::Peers));
    assert!(found.low.unwrap() < 0.05 && found.high.unwrap() > 0.05, "{found:?}");
    // With 64 ranks that vary by 2 % the slowest other one is as slow in most steps.
    assert!((0.0..0.03).contains(&found.job_gain_share.unwrap()), "{found:?}");
}

#[test]
fn a_rank_that_stalls_rarely_is_named_until_it_no_longer_does() {
    let times = |step: u64, rank, noise: &mut Random| {
        let stalls = rank == 5 && step <= 3000 && step.is_multiple_of(40);
        step_times(noisy(if stalls { 3.0 } else { 1.0 }, noise))
    };
    let found = found(one_class(8), 6000, times, 8).stragglers;
    let [begun, over] = found[..] else { panic!("{found:?}") };
    assert_eq!((begun.rank, begun.pattern), (5, Some(Pattern::Stalls)), "{begun:?}");
    assert!(begun.since_step <= 40 && begun.until_step.is_none(), "{begun:?}");
    assert_eq!(over.rank, 5);
    assert!(over.until_step > Some(3000), "{over:?}");
}

#[test]
fn a_rank_that_recovers_is_named_once_for_as_long_as_it_was_slow() {
    let times = |step: u64, rank, noise: &mut Random| {
        let is_slow = rank == 2 && (501..=2000).contains(&step);
        step_times(noisy(if is_slow { 1.2 } else { 1.0 }, noise))
    };
    for ranks in [4, 16] {
        let found = found(one_class(ranks), 6000, times, ranks).stragglers;
        let [begun, over] = found[..] else { panic!("{found:?}") };
        assert_eq!((begun.rank, begun.until_step), (2, None), "{begun:?}");
        assert!((300..=501).contains(&begun.since_step), "{begun:?}");
        assert_eq!((over.rank, over.since_step), (2, begun.since_step));
        assert!((2001..=2100).contains(&over.until_step.unwrap()), "{over:?}");
    }
}

#[test]
fn a_rank_is_not_slow_because_its_only_peer_is_faster() {
    let times = |change: f64| {
        move |step: u64, rank, noise: &mut Random| {
            let seconds = if rank == 0 && step > 1000 { change } else { 1.0 };
            step_times(noisy(seconds, noise))
        }
    };
    assert_eq!(found(one_class(2), 3000, times(0.93), 2).stragglers, []);
    let slower = found(one_class(2), 3000, times(1.07), 2).stragglers;
    let [Straggler { rank: 0, basis: Some(Basis::Change), .. }] = slower[..] else {
        panic!("{slower:?}")
    };
}

#[test]
fn a_rank_is_compared_with_its_class_only() {
    // Two kinds of devices, one of which is twice as fast; a single rank of a third.
    let classes = vec![vec![0, 2, 4, 6], vec![1, 3, 5, 7], vec![8]];
    let times = |step: u64, rank: usize, noise: &mut Random| {
        let pace = if rank == 8 { 3.0 } else { 1.0 + (rank % 2) as f64 };
        let slower = if (rank == 3 || rank == 8) && step > 1000 { 1.2 } else { 1.0 };
        step_times(noisy(pace * slower, noise))
    };
    let detector = Detector::new(classes, Rule::default());
    let found = found(detector, 2000, times, 9).stragglers;
    let mut named: Vec<_> = found.iter().map(|it| (it.rank, it.basis.unwrap())).collect();
    named.sort_by_key(|it| it.0);
    assert_eq!(named, [(3, Basis::Few), (8, Basis::Change)], "{found:?}");
    let last = found.iter().find(|it| it.rank == 8).unwrap();
    // The slowest other one takes 2.4 of 3.6.
    assert!((last.job_gain_share.unwrap() - 1.0 / 3.0).abs() < 0.05, "{last:?}");
}

#[test]
fn the_kind_of_work_that_became_slow_is_named() {
    for kind in [Kind::Compute, Kind::Data, Kind::Communication, Kind::Host] {
        let times = |_: u64, rank: usize, noise: &mut Random| {
            let ns = |seconds: f64| (seconds * 1e9) as u64;
            let mut phases = PhaseTimes {
                data: ns(0.02),
                forward: ns(noisy(0.3, noise)),
                backward: ns(noisy(0.6, noise)),
                other: ns(0.03),
                ..ByPhase::default()
            };
            let added = if rank == 1 { ns(0.25) } else { 0 };
            match kind {
                Kind::Compute => phases.forward += added,
                Kind::Data => phases.data += added,
                Kind::Host => phases.other += added,
                _ => phases.backward += added,
            }
            let starting_ns = if kind == Kind::Communication { added } else { 0 };
            OwnTime::of_step(&phases, starting_ns).into()
        };
        let found = found(one_class(4), 400, times, 4).stragglers;
        let [Straggler { rank: 1, kind: named, .. }] = found[..] else { panic!("{found:?}") };
        assert_eq!(named, kind);
    }
}

#[test]
fn a_slower_network_is_a_notice_that_blames_no_rank() {
    let times = |step: u64, _, noise: &mut Random| {
        let exposed = if (1001..=3000).contains(&step) { 0.2 } else { 0.1 };
        StepTimes { exposed_seconds: noisy(exposed, noise), ..step_times(noisy(1.0, noise)) }
    };
    let Findings { stragglers, notices } = found(one_class(4), 5000, times, 4);
    assert_eq!(stragglers, []);
    let [begun, over] = &notices[..] else { panic!("{notices:?}") };
    assert_eq!((begun.part, begun.until_step), (SharedPart::Network, None));
    assert!((800..=1001).contains(&begun.since_step), "{begun:?}");
    assert!((0.07..0.11).contains(&begun.slower_share), "{begun:?}");
    assert!(over.until_step > Some(3000), "{over:?}");
    assert!(begun.text().contains("no rank explains it"), "{}", begun.text());
}

#[test]
fn a_slowdown_of_all_ranks_is_a_notice() {
    for seconds in [0.05, 1.0, 20.0] {
        let times = |step: u64, _, noise: &mut Random| {
            step_times(noisy(if step > 1000 { 1.06 * seconds } else { seconds }, noise))
        };
        let Findings { stragglers, notices } = found(one_class(4), 3000, times, 4);
        assert_eq!(stragglers, []);
        let [Notice { part: SharedPart::OwnTime, until_step: None, .. }] = notices[..] else {
            panic!("{notices:?}")
        };
    }
}

#[test]
fn steps_without_times_and_jobs_without_peers_have_no_verdicts() {
    let slow = |step: u64, rank: usize, noise: &mut Random| {
        if step.is_multiple_of(2) {
            StepTimes::ZERO
        } else {
            step_times(noisy(1.0 + rank as f64, noise))
        }
    };
    let named = found(one_class(2), 800, slow, 2).stragglers;
    assert_eq!(named.iter().map(|it| it.rank).collect::<Vec<_>>(), [1]);
    assert_eq!(found(one_class(1), 800, slow, 1), Findings::default());
    let off = Detector::new(vec![vec![0, 1]], Rule { block_steps: 0, ..Rule::default() });
    assert_eq!(found(off, 800, slow, 2), Findings::default());
}
