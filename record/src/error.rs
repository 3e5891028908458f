//! The error type of a run's record and steps.

use std::path::PathBuf;

use crate::files::IoError;

use crate::text::in_user_words;

/// A failure to write or to read a run's record or steps.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read or written.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The folder has no record: it is not the folder of a run, or the run has not started yet.
    #[error(
        "{}: expected the record of a run, found no such file\n  hint: name the folder of --out",
        path.display()
    )]
    NoRecord {
        /// Path of the missing record.
        path: PathBuf,
    },
    /// The content was not written by this program; the file was damaged or edited.
    #[error(
        "{}, line {line}: expected {expected}: {}",
        path.display(),
        in_user_words(&error.to_string())
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Expected content.
        expected: &'static str,
        /// The parser's error.
        error: serde_json::Error,
    },
    /// The digest in the file does not match its content; the file was damaged or edited.
    #[error(
        "{}: was changed after it was written: its digest does not match\n  hint: take it from a \
         copy",
        path.display()
    )]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// Steps of the run are missing; the file was truncated, replaced or removed.
    #[error(
        "{}: expected the {expected} steps of the checkpoint, found {found} without a gap",
        path.display()
    )]
    LostSteps {
        /// The file.
        path: PathBuf,
        /// Steps that were durable when the checkpoint was committed.
        expected: u64,
        /// Steps in the file before the first gap.
        found: u64,
    },
    /// The benchmark file of a job cannot be read.
    #[error(
        "{}={}: expected the benchmark file of this job: {error}\n  hint: unset the variable where \
         there is none",
        crate::benchmark_file::VARIABLE,
        path.display()
    )]
    Benchmark {
        /// The file.
        path: PathBuf,
        /// Cause of the failed read.
        error: std::io::Error,
    },
    /// A file of golden losses that cannot be read or used.
    #[error("golden losses {}: {text}", path.display())]
    Golden {
        /// The file.
        path: PathBuf,
        /// Line, with the expected and the found content.
        text: String,
    },
    /// The record has a schema that this program does not support.
    #[error(
        "{}: expected a record of schema {supported}, found schema {found}\n  \
         hint: read it with the version of yardstick that wrote it",
        path.display()
    )]
    Schema {
        /// The file.
        path: PathBuf,
        /// Schema of the file.
        found: u64,
        /// The supported schema.
        supported: u32,
    },
}
