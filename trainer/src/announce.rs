//! What rank 0 tells at the start and the end of a run, beside its step lines: on stderr.

use std::fmt::Display;
use std::io::Write;

use serde_json::json;

use crate::telemetry::LogFormat;

/// One sentence for people, or one object for machines. A stderr that is gone is no error.
pub(crate) fn announce(format: LogFormat, event: &str, folder: &str, text: impl Display) {
    let mut stderr = std::io::stderr();
    let _ = match format {
        LogFormat::Text => writeln!(stderr, "{text}"),
        LogFormat::Json => {
            let object = json!({"event": event, "folder": folder, "text": text.to_string()});
            writeln!(stderr, "{object}")
        }
    };
}
