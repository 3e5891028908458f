//! Prints each step to stderr of rank 0, as text or JSON.

use std::fmt::Write as _;
use std::time::Duration;

use device::threads;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::log_lines;
use crate::options::{LogFormat, TelemetryOptions};
use record::phase::Phase;
use record::text::number_format;
use record::{StepLine, StepSample};

/// Number of lines after which the heading is repeated.
const LINES_PER_HEADING: u64 = 40;

/// Printer of the lines of steps, and of the progress bar below them.
pub(crate) struct StepPrinter {
    host: String,
    format: LogFormat,
    bar: Option<ProgressBar>,
    total_steps: u64,
    first_step: u64,
    log_every_steps: u64,
    lines: u64,
    text: String,
}

/// A step as it is printed in JSON.
#[derive(Serialize)]
struct Printed<'a> {
    event: &'a str,
    timestamp: String,
    #[serde(flatten)]
    line: &'a StepLine,
    host: &'a str,
}

impl StepPrinter {
    pub(crate) fn new(options: &TelemetryOptions, completed_steps: u64, is_terminal: bool) -> Self {
        let show_bar = is_terminal && options.log_format == LogFormat::Text;
        Self {
            host: options.host.clone(),
            format: options.log_format,
            bar: show_bar.then(|| bar(options.total_steps, completed_steps)),
            total_steps: options.total_steps,
            first_step: completed_steps + 1,
            log_every_steps: options.log_every_steps.max(1),
            lines: 0,
            text: String::new(),
        }
    }

    /// Shows a step on the progress bar, and returns its line, which is empty if it has none.
    pub(crate) fn step(&mut self, line: &StepLine) -> &str {
        let sample = &line.sample;
        self.text.clear();
        match self.format {
            LogFormat::Json => self.json(line),
            LogFormat::Text if self.is_shown(sample) => self.line(sample),
            LogFormat::Text => {}
        }
        if let Some(bar) = &self.bar {
            let rate = number_format::rate(tokens_per_second(sample));
            bar.set_message(format!("loss {:.4}  {rate} tokens/s", sample.loss));
            bar.set_position(sample.step);
        }
        &self.text
    }

    /// Runs a function that writes to the same terminal.
    pub(crate) fn suspend<T>(&self, write: impl FnOnce() -> T) -> T {
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    fn is_shown(&self, sample: &StepSample) -> bool {
        sample.step.is_multiple_of(self.log_every_steps)
            || sample.step == self.first_step
            || sample.step == self.total_steps
            || sample.evaluation_loss.is_some()
    }

    /// Formats a step as in the file of steps, with its host.
    fn json(&mut self, line: &StepLine) {
        let timestamp = log_lines::timestamp();
        let line = Printed { event: "step", timestamp, line, host: &self.host };
        self.text = serde_json::to_string(&line).expect("plain data in memory");
        self.text.push('\n');
    }

    fn line(&mut self, sample: &StepSample) {
        let steps_width = 2 * self.total_steps.to_string().len() + 1;
        if self.lines.is_multiple_of(LINES_PER_HEADING) {
            heading(&mut self.text, steps_width);
        }
        self.lines += 1;
        let step = format!("{}/{}", sample.step, self.total_steps);
        let rate = number_format::rate(tokens_per_second(sample));
        let _ = write!(
            self.text,
            "{step:>width$} {:>8.4} {:>7.3} {:>8.2e} {rate:>8} {:>8.1}",
            sample.loss,
            sample.gradient_norm,
            sample.learning_rate,
            milliseconds(sample.wall_ns),
            width = steps_width.max(STEP_HEADING.len()),
        );
        for phase in Phase::ALL {
            let percent = 100.0 * share(sample, phase);
            let _ = write!(self.text, " {percent:>3.0}");
        }
        if let Some(loss) = sample.evaluation_loss {
            let _ = write!(self.text, "  held out {loss:.4}");
        }
        self.text.push('\n');
    }
}

impl Drop for StepPrinter {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

const STEP_HEADING: &str = "step";

/// Writes the column names; the last eight are the phases' shares of the time in percent, in the
/// order of [`Phase::ALL`].
fn heading(text: &mut String, steps_width: usize) {
    let width = steps_width.max(STEP_HEADING.len());
    let _ = write!(
        text,
        "{STEP_HEADING:>width$} {:>8} {:>7} {:>8} {:>8} {:>8}",
        "loss", "norm", "rate", "tokens/s", "ms",
    );
    for short in ["dat", "fwd", "bwd", "com", "opt", "ckp", "evl", "oth"] {
        let _ = write!(text, " {short:>3}");
    }
    text.push_str(" %\n");
}

fn bar(total_steps: u64, completed_steps: u64) -> ProgressBar {
    let target = ProgressDrawTarget::stderr_with_hz(5);
    let bar = ProgressBar::with_draw_target(Some(total_steps), target);
    let template = "[{bar:24}] {pos}/{len}  {elapsed_precise} done, {eta_precise} left  {msg}";
    let style = ProgressStyle::with_template(template).expect("a valid template");
    bar.set_style(style.progress_chars("=> "));
    bar.set_position(completed_steps);
    bar.reset_eta(); // steps of earlier attempts took no time in this one
    if threads::require(1, "progress bar").is_ok() {
        bar.enable_steady_tick(Duration::from_secs(1)); // on a thread, or with a panic
    }
    bar
}

fn milliseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e6
}

fn tokens_per_second(sample: &StepSample) -> f64 {
    sample.tokens as f64 / (sample.wall_ns.max(1) as f64 / 1e9)
}

fn share(sample: &StepSample, phase: Phase) -> f64 {
    sample.phases.get(phase) as f64 / sample.wall_ns.max(1) as f64
}
