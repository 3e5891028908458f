//! `yardstick report DIR`: the result of a run, as text and as JSON.

mod hardware;
mod html;
mod markdown;
mod overview;
mod render;
mod starts;
mod transports;

use std::path::Path;

use serde::Serialize;

pub(crate) use starts::{Start, table as starts};

use crate::number_format;
use crate::record::{Error, ErrorFile, Record, Reference, Status, StepSeries};

/// The result of a run. [`Display`](std::fmt::Display) is a page of 80 columns; [`Serialize`] is
/// the output of `--json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReportData {
    /// The record; if it has no figures yet, they are calculated from the recorded steps.
    pub record: Record,
    /// Number of ranks of the last attempt.
    pub world: usize,
    /// Their hosts, each once, in the order of ranks.
    pub hosts: Vec<String>,
    /// What limits the meaning of the figures.
    pub warnings: Vec<String>,
}

/// Reads the folder of a run, which may still be running, a file of a record, or a folder of
/// several runs.
///
/// # Errors
/// [`Error`] when there is no record, or when it or the steps are damaged or unreadable.
pub fn reports(place: &Path) -> Result<Vec<ReportData>, Error> {
    if Record::path(place).is_file() {
        return Ok(vec![report(place)?]);
    }
    let records = Record::read_all(place)?;
    Ok(records.into_iter().map(|(_, record)| ReportData::new(record)).collect())
}

/// Reports as one page of HTML that needs nothing else.
pub fn html(reports: &[ReportData]) -> String {
    html::page(reports)
}

/// Several runs in one table, a row each.
pub fn overview(reports: &[ReportData]) -> String {
    overview::table(reports.iter().map(|report| &report.record)).to_string()
}

fn report(dir: &Path) -> Result<ReportData, Error> {
    let mut record = Record::read(dir)?;
    let world = record.ranks.len().max(1);
    if record.steps.is_none() {
        let series = StepSeries::read(dir, world, None)?;
        record.measure(&series, &Reference::default(), None);
        record.note_missing();
    }
    let mut report = ReportData::new(record);
    let reason = report.record.reason.as_ref().map(|reason| reason.text.clone());
    let unfinished = [Status::Running, Status::Failed].contains(&report.record.status);
    let last = report.record.attempts.last().filter(|_| unfinished);
    if let Some(file) = last.and_then(|attempt| ErrorFile::of_attempt(dir, attempt.number))
        && (reason.is_none() || file.is_root_cause())
        && reason.as_ref() != Some(&file.reason.text)
    {
        let code = file.exit_code;
        let text = file.reason.text;
        report.warnings.push(format!("a rank exited with code {code}: {text}"));
    }
    Ok(report)
}

/// With fewer measured steps than this, percentiles are not reliable.
const MEASURED_STEPS_MIN: u64 = 20;

/// A larger share of time outside of all phases means that something is not measured.
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

    /// The report as Markdown, for a pull request.
    pub fn to_markdown(&self) -> String {
        markdown::page(self)
    }

    /// The report as JSON.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!(self)
    }
}

fn warnings(record: &Record) -> Vec<String> {
    let mut warnings = Vec::new();
    if record.status == Status::Running {
        warnings.push("the run is still running, or was killed".to_owned());
    }
    if record.status == Status::Void {
        warnings.push("the run is void: do not use its figures".to_owned());
    }
    if let Some(steps) = &record.steps {
        if steps.recorded < steps.completed {
            let lost = steps.completed - steps.recorded;
            let lost = number_format::count(lost as usize, "step");
            warnings.push(format!("{lost} missing in the file of rank 0"));
        }
        if steps.measured < MEASURED_STEPS_MIN {
            let few = number_format::count(steps.measured as usize, "measured step");
            warnings.push(format!("only {few}: p5 and p95 are not reliable"));
        }
    }
    if let Some(phases) = record.phases
        && phases.other.share > OTHER_SHARE_MAX
    {
        let share = number_format::percent(phases.other.share);
        warnings.push(format!("{share} of the time is in no phase"));
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
