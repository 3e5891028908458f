//! How a run ends badly: an error with the exit code that its reader is promised.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The exit codes of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum ExitCode {
    /// Done.
    Done = 0,
    /// A bug or an unforeseen failure.
    Internal = 1,
    /// Bad usage, configuration or data file.
    Usage = 2,
    /// The environment is not fit: device, library or memory missing.
    Environment = 3,
    /// A loss or gradient is not finite.
    Numerical = 4,
    /// A peer was lost or an operation passed its deadline.
    PeerLost = 5,
    /// No usable checkpoint where one was required.
    Checkpoint = 6,
    /// Stopped on request after a committed checkpoint: start again to go on.
    Stopped = 75,
}

/// An error with its exit code and, where it happened in training, the step and phase.
#[derive(Debug)]
pub struct Failure {
    /// What the process returns.
    pub code: ExitCode,
    /// What is told.
    pub error: anyhow::Error,
    /// Step at which it happened.
    pub step: Option<u64>,
    /// Rank that caused it, where that is known.
    pub rank: Option<usize>,
    /// Rank that tells it; `None` before ranks have met.
    pub told_by: Option<usize>,
}

/// Result of what can end a run.
pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    /// An error with this exit code.
    pub fn new(code: ExitCode, error: impl Into<anyhow::Error>) -> Self {
        Self { code, error: error.into(), step: None, rank: None, told_by: None }
    }

    /// Bad usage, told in a sentence.
    pub fn usage(message: impl fmt::Display) -> Self {
        Self::new(ExitCode::Usage, anyhow::anyhow!("{message}"))
    }

    /// Rank that caused it, told by one of them: what is no other rank's doing is its own.
    pub(crate) fn culprit(&self, own: usize) -> Option<usize> {
        let shared = [ExitCode::PeerLost, ExitCode::Numerical, ExitCode::Checkpoint];
        let is_own = !shared.contains(&self.code) || self.is_of_own_files();
        self.rank.or(is_own.then_some(own))
    }

    /// Whether files failed on this rank itself, and not on another that told of it.
    fn is_of_own_files(&self) -> bool {
        use checkpoint::Error::{Damaged, Io, Mismatch, UnknownFormat};
        let cause = self.error.downcast_ref();
        matches!(cause, Some(Io { .. } | Damaged { .. } | Mismatch { .. } | UnknownFormat { .. }))
    }

    /// The same failure at a step.
    #[must_use]
    pub fn at_step(mut self, step: u64) -> Self {
        self.step = self.step.or(Some(step));
        self
    }

    /// The same failure with the rank that caused it.
    #[must_use]
    pub(crate) fn caused_by(mut self, rank: usize) -> Self {
        self.rank = Some(rank);
        self
    }

    /// The same failure with an outer sentence.
    #[must_use]
    pub fn context(mut self, message: impl fmt::Display + Send + Sync + 'static) -> Self {
        self.error = self.error.context(message);
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Some errors tell their cause themselves: it is not told twice.
        let mut told = String::new();
        for cause in self.error.chain().map(ToString::to_string) {
            if told.is_empty() {
                told = cause;
            } else if !told.ends_with(&cause) {
                told = format!("{told}: {cause}");
            }
        }
        formatter.write_str(&told)
    }
}

impl From<models::Error> for Failure {
    /// Weights that did not come are a failed operation between ranks.
    fn from(error: models::Error) -> Self {
        let error = match error {
            models::Error::Weights(cause) => match cause.downcast::<collectives::Error>() {
                Ok(cause) => return (*cause).into(),
                Err(cause) => models::Error::Weights(cause),
            },
            error => error,
        };
        let code = match &error {
            models::Error::Invalid { .. }
            | models::Error::Parse { .. }
            | models::Error::Unsupported { .. } => ExitCode::Usage,
            _ => ExitCode::Internal,
        };
        Self::new(code, error)
    }
}

impl From<collectives::Error> for Failure {
    /// A failed operation between ranks.
    fn from(error: collectives::Error) -> Self {
        let rank = error.missing_rank();
        Self { rank, ..Self::new(ExitCode::PeerLost, error) }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(ExitCode::Internal, error)
    }
}
