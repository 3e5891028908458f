//! The one error type of this crate.

use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::PeersError;

/// What one rank ran into.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankFailure {
    /// The rank.
    pub rank: usize,
    /// Its error, as text.
    pub reason: String,
}

impl fmt::Display for RankFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}: {}", self.rank, self.reason)
    }
}

/// A checkpoint that was committed once and could not be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejected {
    /// Name of its folder.
    pub checkpoint: String,
    /// Which ranks rejected it, and why.
    pub failures: Vec<RankFailure>,
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.checkpoint, join(&self.failures))
    }
}

/// What went wrong, by what the caller can do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There are checkpoints, but none is usable (or none of this name): restore one from
    /// elsewhere, or start again in another folder.
    #[error(
        "{}: expected a usable checkpoint, found {}; \
         `yardstick ckpt ls` lists what is there", root.display(), describe(rejected)
    )]
    NoCheckpoint {
        /// The folder of all checkpoints.
        root: PathBuf,
        /// What was tried, newest first.
        rejected: Vec<Rejected>,
    },
    /// Bytes are not those that were written: use an older checkpoint.
    #[error("{}: byte {offset}: expected {expected}, found {found}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where in it the damaged piece starts.
        offset: u64,
        /// What should be there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// The folder or checkpoint belongs to something else: point at the right one.
    #[error("{}: {what}: expected {expected}, found {found}; use another folder", path.display())]
    Mismatch {
        /// The file that says so.
        path: PathBuf,
        /// What differs, as in `workload`.
        what: String,
        /// What the caller has.
        expected: String,
        /// What the file has.
        found: String,
    },
    /// Written by a newer version: use that one.
    #[error("{}: format {found} is newer than {supported}; use a newer yardstick", path.display())]
    UnknownFormat {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u64,
        /// The newest format that this version reads.
        supported: u32,
    },
    /// The checkpoint is intact but lacks what was asked for.
    #[error("{checkpoint}: {tensor}: nothing covers offset {offset:?} extent {extent:?}")]
    Uncovered {
        /// Name of the checkpoint.
        checkpoint: String,
        /// Name of the tensor.
        tensor: String,
        /// First index of the missing box in each dimension.
        offset: Vec<usize>,
        /// Size of the missing box in each dimension.
        extent: Vec<usize>,
    },
    /// The save was given up on every rank and its files removed. The state in memory is
    /// untouched: go on training, and try again later.
    #[error("save of step {step} given up: {}", join(failures))]
    SaveFailed {
        /// The step.
        step: u64,
        /// Which ranks failed, and why.
        failures: Vec<RankFailure>,
    },
    /// Other ranks cannot read this checkpoint although this one could.
    #[error("{checkpoint} cannot be restored: {}", join(failures))]
    RestoreFailed {
        /// Name of the checkpoint.
        checkpoint: String,
        /// Which ranks failed, and why.
        failures: Vec<RankFailure>,
    },
    /// A newer attempt of the same run writes here: this process must stop.
    #[error("{}: fenced: expected no newer attempt than {expected}, found {found}", path.display())]
    Fenced {
        /// What the newer attempt has written.
        path: PathBuf,
        /// This process.
        expected: String,
        /// The newer one.
        found: String,
    },
    /// The ranks called the same operation with different arguments.
    #[error("{what} differs between ranks: rank 0 has {first}, rank {rank} has {other}")]
    Disagree {
        /// Which argument.
        what: &'static str,
        /// The value of rank 0.
        first: String,
        /// The first rank that has another one.
        rank: usize,
        /// The value there.
        other: String,
    },
    /// The file system refused.
    #[error("{}: {operation}: {source}", path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// What was tried, as in `rename`.
        operation: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The other ranks could not be reached. A save may have been committed or not.
    #[error("talking to the other ranks: {0}")]
    Peers(#[from] PeersError),
    /// No point of a save has this name.
    #[error("{found}: expected one of {expected}")]
    UnknownPoint {
        /// The text.
        found: String,
        /// All names.
        expected: String,
    },
}

impl Error {
    /// Turns a system error at a path into [`Error::Io`].
    pub(crate) fn io<E: Into<std::io::Error>>(
        path: &Path,
        operation: &'static str,
    ) -> impl FnOnce(E) -> Self {
        move |source| Self::Io { path: path.to_owned(), operation, source: source.into() }
    }

    pub(crate) fn damaged(
        path: &Path,
        offset: u64,
        expected: impl ToString,
        found: impl ToString,
    ) -> Self {
        let (expected, found) = (expected.to_string(), found.to_string());
        Self::Damaged { path: path.to_owned(), offset, expected, found }
    }

    /// Whether an older checkpoint may do where this one does not: bytes are wrong, gone or
    /// unreadable for good. What the system refuses for now (no permission, too many open files, a
    /// server that does not answer) says nothing of the bytes, and starting again may help.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            Self::Damaged { .. } => true,
            Self::Io { source, .. } => {
                matches!(source.kind(), ErrorKind::NotFound | ErrorKind::UnexpectedEof)
                    || source.raw_os_error() == Some(Errno::IO.raw_os_error())
            }
            _ => false,
        }
    }

    /// The first rank that failed, where ranks told each other.
    pub fn rank(&self) -> Option<usize> {
        let failures = match self {
            Self::SaveFailed { failures, .. } | Self::RestoreFailed { failures, .. } => failures,
            Self::NoCheckpoint { rejected, .. } => &rejected.first()?.failures,
            _ => return None,
        };
        failures.first().map(|failure| failure.rank)
    }

    /// Whether a file is not there, which on a shared file system may mean: not yet.
    pub(crate) fn is_absence(&self) -> bool {
        let Self::Io { source, .. } = self else { return false };
        source.kind() == ErrorKind::NotFound
            || source.raw_os_error() == Some(Errno::STALE.raw_os_error())
    }
}

fn describe(rejected: &[Rejected]) -> String {
    if rejected.is_empty() { "none".to_owned() } else { join(rejected) }
}

fn join<T: fmt::Display>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stays_broken_is_damage() {
        let is_damage =
            |source: std::io::Error| Error::io(Path::new("x"), "read")(source).is_damage();
        for errno in [Errno::NOENT, Errno::IO] {
            assert!(is_damage(errno.into()), "{errno:?}");
        }
        assert!(is_damage(ErrorKind::UnexpectedEof.into()));
        for errno in [Errno::ACCESS, Errno::MFILE, Errno::STALE, Errno::TIMEDOUT, Errno::NOMEM] {
            assert!(!is_damage(errno.into()), "{errno:?}");
        }
    }
}
