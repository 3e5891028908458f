//! What is told of a run beside its step lines: on stderr, for people or for programs.

use std::fmt::Display;
use std::io::Write;
use std::path::Path;

use serde::Serialize;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::record::{Reason, Record, Status};
use crate::telemetry::LogFormat;

/// Tells of a run in its folder.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Teller<'run> {
    pub(crate) format: LogFormat,
    pub(crate) folder: &'run Path,
    /// Ranks other than 0 are quiet.
    pub(crate) is_quiet: bool,
}

/// How a run ended, for programs.
#[derive(Debug, Serialize)]
pub(crate) struct Ended {
    pub(crate) status: Status,
    pub(crate) exit_code: Option<u8>,
    pub(crate) reason: Option<Reason>,
    /// Newest committed checkpoint.
    pub(crate) committed_step: Option<u64>,
}

impl Ended {
    /// As its record says.
    pub(crate) fn of(record: &Record, committed_step: Option<u64>) -> Self {
        let (status, exit_code, reason) = (record.status, record.exit_code, record.reason.clone());
        Self { status, exit_code, reason, committed_step }
    }
}

impl Teller<'_> {
    /// Training starts, or goes on.
    pub(crate) fn start(&self, text: impl Display) {
        self.tell("start", text, json!({}));
    }

    /// What was asked for of a step that an earlier start took.
    pub(crate) fn done_before(&self, step: u64, missed: &str) {
        self.note(format!("step {step} was done before: {missed}"));
    }

    /// Something that the user may not expect.
    pub(crate) fn note(&self, text: impl Display) {
        self.tell("note", text, json!({}));
    }

    /// The run ended.
    pub(crate) fn end(&self, text: impl Display, ended: &Ended) {
        self.tell("end", text, json!(ended));
    }

    fn tell(&self, event: &str, text: impl Display, mut details: Value) {
        if !self.is_quiet {
            details["folder"] = self.folder.to_string_lossy().into();
            tell(self.format, event, text, details);
        }
    }
}

/// What ended this process, by each rank that fails. `rank` is the one that tells it, `null` before
/// ranks have met; `caused_by_rank` and `step` are `null` where they are not known.
pub(crate) fn tell_failure(format: LogFormat, failure: &Failure) {
    let text = match format {
        LogFormat::Text => format!("error: {failure}"),
        LogFormat::Json => failure.to_string(),
    };
    let details = json!({
        "exit_code": failure.code as u8,
        "rank": failure.told_by,
        "caused_by_rank": failure.rank,
        "step": failure.step,
    });
    tell(format, "error", text, details);
}

/// One sentence for people; or for programs one object with `event`, `text` and the `details`.
/// Written at once: a launcher mixes the pieces of its ranks. A stderr that is gone is no error.
fn tell(format: LogFormat, event: &str, text: impl Display, mut details: Value) {
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
