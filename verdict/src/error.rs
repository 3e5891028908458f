//! The error type of this crate.

use std::error::Error as StdError;
use std::io;

use record::ExitCode;
use record::files::IoError;

/// Result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A failure to read, keep or compare records.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Arguments, or files that people name, are not as expected.
    #[error("{0}")]
    Usage(String),
    /// There is nothing to compare: a record is missing, damaged, incomplete, or of something else.
    #[error("{0}")]
    NotComparable(String),
    /// A store of records cannot be read or written, or is damaged.
    #[error("{text}")]
    Store {
        /// The error with its causes.
        text: String,
        /// The error of the storage, if it caused this one.
        source: Option<Box<dyn StdError + Send + Sync>>,
    },
    /// A file cannot be read or written.
    #[error(transparent)]
    Io(#[from] IoError),
    /// A run's record or steps cannot be read.
    #[error(transparent)]
    Record(#[from] record::Error),
    /// No shell can be started for the commands of a comparison.
    #[error("sh: {0}")]
    Shell(#[source] io::Error),
}

impl Error {
    /// Exit code of a process that ends with this error.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Usage(_) | Self::Record(record::Error::Golden { .. }) => ExitCode::Usage,
            Self::NotComparable(_) => ExitCode::NotComparable,
            Self::Shell(_) => ExitCode::Environment,
            Self::Io(error) | Self::Record(record::Error::Io(error))
                if error.source.kind() == io::ErrorKind::InvalidData =>
            {
                ExitCode::Usage
            }
            Self::Store { .. } | Self::Io(_) | Self::Record(_) => ExitCode::Internal,
        }
    }

    /// Error of a store, with its causes.
    pub fn store(error: Box<dyn StdError + Send + Sync>) -> Self {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            let part = error.to_string();
            if !text.contains(&part) {
                text = format!("{text}: {part}");
            }
            cause = error.source();
        }
        Self::Store { text, source: Some(error) }
    }

    /// Error of a damaged store.
    pub fn damaged_store(text: String) -> Self {
        Self::Store { text, source: None }
    }
}
