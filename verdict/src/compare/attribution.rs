//! Attribution of the difference of step times to phases and ranks.

use std::collections::BTreeSet;

use serde::Serialize;

use super::design::Design;
use super::estimate::{Estimate, mean};
use super::metric::{mean_step_ms, own_ms};
use super::side::Side;
use record::Kind;
use record::Record;
use record::hardware::HardwareSummary;
use record::phase::Phase;

/// Difference of the mean step time, and its parts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Attribution {
    /// Milliseconds by which a step takes longer than on the base's side.
    pub step_ms: f64,
    /// Phases, the largest part first; they add up to `step_ms`.
    pub phases: Vec<PhasePart>,
    /// Ranks that have become slower than the other ranks, the slowest first.
    pub ranks: Vec<RankPart>,
}

/// Part of a phase.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PhasePart {
    pub phase: Phase,
    /// Milliseconds per step.
    pub added_ms: f64,
}

/// Additional time of a rank's own part of a step, without waiting for other ranks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RankPart {
    pub rank: usize,
    /// Host of the rank on this side.
    pub host: String,
    pub kind: Kind,
    /// Milliseconds per step.
    pub added_ms: f64,
    /// Additional milliseconds of the median rank.
    pub others_added_ms: f64,
    /// Reasons for which the clocks of its GPU were held down on this side.
    pub held_down: Vec<String>,
}

/// Probability of naming a rank that has not become slower, over all ranks.
const WRONG_RANK_RATE: f64 = 0.01;

impl Attribution {
    /// Attributes the difference to phases, and to ranks whose relative own time grew by the
    /// threshold.
    pub(super) fn of(base: &Side, new: &Side, design: &Design<'_>, threshold: f64) -> Option<Self> {
        let step_ms = average(new, mean_step_ms)? - average(base, mean_step_ms)?;
        let of_step = Phase::ALL.into_iter().filter(|phase| !OUTSIDE_OF_STEPS.contains(phase));
        let mut phases: Vec<_> = of_step
            .filter_map(|phase| {
                let phase_ms = |record: &Record| {
                    let steps = record.steps.as_ref()?.measured as f64;
                    Some(record.phases?.get(phase).seconds * 1e3 / steps)
                };
                let added_ms = average(new, phase_ms)? - average(base, phase_ms)?;
                Some(PhasePart { phase, added_ms })
            })
            .collect();
        let direction = step_ms.signum();
        phases.sort_by(|a, b| (direction * b.added_ms).total_cmp(&(direction * a.added_ms)));
        Some(Self { step_ms, phases, ranks: ranks(base, new, design, threshold) })
    }
}

/// Phases that are not part of the step time.
const OUTSIDE_OF_STEPS: [Phase; 2] = [Phase::Checkpoint, Phase::Eval];

fn average(side: &Side, of: impl Fn(&Record) -> Option<f64>) -> Option<f64> {
    let values: Vec<f64> = side.records().filter_map(of).collect();
    (!values.is_empty()).then(|| mean(&values))
}

/// Finds ranks whose own time has grown, relative to the median rank of the same run: a slowdown of
/// all ranks at once does not count.
fn ranks(base: &Side, new: &Side, design: &Design<'_>, threshold: f64) -> Vec<RankPart> {
    let world = |side: &Side| side.records().map(|record| record.ranks.len()).min().unwrap_or(0);
    let ranks = world(new);
    if world(base) != ranks || ranks < 2 {
        return Vec::new();
    }
    let added = |rank| {
        let own = |record: &Record| own_ms(record, rank);
        Some(average(new, own)? - average(base, own)?)
    };
    let all: Option<Vec<f64>> = (0..ranks).map(added).collect();
    let Some(all) = all else { return Vec::new() };
    let hosts = &new.sources[0].record.ranks;
    let error_rate = WRONG_RANK_RATE / ranks as f64;
    let mut slower: Vec<_> = (0..ranks)
        .filter(|rank| {
            let relative = |record: &Record| {
                Some(libm::log(own_ms(record, *rank)? / median_of_ranks(record)?))
            };
            let estimate = design.estimate(relative, error_rate).map(Estimate::exponential);
            estimate.is_some_and(|it| it.low > 0.0 && it.effect >= threshold)
        })
        .map(|rank| RankPart {
            rank,
            host: hosts[rank].host.clone(),
            kind: kind(base, new, rank),
            added_ms: all[rank],
            others_added_ms: lower_median(&all),
            held_down: held_down(new, rank),
        })
        .collect();
    slower.sort_by(|a, b| b.added_ms.total_cmp(&a.added_ms));
    slower
}

/// Lists the reasons for which the clocks of a rank's GPU were held down in any run.
fn held_down(side: &Side, rank: usize) -> Vec<String> {
    let gpus = side.records().filter_map(|record| record.ranks.get(rank)?.gpu.as_ref());
    let reasons: BTreeSet<&str> = gpus.filter_map(HardwareSummary::held_down).flatten().collect();
    reasons.into_iter().map(str::to_owned).collect()
}

fn median_of_ranks(record: &Record) -> Option<f64> {
    let own: Option<Vec<f64>> = (0..record.ranks.len()).map(|rank| own_ms(record, rank)).collect();
    Some(lower_median(&own?))
}

/// Finds the kind of work that takes a rank longer.
fn kind(base: &Side, new: &Side, rank: usize) -> Kind {
    let added = |kind: Kind| {
        let spent = |record: &Record| phases_ms(record, rank, kind.phases());
        average(new, spent).unwrap_or(0.0) - average(base, spent).unwrap_or(0.0)
    };
    let kinds = [Kind::Compute, Kind::Data, Kind::Host];
    kinds.into_iter().max_by(|a, b| added(*a).total_cmp(&added(*b))).unwrap_or(Kind::Compute)
}

/// Sums milliseconds per step in some phases, in the last attempt.
fn phases_ms(record: &Record, rank: usize, phases: &[Phase]) -> Option<f64> {
    let attempt = record.attempts.last()?;
    let steps = attempt.last_step - attempt.resumed_after_step?;
    let spent = record.ranks.get(rank)?.phases_ns?;
    let spent_ns: u64 = phases.iter().map(|phase| spent.get(*phase)).sum();
    (steps > 0).then(|| spent_ns as f64 / 1e6 / steps as f64)
}

/// Returns the lower median, so that one of two ranks can stand out.
fn lower_median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len().div_ceil(2) - 1]
}
