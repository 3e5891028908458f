//! The error type of this crate.

use record::ExitCode;

/// Result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A benchmark file that cannot become a job.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value is impossible; change the named key.
    #[error("{key} = {found}: expected {expected}")]
    Invalid {
        /// Dotted path of the key, such as `workload.name`.
        key: String,
        /// The value found, as the user wrote it.
        found: String,
        /// Values that would be accepted.
        expected: String,
    },
    /// A file cannot be read, or the trainer refuses its workload.
    #[error("{0}")]
    Refused(String),
    /// An error of the file or the job that the message names.
    #[error("{message}")]
    Of {
        /// Name of the file or the job.
        message: String,
        /// The error.
        source: Box<Self>,
    },
    /// An object cannot be written as YAML.
    #[error("YAML: {0}")]
    Yaml(#[from] serde_saphyr::ser::Error),
}

impl Error {
    /// Error of an impossible value.
    pub(crate) fn invalid(
        key: impl Into<String>,
        found: impl ToString,
        expected: impl Into<String>,
    ) -> Self {
        Self::Invalid { key: key.into(), found: found.to_string(), expected: expected.into() }
    }

    /// Wraps the error in an outer message.
    pub(crate) fn context(self, message: impl std::fmt::Display) -> Self {
        Self::Of { message: message.to_string(), source: Box::new(self) }
    }

    /// Exit code of a process that ends with this error.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Of { source, .. } => source.exit_code(),
            Self::Yaml(_) => ExitCode::Internal,
            Self::Invalid { .. } | Self::Refused(_) => ExitCode::Usage,
        }
    }
}
