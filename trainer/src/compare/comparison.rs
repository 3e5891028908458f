//! Compares two sides: estimates and verdicts of all metrics.

use serde::Serialize;

use super::attribution::Attribution;
use super::design::{Design, Method};
use super::differences::{Difference, differences};
use super::estimate::Estimate;
use super::metric::{Noise, PRIMARY, metrics};
use super::side::{Side, Source};
use super::verdict::Verdict;
use crate::failure::{Failure, Outcome};

/// How to compare.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// A smaller relative change does not matter.
    pub(crate) threshold: f64,
    /// The same for single metrics, by name.
    pub(crate) thresholds: Vec<(String, f64)>,
    /// Compare rates per rank, so that worlds of different sizes can be compared.
    pub(crate) per_rank: bool,
    /// Relative standard deviation between sessions of this machine, as the user knows it.
    pub(crate) deviation: Option<f64>,
}

/// How often identical runs may be called different, over all metrics together.
const ERROR_RATE: f64 = 0.05;

/// The result of a comparison. [`Display`](std::fmt::Display) is a page of 80 columns.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Comparison {
    /// What was computed on both sides.
    pub(crate) workload: String,
    /// Its id.
    pub(crate) workload_id: String,
    /// Of all metrics: worse if one is, else that of tokens per second.
    pub(crate) verdict: Verdict,
    /// Where the variance is from.
    pub(crate) method: Method,
    /// Every metric that both sides have.
    pub(crate) metrics: Vec<MetricComparison>,
    /// What makes up the difference of step times.
    pub(crate) attribution: Option<Attribution>,
    /// What else differs between the sides.
    pub(crate) differences: Vec<Difference>,
}

/// One metric on both sides.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct MetricComparison {
    pub(crate) name: String,
    pub(crate) unit: &'static str,
    /// Mean over the runs.
    pub(crate) base: f64,
    /// The same of the other side.
    pub(crate) new: f64,
    /// The change: relative to the base; of a phase, to the time of the base's steps.
    #[serde(flatten)]
    pub(crate) estimate: Estimate,
    pub(crate) threshold: f64,
    pub(crate) verdict: Verdict,
}

impl Comparison {
    /// Compares two sides.
    ///
    /// # Errors
    /// Exit code 2 when they are not comparable, or a threshold is of no metric.
    pub(crate) fn of(base: &Side, new: &Side, settings: &Settings) -> Outcome<Self> {
        require_comparable(base, new, settings.per_rank)?;
        let records = base.records().chain(new.records());
        let metrics = metrics(records);
        for (name, _) in &settings.thresholds {
            if !metrics.iter().any(|metric| metric.name == *name) {
                let known: Vec<_> = metrics.iter().map(|metric| metric.name.as_str()).collect();
                let known = known.join(", ");
                let text = format!("--metric-threshold {name}: expected one of {known}");
                return Err(Failure::usage(text));
            }
        }
        let design = Design::new(base, new, settings.deviation);
        let noisy = metrics.iter().filter(|metric| metric.noise != Noise::Exact).count();
        let others = ERROR_RATE / 2.0 / noisy.saturating_sub(1).max(1) as f64;
        let compared: Vec<_> = metrics
            .iter()
            .filter_map(|metric| {
                let rate = if metric.name == PRIMARY { ERROR_RATE / 2.0 } else { others };
                design.compare(metric, rate, settings)
            })
            .collect();
        let any_worse = compared.iter().any(|metric| metric.verdict == Verdict::Worse);
        let primary = compared.first().map_or(Verdict::TooNoisy, |metric| metric.verdict);
        let record = &base.sources[0].record;
        Ok(Self {
            workload: record.workload.name.clone(),
            workload_id: record.workload.id.clone(),
            verdict: if any_worse { Verdict::Worse } else { primary },
            method: design.method(),
            metrics: compared,
            attribution: Attribution::of(base, new, &design, settings.threshold),
            differences: differences(base, new),
        })
    }
}

fn require_comparable(base: &Side, new: &Side, per_rank: bool) -> Outcome<()> {
    let Some(Source { path: first_path, record: first }) = base.sources.first() else {
        return Err(Failure::usage("BASE: expected a record, found none"));
    };
    if new.sources.is_empty() {
        return Err(Failure::usage("NEW: expected a record, found none"));
    }
    for Source { path, record } in base.sources.iter().chain(&new.sources) {
        let (path, first_path) = (path.display(), first_path.display());
        if record.workload.id != first.workload.id {
            return Err(Failure::usage(format!(
                "{path}: computed {} ({}), and {first_path} {} ({}): only runs of the same \
                 workload can be compared",
                record.workload.name, record.workload.id, first.workload.name, first.workload.id
            )));
        }
        if record.ranks.len() != first.ranks.len() && !per_rank {
            return Err(Failure::usage(format!(
                "{path}: {} ranks, and {first_path} {}\n  hint: --per-rank compares rates per rank",
                record.ranks.len(),
                first.ranks.len()
            )));
        }
    }
    Ok(())
}
