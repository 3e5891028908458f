//! Reads benchmark files. Errors name the file, the line and the key.

use std::path::Path;

use record::files::regular_file::read_named_text;

use super::{Benchmark, matrix};
use crate::error::{Error, Result};
use record::limits::CONFIG_BYTES_MAX;
use record::text::in_user_words;

use crate::trainer::Trainer;

/// Reads and checks a benchmark file. A file with a matrix has several benchmarks.
///
/// # Errors
/// Exit code 2 for a file that cannot be read, an unknown key, or an impossible value.
pub fn read(path: &Path, trainer: &impl Trainer) -> Result<Vec<Benchmark>> {
    let text = read_named_text(path, CONFIG_BYTES_MAX).map_err(|error| {
        let error = error.source;
        Error::Refused(format!("{}: the benchmark file cannot be read: {error}", path.display()))
    })?;
    parse(&text, &path.display().to_string(), trainer)
}

/// Parses the text of the benchmark file of this name.
///
/// # Errors
/// The line or the key that is wrong.
pub fn parse(text: &str, named: &str, trainer: &impl Trainer) -> Result<Vec<Benchmark>> {
    let file = toml::from_str(text).map_err(|error| misfit(text, named, &error))?;
    let of_file = |failure: Error| failure.context(named.to_owned());
    let jobs = matrix::expand(file).map_err(of_file)?;
    let check = |job: &Benchmark| {
        job.check()?;
        let required = trainer.require_checks(&job.workflow.doctor.require);
        required.map_err(|problem| Error::Refused(format!("workflow.doctor.require: {problem}")))
    };
    jobs.iter().try_for_each(check).map_err(of_file)?;
    Ok(jobs)
}

/// Error of an unknown or missing key, or of a value of the wrong type.
fn misfit(text: &str, named: &str, error: &toml::de::Error) -> Error {
    let line = |offset: usize| text[..offset].matches('\n').count() + 1;
    let line = error.span().map_or(String::new(), |span| format!(", line {}", line(span.start)));
    Error::Refused(format!("{named}{line}: {}", in_user_words(error.message())))
}
