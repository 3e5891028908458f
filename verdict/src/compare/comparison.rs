//! Compares two sides: estimates and verdicts of all metrics, and the verdict of the gated ones.

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

/// How to compare.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// A smaller relative change does not matter.
    pub threshold: f64,
    /// The metrics that decide.
    pub gates: Vec<Gate>,
    /// Compare rates per rank, so that worlds of different sizes can be compared.
    pub per_rank: bool,
    /// Relative standard deviation between sessions of this machine, as the user knows it.
    pub deviation: Option<f64>,
    /// Compare runs into which faults were injected, too.
    pub allow_injected: bool,
    /// Let pass what is too noisy to say.
    pub allow_noisy: bool,
}

/// How often identical runs may be called different, over all gated metrics together. Of those that
/// are not gated, each alone.
const ERROR_RATE: f64 = 0.05;

/// The result of a comparison. [`Display`](std::fmt::Display) is a page of 80 columns.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    /// What was computed on both sides.
    pub workload: String,
    /// Its id.
    pub workload_id: String,
    /// The verdict of the gated metric that decides.
    pub verdict: Verdict,
    /// Exit code of `compare`.
    pub exit_code: u8,
    /// The name of that metric.
    pub decided_by: String,
    /// The verdict in one line: what decides, on what evidence.
    pub headline: String,
    /// What the verdict rests on.
    #[serde(flatten)]
    pub evidence: Evidence,
    /// Every metric that all records have.
    pub metrics: Vec<MetricComparison>,
    /// Metrics that some records have and others lack.
    pub missing: Vec<Missing>,
    /// What makes up the difference of step times.
    pub attribution: Option<Attribution>,
    /// What else differs between the sides.
    pub differences: Vec<Difference>,
}

/// One metric on both sides.
#[derive(Debug, Clone, Serialize)]
pub struct MetricComparison {
    pub name: String,
    pub unit: &'static str,
    /// Whether it decides.
    pub is_gated: bool,
    /// Mean over the runs.
    pub base: f64,
    /// The same of the other side.
    pub new: f64,
    /// The change: relative to the base; of a phase, to the time of the base's steps.
    #[serde(flatten)]
    pub estimate: Estimate,
    pub threshold: f64,
    pub verdict: Verdict,
}

/// A metric that is not compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Missing {
    pub name: String,
    /// The records that lack it.
    pub records: Vec<String>,
}

/// How one metric is compared.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    pub(super) is_gated: bool,
    pub(super) threshold: f64,
    /// How often its interval may miss the truth.
    pub(super) error_rate: f64,
}

impl Settings {
    /// The primary metric has half of the error rate if it is gated, other gated ones share the
    /// rest.
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
    /// Exit code 12 when they are not comparable, and 2 when a gate is no metric.
    pub fn of(base: &Side, new: &Side, settings: &Settings) -> Result<Self> {
        require_comparable(base, new, settings)?;
        let design = Design::new(base, new, settings.deviation);
        let evidence = Evidence::of(&design, base, new);
        let mut compared = Vec::new();
        let mut missing = Vec::new();
        for metric in metrics(base.records().chain(new.records())) {
            let terms = settings.terms(&metric);
            match lacking(&metric, base, new) {
                // A gate that is zero on both sides has not changed.
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

/// Which records lack a metric.
enum Lacking {
    None,
    Some(Vec<String>),
    /// All, or it is zero in all: nothing of the kind happened.
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
