//! Reading and writing the JSON files of a run.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::files::{self, regular_file};

/// Replaces a file with a value as JSON, durably.
///
/// # Panics
/// When the value cannot be serialized, which plain data always can.
///
/// # Errors
/// [`Error::Io`].
pub fn write(path: &Path, value: &impl Serialize) -> Result<(), Error> {
    let mut bytes = serde_json::to_vec_pretty(value).expect("plain data in memory");
    bytes.push(b'\n');
    Ok(files::replace(path, &bytes)?)
}

/// Reads a file of a run, of at most `bytes_max`; `expected` describes it in errors.
pub(super) fn read<T: for<'de> Deserialize<'de>>(
    path: &Path,
    bytes_max: u64,
    expected: &'static str,
) -> Result<T, Error> {
    parse(path, &regular_file::read(path, bytes_max)?, expected)
}

/// Parses the content of the file at `path`; `expected` describes it in errors.
pub(super) fn parse<T: for<'de> Deserialize<'de>>(
    path: &Path,
    bytes: &[u8],
    expected: &'static str,
) -> Result<T, Error> {
    serde_json::from_slice(bytes).map_err(|error| Error::Malformed {
        path: path.to_owned(),
        line: error.line(),
        expected,
        error,
    })
}
