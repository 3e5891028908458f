//! Reads benchmark files. What is wrong with one is told with its file, line and key.

use std::path::Path;

use super::Benchmark;
use crate::failure::{Failure, Outcome};

/// Reads a benchmark file, and checks it.
///
/// # Errors
/// Exit code 2 for a file that cannot be read, an unknown key, or an impossible value.
pub(crate) fn read(path: &Path) -> Outcome<Benchmark> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::usage(format!("{}: the benchmark file cannot be read: {error}", path.display()))
    })?;
    parse(&text, &path.display().to_string())
}

/// Reads the text of the benchmark file of this name.
pub(in crate::k8s) fn parse(text: &str, named: &str) -> Outcome<Benchmark> {
    let benchmark: Benchmark = toml::from_str(text).map_err(|error| misfit(text, named, &error))?;
    benchmark.check().map_err(|failure| failure.context(named.to_owned()))?;
    Ok(benchmark)
}

/// An unknown or missing key, or a value of the wrong type.
fn misfit(text: &str, named: &str, error: &toml::de::Error) -> Failure {
    let line = |offset: usize| text[..offset].matches('\n').count() + 1;
    let line = error.span().map_or(String::new(), |span| format!(", line {}", line(span.start)));
    Failure::usage(format!("{named}{line}: {}", error.message()))
}
