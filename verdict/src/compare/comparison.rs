//! Comparison of two sides: estimates and verdicts of all metrics, and the gates' verdict.

use serde::{Deserialize, Serialize};

use super::attribution::Attribution;
use super::comparable::{not_comparable, require_comparable};
use super::design::Design;
use super::differences::{Difference, differences};
use super::estimate::Estimate;
use super::evidence::Evidence;
use super::gate::Gate;
use super::metric::{Metric, PRIMARY, metrics};
use super::side::Side;
use super::verdict::Verdict;
use crate::error::Result;
use record::ExitCode;

/// Settings of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Threshold below which a relative change does not matter.
    pub threshold: f64,
    /// Metrics that decide.
    pub gates: Vec<Gate>,
    /// Compares rates per rank, so that worlds of different sizes can be compared.
    pub per_rank: bool,
    /// Relative standard deviation between sessions of this machine that the user states.
    pub deviation: Option<f64>,
    /// Also compares runs into which faults were injected.
    pub allow_injected: bool,
    /// Lets a comparison pass that is too noisy to decide.
    pub allow_noisy: bool,
}

/// Probability of calling identical runs different, over all gated metrics together. Each metric
/// that is not gated has this probability alone.
const ERROR_RATE: f64 = 0.05;

/// Result of a comparison. [`Display`](std::fmt::Display) is a page of 80 columns.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    /// Workload of both sides.
    pub workload: String,
    /// Id of the workload.
    pub workload_id: String,
    /// Verdict of the gated metric that decides.
    pub verdict: Verdict,
    /// Exit code of `compare`.
    pub exit_code: u8,
    /// Name of that metric.
    pub decided_by: String,
    /// Verdict in one line, with the deciding metric and its evidence.
    pub headline: String,
    /// Evidence of the verdict.
    #[serde(flatten)]
    pub evidence: Evidence,
    /// All metrics that every record has.
    pub metrics: Vec<MetricComparison>,
    /// Metrics that only some records have.
    pub missing: Vec<Missing>,
    /// Parts of the difference of step times.
    pub attribution: Option<Attribution>,
    /// Other differences between the sides.
    pub differences: Vec<Difference>,
}

/// One metric on both sides.
#[derive(Debug, Clone, Serialize)]
pub struct MetricComparison {
    pub name: String,
    pub unit: &'static str,
    /// True if the metric decides.
    pub is_gated: bool,
    /// Mean over the base's runs.
    pub base: f64,
    /// Mean over the runs of the other side.
    pub new: f64,
    /// Change relative to the base; for a phase, relative to the time of the base's steps.
    #[serde(flatten)]
    pub estimate: Estimate,
    pub threshold: f64,
    pub verdict: Verdict,
}

/// A metric that is not compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Missing {
    pub name: String,
    /// Records that lack the metric.
    pub records: Vec<String>,
}

/// Terms on which a metric is compared.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    pub(super) is_gated: bool,
    pub(super) threshold: f64,
    /// Probability that its interval misses the truth.
    pub(super) error_rate: f64,
}

impl Settings {
    /// Returns the terms of a metric. The primary metric has half of the error rate if it is gated,
    /// and the other gated metrics share the rest.
    fn terms(&self, metric: &Metric) -> Terms {
        let gate = self.gates.iter().find(|gate| gate.metric == metric.name);
        let others = self.gates.iter().filter(|gate| gate.metric != PRIMARY).count();
        let error_rate = match gate {
            None => ERROR_RATE,
            Some(gate) if gate.metric == PRIMARY => ERROR_RATE / 2.0,
            Some(_) => ERROR_RATE / 2.0 / others as f64,
        };
        let threshold = gate.and_then(|gate| gate.threshold).unwrap_or(self.threshold);
        Terms { is_gated: gate.is_some(), threshold, error_rate }
    }

    fn exit_code(&self, verdict: Verdict) -> ExitCode {
        match verdict {
            Verdict::Worse => ExitCode::Regression,
            Verdict::TooNoisy if !self.allow_noisy => ExitCode::TooNoisy,
            Verdict::TooNoisy | Verdict::NotWorse | Verdict::Same | Verdict::Better => {
                ExitCode::Done
            }
        }
    }
}

impl Comparison {
    /// Compares two sides.
    ///
    /// # Errors
    /// Exit code 12 when they are not comparable, and 2 when a gate is not a metric.
    pub fn of(base: &Side, new: &Side, settings: &Settings) -> Result<Self> {
        require_comparable(base, new, settings)?;
        let design = Design::new(base, new, settings.deviation);
        let evidence = Evidence::of(&design, base, new);
        let mut compared = Vec::new();
        let mut missing = Vec::new();
        for metric in metrics(base.records().chain(new.records())) {
            let terms = settings.terms(&metric);
            match lacking(&metric, base, new) {
                // A gated metric that is zero on both sides has not changed.
                Lacking::All if !terms.is_gated => {}
                Lacking::None | Lacking::All => {
                    compared.extend(design.compare(&metric, terms, settings.per_rank));
                }
                Lacking::Some(records) => missing.push(Missing { name: metric.name, records }),
            }
        }
        for metric in &mut compared {
            metric.verdict = evidence.admitted(metric.verdict);
        }
        let gated = compared.iter().filter(|metric| metric.is_gated);
        let decisive = gated.min_by_key(|metric| metric.verdict.weight());
        let decisive = decisive.cloned().ok_or_else(|| {
            not_comparable("expected a gated metric that both sides have, found none".to_owned())
        })?;
        let record = &base.sources[0].record;
        let mut comparison = Self {
            workload: record.workload.name.clone(),
            workload_id: record.workload.id.clone(),
            verdict: decisive.verdict,
            exit_code: settings.exit_code(decisive.verdict) as u8,
            decided_by: decisive.name.clone(),
            headline: String::new(),
            evidence,
            metrics: compared,
            missing,
            attribution: Attribution::of(base, new, &design, settings.threshold),
            differences: differences(base, new),
        };
        comparison.headline = comparison.sentence(&decisive);
        Ok(comparison)
    }
}

/// Records that lack a metric.
enum Lacking {
    None,
    Some(Vec<String>),
    /// All lack it, or it is zero in all: nothing of the kind happened.
    All,
}

fn lacking(metric: &Metric, base: &Side, new: &Side) -> Lacking {
    let all = || base.sources.iter().chain(&new.sources);
    if !all().any(|source| metric.value(&source.record).is_some_and(|value| value != 0.0)) {
        return Lacking::All;
    }
    let without = all().filter(|source| metric.usable(&source.record).is_none());
    let records: Vec<_> = without.map(|source| source.path.display().to_string()).collect();
    if records.is_empty() { Lacking::None } else { Lacking::Some(records) }
}
