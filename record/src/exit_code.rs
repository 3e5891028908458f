//! The exit codes of a process.

use serde::{Deserialize, Serialize};

/// The exit codes of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum ExitCode {
    /// Success.
    Done = 0,
    /// An internal error.
    Internal = 1,
    /// Bad usage, configuration or data file.
    Usage = 2,
    /// A device, a library, memory or a thread is missing, or the system refuses to write.
    Environment = 3,
    /// A loss or gradient is not finite.
    Numerical = 4,
    /// A peer was lost, or an operation exceeded its deadline.
    PeerLost = 5,
    /// No usable checkpoint where one is required, or a required save failed.
    Checkpoint = 6,
    /// `compare` found a regression.
    Regression = 10,
    /// `compare` found too much noise to rule out a regression.
    TooNoisy = 11,
    /// `compare` or `verify` found nothing to compare: a record is missing, damaged, incomplete, or
    /// of something else.
    NotComparable = 12,
    /// Stopped on request after a committed checkpoint; the same command resumes.
    Stopped = 75,
    /// Ended by a second request to stop: unsaved state is lost.
    Interrupted = 130,
}

impl TryFrom<u8> for ExitCode {
    type Error = u8;

    fn try_from(code: u8) -> Result<Self, u8> {
        let all = [
            Self::Done,
            Self::Internal,
            Self::Usage,
            Self::Environment,
            Self::Numerical,
            Self::PeerLost,
            Self::Checkpoint,
            Self::Regression,
            Self::TooNoisy,
            Self::NotComparable,
            Self::Stopped,
            Self::Interrupted,
        ];
        all.into_iter().find(|known| *known as u8 == code).ok_or(code)
    }
}
