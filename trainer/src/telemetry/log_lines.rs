//! The lines of `tracing` with `--log-format json`, and where each line on stderr comes from: rank,
//! host and step of this process.
//!
//! What libraries log has no run, so these are known to the whole process.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

static RANK: OnceLock<usize> = OnceLock::new();

/// The step that is being made; 0 for none.
static STEP: AtomicU64 = AtomicU64::new(0);

/// The ranks have found each other.
pub(crate) fn set_rank(rank: usize) {
    RANK.get_or_init(|| rank);
}

/// From now on it is this step that is being made, or none.
pub(super) fn set_step(step: Option<u64>) {
    STEP.store(step.unwrap_or(0), Ordering::Relaxed);
}

/// The step that is being made, if one is.
pub(super) fn step() -> Option<u64> {
    Some(STEP.load(Ordering::Relaxed)).filter(|&step| step > 0)
}

/// Adds to a line what it lacks of `rank`, `host` and `step`; `null` where there is none.
pub(super) fn add_origin(line: &mut Value, step: Option<u64>) {
    let origin = json!({ "rank": RANK.get(), "host": launch::host_name(), "step": step });
    let Value::Object(origin) = origin else { unreachable!("an object") };
    let line = line.as_object_mut().expect("a line is an object");
    for (name, value) in origin {
        let known = line.entry(name).or_insert(Value::Null);
        if known.is_null() {
            *known = value;
        }
    }
}

/// Formats an event of `tracing` as one JSON object.
#[derive(Debug)]
pub(crate) struct JsonLines;

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
        let mut timestamp = String::new();
        SystemTime.format_time(&mut Writer::new(&mut timestamp))?;
        let mut fields = Fields::default();
        event.record(&mut fields);
        let mut line = json!({
            "timestamp": timestamp,
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
            assert_eq!(line["host"], launch::host_name());
        }
        let mut about_another = json!({ "step": 3, "rank": 7 });
        add_origin(&mut about_another, Some(4));
        assert_eq!((&about_another["step"], &about_another["rank"]), (&json!(3), &json!(7)));
        let mut outside = json!({ "step": null });
        add_origin(&mut outside, None);
        assert_eq!(outside["step"], Value::Null);
    }
}
