//! Log lines of `tracing` with `--log-format json`, and the fields of each line on stderr: its
//! time, and the rank, host and step of this process.
//!
//! Messages of libraries have no run, so these fields, and the format, are global to the process.

use std::fmt;
use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use chrono::{Datelike, SecondsFormat, Timelike, Utc};
use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::options::LogFormat;
use record::ExitCode;

static FORMAT: OnceLock<LogFormat> = OnceLock::new();
static RANK: OnceLock<usize> = OnceLock::new();

/// Current step; 0 for none.
static STEP: AtomicU64 = AtomicU64::new(0);

/// Sets the format of all lines that this process writes to stderr.
pub fn set_format(format: LogFormat) {
    FORMAT.get_or_init(|| format);
}

/// Returns the format of all lines that this process writes to stderr.
pub fn format() -> LogFormat {
    FORMAT.get().copied().unwrap_or_default()
}

/// Current time, as in each line.
pub(super) fn timestamp() -> String {
    Utc::now().to_rfc3339_opts(SecondsFormat::Micros, true)
}

/// Sets the rank of this process, once the ranks have found each other.
pub fn set_rank(rank: usize) {
    RANK.get_or_init(|| rank);
}

/// Returns the rank of this process, once the ranks have found each other.
pub(super) fn rank() -> Option<usize> {
    RANK.get().copied()
}

/// Sets the current step, or none.
pub(super) fn set_step(step: Option<u64>) {
    STEP.store(step.unwrap_or(0), Ordering::Relaxed);
}

/// Returns the current step, if there is one.
pub(super) fn step() -> Option<u64> {
    Some(STEP.load(Ordering::Relaxed)).filter(|&step| step > 0)
}

/// Adds the `timestamp` to a line, and `rank`, `host` and `step` if it lacks them; `null` if
/// unknown.
pub(super) fn add_origin(line: &mut Value, step: Option<u64>) {
    let origin = json!({ "rank": RANK.get(), "host": record::machine::host_name(), "step": step });
    let Value::Object(origin) = origin else { unreachable!("an object") };
    line["timestamp"] = timestamp().into();
    let line = line.as_object_mut().expect("a line is an object");
    for (name, value) in origin {
        let known = line.entry(name).or_insert(Value::Null);
        if known.is_null() {
            *known = value;
        }
    }
}

/// Writes the line of an error of this process without an allocation. Neither the text nor the host
/// name may contain a character that JSON escapes.
///
/// # Errors
/// When `out` has no room.
pub fn write_error(
    out: &mut impl Write,
    code: ExitCode,
    text: &impl fmt::Display,
) -> io::Result<()> {
    let now = Utc::now();
    let [year, month, day] = [now.year() as u32, now.month(), now.day()];
    let [hour, minute, second] = [now.hour(), now.minute(), now.second()];
    let micros = now.timestamp_subsec_micros();
    write!(out, r#"{{"event":"error","exit_code":{},"text":"{text}""#, code as u8)?;
    write!(out, r#","timestamp":"{year:04}-{month:02}-{day:02}"#)?;
    write!(out, r#"T{hour:02}:{minute:02}:{second:02}.{micros:06}Z""#)?;
    write!(out, r#","rank":{}"#, Number(rank()))?;
    write!(out, r#","step":{}"#, Number(step()))?;
    let host = rustix::system::uname();
    let host = host.nodename().to_str().unwrap_or_default();
    writeln!(out, r#","caused_by_rank":null,"host":"{host}"}}"#)
}

/// A number, or `null`.
struct Number<T>(Option<T>);

impl<T: fmt::Display> fmt::Display for Number<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(number) => number.fmt(f),
            None => f.write_str("null"),
        }
    }
}

/// Formats an event of `tracing` as one JSON object.
#[derive(Debug)]
pub struct JsonLines;

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    N: for<'writer> FormatFields<'writer> + 'static,
{
    fn format_event(
        &self,
        _context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let mut line = json!({
            "event": "log",
            "level": event.metadata().level().as_str(),
            "target": event.metadata().target(),
            "fields": fields.0,
        });
        add_origin(&mut line, step());
        writeln!(writer, "{line}")
    }
}

/// The fields of an event: `message` and others.
#[derive(Debug, Default)]
struct Fields(Map<String, Value>);

impl Fields {
    fn set(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Fields {
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set(field, format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_line_lacks_or_has_as_null_is_added() {
        for mut line in [json!({}), json!({ "step": null, "host": null })] {
            add_origin(&mut line, Some(4));
            assert_eq!(line["step"], 4);
            assert_eq!(line["host"], record::machine::host_name());
        }
        let mut about_another = json!({ "step": 3, "rank": 7 });
        add_origin(&mut about_another, Some(4));
        assert_eq!((&about_another["step"], &about_another["rank"]), (&json!(3), &json!(7)));
        let mut outside = json!({ "step": null });
        add_origin(&mut outside, None);
        assert_eq!(outside["step"], Value::Null);
    }
}
