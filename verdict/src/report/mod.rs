//! `yardstick report DIR`: the result of a run, as text and as JSON.

mod facts;
mod hardware;
mod html;
mod markdown;
mod overview;
mod render;
mod starts;
mod traffic;
mod transports;
mod workload;

use std::path::Path;

use serde::Serialize;

pub use starts::{Start, table as starts};
pub use workload::parameters;

use record::text::number_format;
use record::{
    Error, ErrorFile, LoadedRecord, MEASURED_STEPS_MIN, Record, Reference, Status, StepSeries,
    injected_warning,
};

/// The result of a run. [`Display`](std::fmt::Display) is a page of 80 columns; [`Serialize`] is
/// the output of `--json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReportData {
    /// The record; if it has no figures yet, they are calculated from the recorded steps.
    pub record: Record,
    /// Number of ranks of the last attempt.
    pub world: usize,
    /// State of the run: the record's status, or `dead` if it is running by its record but no
    /// process holds its folder.
    pub state: &'static str,
    /// Hosts of the ranks, each once, in the order of ranks.
    pub hosts: Vec<String>,
    /// Folder of the run, or the file of a record without one; `null` if it has no own place.
    pub folder: Option<String>,
    /// Limits on the meaning of the figures.
    pub warnings: Vec<String>,
}

/// Reads the folder of a run, which may still be running, a file of a record, or a folder of
/// several runs.
///
/// # Errors
/// [`Error`] when there is no record, or when it or the steps are damaged or unreadable.
pub fn reports(place: &Path) -> Result<Vec<ReportData>, Error> {
    let mut each = Record::read_each(place)?;
    // Runs that ended before their record have nothing to report, if there are others.
    let is_there = |record: &Result<Record, Error>| !matches!(record, Err(Error::NoRecord { .. }));
    if each.iter().any(|(_, record)| is_there(record)) {
        each.retain(|(_, record)| is_there(record));
    }
    let report = |(path, record): LoadedRecord<Error>| match path.parent() {
        Some(dir) if path == Record::path(dir) => report_of(dir, record?),
        _ => Ok(ReportData::new(record?).with_folder(&path.display().to_string())),
    };
    each.into_iter().map(report).collect()
}

/// Formats reports as one self-contained page of HTML.
pub fn html(reports: &[ReportData]) -> String {
    html::page(reports)
}

/// Builds a table with one row per run: text that is Markdown too.
pub fn overview(reports: &[ReportData]) -> String {
    overview::table(reports).to_string()
}

/// Builds the report of the run in this folder.
fn report_of(dir: &Path, mut record: Record) -> Result<ReportData, Error> {
    let world = record.ranks.len().max(1);
    if record.steps.is_none() {
        let series = StepSeries::read(dir, world, None)?;
        record.measure(&series, &Reference::default(), None);
        record.note_missing();
    }
    let is_dead = record.is_dead(dir);
    let mut report = ReportData::new(record).with_folder(&dir.display().to_string());
    if is_dead {
        report.state = DEAD;
        report.warnings.retain(|warning| warning != RUNNING_OR_KILLED);
        report.warnings.insert(0, KILLED.to_owned());
    }
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

/// State of a run without a process and without a recorded end.
const DEAD: &str = "dead";

const RUNNING_OR_KILLED: &str = "the run is still running, or was killed";
const KILLED: &str = "the run was killed: no process holds its folder; unless a launcher does, \
                      the same command resumes it";

/// Maximum share of time outside of all phases: a larger one means that something is not measured.
const OTHER_SHARE_MAX: f64 = 0.05;

impl ReportData {
    /// Builds the report of a record.
    pub fn new(record: Record) -> Self {
        let mut hosts: Vec<String> = Vec::new();
        for rank in &record.ranks {
            if !hosts.contains(&rank.host) {
                hosts.push(rank.host.clone());
            }
        }
        let warnings = warnings(&record);
        let (world, state) = (record.ranks.len().max(1), record.status.name());
        Self { world, state, record, hosts, folder: None, warnings }
    }

    /// Sets the folder or the name of the run.
    #[must_use]
    pub fn with_folder(self, folder: &str) -> Self {
        Self { folder: Some(folder.to_owned()), ..self }
    }

    /// Formats the report as Markdown, for a pull request.
    pub fn to_markdown(&self) -> String {
        markdown::page(self)
    }

    /// Converts the report to JSON.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!(self)
    }
}

fn warnings(record: &Record) -> Vec<String> {
    let mut warnings = Vec::new();
    if record.status == Status::Running {
        warnings.push(RUNNING_OR_KILLED.to_owned());
    }
    if record.status == Status::Void {
        warnings.push("the run is void: do not use its figures".to_owned());
    }
    warnings.extend(injected_warning(record.injected()));
    if let Some(steps) = &record.steps {
        if !steps.is_steady {
            warnings.push("step times had not settled: no gate passes such a run alone".to_owned());
        }
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
