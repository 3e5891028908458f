//! What is told of a run beside its step lines: on stderr, for people or for programs.

use std::fmt::Display;
use std::io::Write;

use serde_json::{Value, json};

use crate::failure::Failure;
use crate::telemetry::LogFormat;

/// One sentence for people; or for programs one object with `event`, `text` and the `details`.
/// A stderr that is gone is no error.
pub(crate) fn announce(format: LogFormat, event: &str, text: impl Display, details: Value) {
    let mut stderr = std::io::stderr();
    let _ = match format {
        LogFormat::Text => writeln!(stderr, "{text}"),
        LogFormat::Json => {
            let mut object = json!({"event": event, "text": text.to_string()});
            if let (Value::Object(object), Value::Object(details)) = (&mut object, details) {
                object.extend(details);
            }
            writeln!(stderr, "{object}")
        }
    };
}

/// What ended this process. `rank` and `step` are where it happened, `null` where that is not
/// known or this process.
pub(crate) fn announce_failure(format: LogFormat, failure: &Failure) {
    let text = match format {
        LogFormat::Text => format!("error: {failure}"),
        LogFormat::Json => failure.to_string(),
    };
    let details = json!({
        "exit_code": failure.code as u8,
        "rank": failure.rank,
        "step": failure.step,
    });
    announce(format, "error", text, details);
}
