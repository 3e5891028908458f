//! The console sink: stderr, as text or JSON, for people.

use std::io::Write;

use serde_json::{Value, json};

use super::step_printer::StepPrinter;
use crate::event::{Event, StopRequest};
use crate::log_lines;
use crate::options::{LogFormat, TelemetryOptions};
use crate::sink::Sink;
use record::ExitCode;
use record::text::printable;

/// Prints everything on rank 0, and warnings and requests to stop on the other ranks. Failures to
/// print are ignored: a closed pipe must not end a run.
pub(crate) struct Console {
    options: TelemetryOptions,
    out: Box<dyn Write + Send>,
    is_terminal: bool,
    /// Step during which an event was emitted.
    step: Option<u64>,
    /// Printer of steps, while there are steps.
    printer: Option<StepPrinter>,
}

impl Console {
    pub(crate) fn new(
        options: TelemetryOptions,
        out: Box<dyn Write + Send>,
        is_terminal: bool,
    ) -> Self {
        Self { options, out, is_terminal, step: None, printer: None }
    }

    fn message(&mut self, event: &Event) {
        let text = match (self.options.log_format, event) {
            (LogFormat::Text, Event::Warning(_) | Event::Verdict(_) | Event::Corruption(_)) => {
                format!("warning: {}", event.text())
            }
            // The steps show the cost of a save, and the report the parts of the start.
            (LogFormat::Text, Event::Checkpoint(_) | Event::FirstStep(_)) => return,
            (LogFormat::Text, Event::Stop(_)) if self.options.world > 1 => {
                format!("rank {}: {}", self.options.rank, event.text())
            }
            _ => event.text(),
        };
        let mut details = event.details();
        details["rank"] = self.options.rank.into();
        details["host"] = self.options.host.as_str().into();
        details["folder"] = self.options.dir.to_string_lossy().into();
        let line = line(self.options.log_format, event.name(), &text, details, self.step);
        self.write(&line);
    }

    fn write(&mut self, line: &str) {
        let out = &mut self.out;
        let mut write = || drop(out.write_all(line.as_bytes()));
        match &self.printer {
            Some(printer) => printer.suspend(write),
            None => write(),
        }
    }
}

impl Sink for Console {
    fn begin_steps(&mut self, completed_steps: u64) {
        let is_shown = self.options.rank == 0;
        let printer = || StepPrinter::new(&self.options, completed_steps, self.is_terminal);
        self.printer = is_shown.then(printer);
    }

    fn set_step(&mut self, step: Option<u64>) {
        self.step = step;
    }

    fn take(&mut self, event: &Event) {
        match (event, &mut self.printer) {
            (Event::Step(line), Some(printer)) => {
                let text = printer.step(line).to_owned();
                if !text.is_empty() {
                    self.write(&text);
                }
            }
            (Event::Step(_), None) | (Event::Hardware(_) | Event::HardwareMissing(_), _) => {}
            (event @ (Event::Warning(_) | Event::Stop(_)), _) => self.message(event),
            (event, _) if self.options.rank == 0 => self.message(event),
            _ => {}
        }
    }

    fn end_steps(&mut self) {
        self.printer = None; // removes the progress bar
    }
}

/// The failure that ended a process.
#[derive(Debug)]
pub struct Ended {
    /// Error with its causes.
    pub text: String,
    /// Exit code.
    pub code: ExitCode,
    /// Step in which it happened.
    pub step: Option<u64>,
    /// Rank that caused it, if known.
    pub caused_by_rank: Option<usize>,
    /// Rank that reports it; `None` before the rendezvous.
    pub reported_by: Option<usize>,
}

/// Reports the failure of this process on stderr, on every failed rank. In JSON, `rank` is the
/// reporting rank, `null` before the rendezvous; `caused_by_rank` and `step` are `null` if unknown.
pub fn report_failure(ended: &Ended) {
    let format = log_lines::format();
    let text = match format {
        LogFormat::Text => format!("error: {}", ended.with_step()),
        LogFormat::Json => ended.text.clone(),
    };
    let details = json!({
        "exit_code": ended.code as u8,
        "rank": ended.reported_by,
        "caused_by_rank": ended.caused_by_rank,
        "step": ended.step,
    });
    let line = line(format, "error", &text, details, log_lines::step());
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Reports a request to stop before or after the run has its telemetry.
pub fn report_stop(request: &StopRequest) {
    let format = log_lines::format();
    let line = line(format, "stop", &request.text, json!(request), log_lines::step());
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Writes a line to stderr about work of a process other than training; `event` names the work, or
/// its kind. A failed write is ignored, as without stderr nobody can read it.
pub fn say(event: &str, text: &str) {
    let format = log_lines::format();
    let text = match format {
        LogFormat::Text => format!("{event}: {text}"),
        LogFormat::Json => text.to_owned(),
    };
    let line = line(format, event, &text, json!({}), None);
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Reports a store that does not answer, on any rank that waits for it.
pub fn report_silence(text: &str) {
    let text = match (log_lines::format(), log_lines::rank()) {
        (LogFormat::Text, Some(rank @ 1..)) => format!("rank {rank}: {text}"),
        _ => text.to_owned(),
    };
    say("note", &text);
}

impl Ended {
    /// Prefixes the error with the step in which it happened, unless it names the step itself.
    fn with_step(&self) -> String {
        let step = self.step.map(|step| format!("step {step}"));
        match step.filter(|step| !names(&self.text, step)) {
            Some(step) => format!("{step}: {}", self.text),
            None => self.text.clone(),
        }
    }
}

/// Returns whether a text has these words, and not as the beginning of a longer number.
fn names(text: &str, words: &str) -> bool {
    let is_whole = |rest: &str| !rest.starts_with(|character: char| character.is_ascii_digit());
    text.match_indices(words).any(|(at, _)| is_whole(&text[at + words.len()..]))
}

/// Formats a message as text, or as a JSON object with `event`, `text`, the `details`, and its
/// origin. One write per message, because launchers interleave the output of ranks.
fn line(
    format: LogFormat,
    event: &str,
    text: &str,
    mut details: Value,
    step: Option<u64>,
) -> String {
    match format {
        LogFormat::Text => format!("{}\n", printable(text)),
        LogFormat::Json => {
            details["event"] = event.into();
            details["text"] = text.into();
            log_lines::add_origin(&mut details, step);
            format!("{details}\n")
        }
    }
}
