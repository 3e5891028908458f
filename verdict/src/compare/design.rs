//! Design of a comparison: the pairing of runs, and the resulting estimate of a metric.

use serde::Serialize;

use super::allan;
use super::comparison::{MetricComparison, Terms};
use super::estimate::{Deviation, Estimate, Samples, mean, sum_of_squares};
use super::metric::{Metric, Noise, PRIMARY, Scale, mean_step_ms};
use super::side::{SESSION_GAP_MS, Side, Source, ended_unix_ms, started_unix_ms};
use super::verdict::Verdict;
use record::Record;

/// Minimum number of sessions of a side to estimate the deviation between them.
const SESSIONS_MIN: usize = 3;

/// Minimum number of pairs for an estimate.
const PAIRS_MIN: usize = 3;

/// Largest deviation between runs on file: ten runs of workload `smoke` one after the other on an
/// idle virtual machine had 27,035 to 34,722 tokens/s, a coefficient of variation of 8 %. An
/// unknown machine is not assumed to be better.
const PRIOR_DEVIATION: Deviation = Deviation { relative: 0.08, freedom: 9.0 };

/// Source of an estimate's variance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Alternating runs of both sides, in pairs.
    Pairs,
    /// Several sessions, far enough apart to have seen the machine change.
    Sessions,
    /// Deviation on file of other machines, or stated by the user: there are too few sessions.
    Assumed,
}

/// Grouping of the runs of both sides.
pub(super) enum Design<'sides> {
    /// Pairs of a run of the base and one of the other side, next to each other in time.
    Pairs(Vec<[&'sides Record; 2]>),
    /// Runs of each session.
    Sessions { base: Vec<&'sides [Source]>, new: Vec<&'sides [Source]> },
    /// All runs of each side, and the assumed deviation between their sessions.
    Assumed { base: &'sides [Source], new: &'sides [Source], deviation: Deviation },
}

impl<'sides> Design<'sides> {
    pub(super) fn new(base: &'sides Side, new: &'sides Side, known: Option<f64>) -> Self {
        if let Some(pairs) = pairs(base, new) {
            return Self::Pairs(pairs);
        }
        let (base_sessions, new_sessions) = (base.sessions(), new.sessions());
        if base_sessions.len() >= SESSIONS_MIN && known.is_none() {
            return Self::Sessions { base: base_sessions, new: new_sessions };
        }
        let deviation = assumed_deviation(known, base.records().chain(new.records()));
        Self::Assumed { base: &base.sources, new: &new.sources, deviation }
    }

    pub(super) fn method(&self) -> Method {
        match self {
            Self::Pairs(_) => Method::Pairs,
            Self::Sessions { .. } => Method::Sessions,
            Self::Assumed { .. } => Method::Assumed,
        }
    }

    /// Returns all records of both sides.
    fn sides(&self) -> [Vec<&'sides Record>; 2] {
        let of_sources = |sources: &'sides [Source]| sources.iter().map(|source| &source.record);
        match self {
            Self::Pairs(pairs) => [0, 1].map(|side| pairs.iter().map(|pair| pair[side]).collect()),
            Self::Sessions { base, new } => [base, new]
                .map(|sessions| sessions.iter().flat_map(|runs| of_sources(runs)).collect()),
            Self::Assumed { base, new, .. } => [base, new].map(|runs| of_sources(runs).collect()),
        }
    }

    /// Compares a metric that all records have; `None` if there are too few.
    pub(super) fn compare(
        &self,
        metric: &Metric,
        terms: Terms,
        per_rank: bool,
    ) -> Option<MetricComparison> {
        let is_per_rank = per_rank && metric.name == PRIMARY;
        let value = |record: &Record| {
            let ranks = if is_per_rank { record.ranks.len() } else { 1 };
            metric.usable(record).map(|value| value / ranks as f64)
        };
        let [base, new] = self.sides().map(|records| {
            let values: Vec<f64> = records.into_iter().filter_map(value).collect();
            mean(&values)
        });
        // Scale on which effects are additive.
        let scaled = |record: &Record| match metric.scale {
            Scale::Itself => value(record).map(libm::log),
            Scale::StepTime => Some(value(record)? / self.mean_base_step_ms()),
        };
        let estimate = self.estimate(scaled, terms.error_rate)?;
        let is_known = metric.noise == Noise::OfSteps || self.method() != Method::Assumed;
        let estimate =
            if metric.scale == Scale::Itself { estimate.exponential() } else { estimate };
        let estimate = if is_known { estimate } else { estimate.unknown() };
        Some(MetricComparison {
            name: metric.name.clone(),
            unit: metric.unit,
            is_gated: terms.is_gated,
            base,
            new,
            estimate,
            threshold: terms.threshold,
            verdict: Verdict::of(&estimate, metric.better, terms.threshold),
        })
    }

    fn mean_base_step_ms(&self) -> f64 {
        let times: Vec<_> = self.sides()[0].iter().copied().filter_map(mean_step_ms).collect();
        mean(&times)
    }

    /// Estimates the change of any value of records on a scale on which effects are additive.
    pub(super) fn estimate(
        &self,
        value: impl Fn(&Record) -> Option<f64>,
        error_rate: f64,
    ) -> Option<Estimate> {
        let values = |runs: &[Source]| -> Vec<f64> {
            runs.iter().filter_map(|source| value(&source.record)).collect()
        };
        match self {
            Self::Pairs(pairs) => {
                let differences: Option<Vec<f64>> =
                    pairs.iter().map(|[base, new]| Some(value(new)? - value(base)?)).collect();
                Estimate::paired(&differences?, error_rate)
            }
            Self::Sessions { base, new } => {
                // Means of the same number of runs are compared: those of more runs vary less.
                let runs = base.iter().chain(new).map(|runs| runs.len()).min().unwrap_or(0);
                let means = |sessions: &[&[Source]]| -> Vec<f64> {
                    let values = sessions.iter().map(|session| values(&session[..runs]));
                    values.filter(|values| !values.is_empty()).map(|v| mean(&v)).collect()
                };
                let (base, new) = (means(base), means(new));
                Estimate::unpaired(Samples { base: &base, new: &new }, error_rate)
            }
            Self::Assumed { base, new, deviation } => {
                let (base, new) = (values(base), values(new));
                if base.is_empty() || new.is_empty() {
                    return None;
                }
                let relative = deviation.relative.max(run_deviation(&base, &new));
                let deviation = Deviation { relative, ..*deviation };
                Some(Estimate::assumed(mean(&new) - mean(&base), deviation, error_rate))
            }
        }
    }
}

/// Returns the deviation that the user stated or the one on file, but at least the largest drift of
/// the pace within one of these runs.
fn assumed_deviation<'a>(
    known: Option<f64>,
    records: impl Iterator<Item = &'a Record>,
) -> Deviation {
    let relative = known.unwrap_or(PRIOR_DEVIATION.relative);
    let drift = records.filter_map(allan::deviation).fold(0.0, f64::max);
    Deviation { relative: relative.max(drift), freedom: PRIOR_DEVIATION.freedom }
}

/// Standard deviation within both sides; 0 if neither has several runs.
fn run_deviation(base: &[f64], new: &[f64]) -> f64 {
    let freedom = (base.len() + new.len()).saturating_sub(2).max(1);
    ((sum_of_squares(base) + sum_of_squares(new)) / freedom as f64).sqrt()
}

/// Pairs each run of the base with one of the other side, if the sides alternated with equal
/// numbers of steps; `None` otherwise.
fn pairs<'sides>(base: &'sides Side, new: &'sides Side) -> Option<Vec<[&'sides Record; 2]>> {
    let is_enough = base.sources.len() == new.sources.len() && base.sources.len() >= PAIRS_MIN;
    let pairs: Vec<_> = base.records().zip(new.records()).map(|(b, n)| [b, n]).collect();
    let start = |pair: &[&Record; 2]| pair.map(started_unix_ms);
    let end = |pair: &[&Record; 2]| pair.map(ended_unix_ms);
    let is_adjacent = |pair: &[&Record; 2]| {
        let second_start = start(pair).into_iter().max().unwrap_or(0);
        let first_end = end(pair).into_iter().min().unwrap_or(u64::MAX);
        second_start >= first_end && second_start - first_end < SESSION_GAP_MS
    };
    let completed = |record: &Record| record.steps.as_ref().map(|steps| steps.completed);
    let is_of_as_many_steps = |pair: &[&Record; 2]| completed(pair[0]) == completed(pair[1]);
    let in_turn =
        pairs.windows(2).all(|two| end(&two[0]).iter().max() <= start(&two[1]).iter().min());
    let are_alike = pairs.iter().all(|pair| is_adjacent(pair) && is_of_as_many_steps(pair));
    (is_enough && in_turn && are_alike).then_some(pairs)
}
