//! `yardstick report DIR`: what a run's folder says, for people and as JSON.

pub(crate) mod format;
mod render;

use std::path::Path;

use serde::Serialize;

use crate::record::{Error, Record, Reference, Status, Word};
use crate::telemetry::{StepSeries, read_steps, steps_path};

/// A run as its folder tells it. [`Display`](std::fmt::Display) is a page of 80 columns;
/// [`Serialize`] is the answer to `--json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReportData {
    /// The record, its numbers made from the steps on file where it has none yet.
    pub record: Record,
    /// Number of ranks of the last attempt.
    pub world: usize,
    /// Their hosts, without repetition, in the order of ranks.
    pub hosts: Vec<String>,
    /// What a reader of the numbers should know.
    pub warnings: Vec<String>,
}

/// Reads the folder of a run, finished or not.
///
/// # Errors
/// [`Error`] when there is no record, or when it or the steps are damaged or unreadable.
pub fn report(dir: &Path) -> Result<ReportData, Error> {
    let mut record = Record::read(dir)?;
    let world = record.ranks.len().max(1);
    if record.steps.is_none() {
        let series = StepSeries::read(dir, world)?;
        record.measure(&series, &Reference::default(), None);
        record.note_unknown();
    }
    let mut report = ReportData::new(record);
    let told = report.record.reason.as_ref().map(|reason| reason.text.clone());
    let unfinished = [Status::Running, Status::Failed].contains(&report.record.status);
    let last = report.record.attempts.last().filter(|_| unfinished);
    if let Some(word) = last.and_then(|attempt| Word::of(dir, attempt.number))
        && (told.is_none() || word.is_own())
        && told.as_ref() != Some(&word.reason.text)
    {
        let (code, text) = (word.exit_code, word.reason.text);
        report.warnings.push(format!("a rank ended with exit code {code}: {text}"));
    }
    Ok(report)
}

/// The loss of every step, from rank 0's file, with every bit.
///
/// # Errors
/// As for [`read_steps`].
pub fn losses(dir: &Path) -> Result<Vec<(u64, f64)>, Error> {
    let lines = read_steps(&steps_path(dir, 0))?;
    Ok(lines.iter().map(|line| (line.sample.step, line.sample.loss)).collect())
}

/// Fewer measured steps than this say little about the edges of a distribution.
const MEASURED_STEPS_MIN: u64 = 20;

/// More time than this outside every phase means that something is not measured.
const OTHER_SHARE_MAX: f64 = 0.05;

impl ReportData {
    /// The report of a record.
    pub fn new(record: Record) -> Self {
        let mut hosts: Vec<String> = Vec::new();
        for rank in &record.ranks {
            if !hosts.contains(&rank.host) {
                hosts.push(rank.host.clone());
            }
        }
        let warnings = warnings(&record);
        Self { world: record.ranks.len().max(1), record, hosts, warnings }
    }

    /// The report as JSON.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!(self)
    }
}

fn warnings(record: &Record) -> Vec<String> {
    let mut warnings = Vec::new();
    if record.status == Status::Running {
        warnings.push("the run goes on, or was killed before it could say so".to_owned());
    }
    if record.status == Status::Void {
        warnings.push("the run is void: do not use its numbers".to_owned());
    }
    if let Some(steps) = &record.steps {
        if steps.recorded < steps.completed {
            let lost = steps.completed - steps.recorded;
            warnings.push(format!("{} not on file", format::count(lost as usize, "step")));
        }
        if steps.measured < MEASURED_STEPS_MIN {
            let few = format::count(steps.measured as usize, "measured step");
            warnings.push(format!("only {few}: p5 and p95 say little"));
        }
    }
    if let Some(phases) = record.phases
        && phases.other.share > OTHER_SHARE_MAX
    {
        let share = format::percent(phases.other.share);
        warnings.push(format!("{share} of the time belongs to no phase"));
    }
    warnings.extend(record.anomalies.iter().map(|anomaly| {
        let step = anomaly.step.map(|step| format!("step {step}: ")).unwrap_or_default();
        let rank = anomaly.rank.map(|rank| format!("rank {rank}: ")).unwrap_or_default();
        format!("{step}{rank}{}", anomaly.text)
    }));
    warnings
}

#[cfg(test)]
mod tests;
