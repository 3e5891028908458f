//! Messages about a run on stderr, as text or JSON: its start, notes, its end and errors.

use std::fmt::Display;
use std::io::Write;
use std::path::Path;

use serde::Serialize;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::record::{Reason, Record, Status};
use crate::telemetry::LogFormat;

/// Writes messages about the run in a folder.
#[derive(Debug, Clone, Copy)]
pub(super) struct Console<'run> {
    pub(super) format: LogFormat,
    pub(super) folder: &'run Path,
    /// True on all ranks except rank 0.
    pub(super) is_quiet: bool,
}

/// How a run ended, for JSON output.
#[derive(Debug, Serialize)]
pub(super) struct RunEnd {
    pub(super) status: Status,
    pub(super) exit_code: Option<u8>,
    pub(super) reason: Option<Reason>,
    /// Newest committed checkpoint.
    pub(super) committed_step: Option<u64>,
}

impl RunEnd {
    /// From the record of the run.
    pub(super) fn of(record: &Record, committed_step: Option<u64>) -> Self {
        Self {
            status: record.status,
            exit_code: record.exit_code,
            reason: record.reason.clone(),
            committed_step,
        }
    }
}

impl Console<'_> {
    /// Training starts, or resumes.
    pub(super) fn start(&self, text: impl Display) {
        self.message("start", text, json!({}));
    }

    /// Something that the user may not expect.
    pub(super) fn note(&self, text: impl Display) {
        self.message("note", text, json!({}));
    }

    /// A flag applies to a step that an earlier attempt completed, and has no effect.
    pub(super) fn note_completed_step(&self, flag: &str, step: u64) {
        self.note(format!("{flag}: no effect, step {step} was completed before"));
    }

    /// The run ended.
    pub(super) fn end(&self, text: impl Display, end: &RunEnd) {
        self.message("end", text, json!(end));
    }

    fn message(&self, event: &str, text: impl Display, mut details: Value) {
        if !self.is_quiet {
            details["folder"] = self.folder.to_string_lossy().into();
            write_message(self.format, event, text, details);
        }
    }
}

/// Reports the failure of this process; every failed rank does. In JSON, `rank` is the reporting
/// rank, `null` before the rendezvous; `caused_by_rank` and `step` are `null` if unknown.
pub(crate) fn report_failure(format: LogFormat, failure: &Failure) {
    let text = match format {
        LogFormat::Text => format!("error: {}", with_step(failure)),
        LogFormat::Json => failure.to_string(),
    };
    let details = json!({
        "exit_code": failure.code as u8,
        "rank": failure.reported_by,
        "caused_by_rank": failure.rank,
        "step": failure.step,
    });
    write_message(format, "error", text, details);
}

/// The error behind the step in which it happened, unless it names that itself.
fn with_step(failure: &Failure) -> String {
    let text = failure.to_string();
    let step = failure.step.map(|step| format!("step {step}"));
    match step.filter(|step| !names(&text, step)) {
        Some(step) => format!("{step}: {text}"),
        None => text,
    }
}

/// Whether a text has these words, and not as the beginning of a longer number.
fn names(text: &str, words: &str) -> bool {
    let is_whole = |rest: &str| !rest.starts_with(|character: char| character.is_ascii_digit());
    text.match_indices(words).any(|(at, _)| is_whole(&text[at + words.len()..]))
}

/// Writes the text, or as JSON an object with `event`, `text` and the `details`. One write per
/// message, because launchers interleave the output of ranks. A closed stderr is not an error.
fn write_message(format: LogFormat, event: &str, text: impl Display, mut details: Value) {
    let line = match format {
        LogFormat::Text => format!("{text}\n"),
        LogFormat::Json => {
            details["event"] = event.into();
            details["text"] = text.to_string().into();
            format!("{details}\n")
        }
    };
    let _ = std::io::stderr().write_all(line.as_bytes());
}
