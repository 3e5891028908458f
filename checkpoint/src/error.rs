//! Error type of this crate.

use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::peers::PeersError;
use record::files::IoError;

/// Error kind of an answer that does not belong to the request. Another request may get the right
/// answer, and this one says nothing about the stored bytes.
pub(crate) const CONTRADICTION: ErrorKind = ErrorKind::ConnectionAborted;

pub(crate) type Result<T> = std::result::Result<T, Error>;

/// The error of one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankFailure {
    /// The rank.
    pub rank: usize,
    /// Error of the rank, as text.
    pub reason: String,
}

impl fmt::Display for RankFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}: {}", self.rank, self.reason)
    }
}

/// A committed checkpoint that could not be restored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejected {
    /// Name of its folder.
    pub checkpoint: String,
    /// Ranks that rejected it, and their reasons.
    pub failures: Vec<RankFailure>,
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.checkpoint, join(&self.failures))
    }
}

/// Error of this crate, by what the caller can do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Checkpoints exist, but none is usable (or none has this name): restore one from elsewhere,
    /// or start again in another folder.
    #[error(
        "{}: expected a usable checkpoint, found {}; \
         `yardstick ckpt ls` lists what is there", root.display(), describe(rejected)
    )]
    NoCheckpoint {
        /// The folder of all checkpoints.
        root: PathBuf,
        /// Checkpoints that were tried, newest first.
        rejected: Vec<Rejected>,
    },
    /// Bytes are not those that were written: use an older checkpoint.
    #[error("{}: byte {offset}: expected {expected}, found {found}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Offset at which the damaged part starts.
        offset: u64,
        /// Expected content.
        expected: String,
        /// Content that was found.
        found: String,
    },
    /// The folder or checkpoint belongs to something else: point at the right one.
    #[error("{}: {what}: expected {expected}, found {found}; use another folder", path.display())]
    Mismatch {
        /// File that says so.
        path: PathBuf,
        /// Property that differs, as in `workload`.
        what: String,
        /// Value that the caller has.
        expected: String,
        /// Value in the file.
        found: String,
    },
    /// Written by another version: use that one, or start in another folder.
    #[error("{}: {}", path.display(), describe_format(*found, *supported))]
    UnsupportedFormat {
        /// The file.
        path: PathBuf,
        /// Format of the file.
        found: u64,
        /// The format that this version reads.
        supported: u32,
    },
    /// The checkpoint is intact but lacks a requested tensor or a part of it.
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
    /// The save was aborted on all ranks and its files were removed. The state in memory is
    /// untouched: continue training, and try again later.
    #[error("save of step {step} aborted: {}", join(failures))]
    SaveFailed {
        /// The step.
        step: u64,
        /// Ranks that failed, and their reasons.
        failures: Vec<RankFailure>,
    },
    /// Storage did not answer in time. The save is aborted; its thread still waits.
    #[error("{what} has not ended after {timeout:?}{}: is storage hung?", at(.path.as_ref()))]
    Late {
        /// Operation that has not ended.
        what: &'static str,
        /// The file or folder that it was at, if that is known.
        path: Option<PathBuf>,
        /// Time for which it was waited for.
        timeout: Duration,
    },
    /// The caller refused to let the state be committed; why.
    #[error("{0}")]
    Vetoed(String),
    /// The state had to change before all of it was copied, as the writer is too slow.
    #[error("the writer was so slow that the state had to change before all of it was copied")]
    SnapshotAborted,
    /// The state could not be copied, as from a device that failed.
    #[error("the state could not be copied: {0}")]
    Snapshot(#[source] std::io::Error),
    /// A thread could not be started: free memory, or raise the limit of threads.
    #[error("{0}")]
    Thread(#[from] device::threads::Error),
    /// Other ranks failed where this one did not.
    #[error("{path}: failed on other ranks: {}", join(failures), path = path.display())]
    OtherRanksFailed {
        /// The checkpoint, or the folder of all.
        path: PathBuf,
        /// Ranks that failed, and their reasons.
        failures: Vec<RankFailure>,
    },
    /// A newer attempt of the same run writes here: this process must stop.
    #[error("{}: fenced: expected no attempt after {attempt}, found {found}", path.display())]
    Fenced {
        /// Path that the newer attempt has written.
        path: PathBuf,
        /// Number of this attempt.
        attempt: u64,
        /// Name of what the newer one has written.
        found: String,
    },
    /// Attempt numbers are exhausted: remove the file if no attempt has written it, or use another
    /// folder.
    #[error(
        "{}: expected a number of an attempt below {max}, so that another one can follow, found \
         the last one; remove it if no attempt of this run has written it, or use another folder",
        path.display()
    )]
    AttemptsExhausted {
        /// Claim of the last attempt.
        path: PathBuf,
        /// The largest number.
        max: u64,
    },
    /// The ranks called the same operation with different arguments.
    #[error("{what} differs between ranks: rank 0 has {first}, rank {rank} has {other}")]
    Disagree {
        /// Argument that is wrong.
        what: &'static str,
        /// The value of rank 0.
        first: String,
        /// The first rank that has another one.
        rank: usize,
        /// The value there.
        other: String,
    },
    /// The file system refused.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The other ranks could not be reached. A save may have been committed or not.
    #[error("communication with the other ranks failed: {0}")]
    Peers(#[from] PeersError),
    /// The failpoint's name is unknown.
    #[error("{found}: expected one of {expected}")]
    UnknownFailpoint {
        /// The text.
        found: String,
        /// Names of all failpoints.
        expected: String,
    },
}

fn at(path: Option<&PathBuf>) -> String {
    path.map_or_else(String::new, |path| format!(" at {}", path.display()))
}

impl Error {
    pub(crate) fn damaged(
        path: &Path,
        offset: u64,
        expected: impl ToString,
        found: impl ToString,
    ) -> Self {
        Self::Damaged {
            path: path.to_owned(),
            offset,
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    /// A file of the wrong size.
    pub(crate) fn damaged_size(path: &Path, expected: u64, found: u64) -> Self {
        Self::damaged(path, found.min(expected), format!("{expected} bytes"), found)
    }

    /// Returns whether an older checkpoint may be usable where this one is not: bytes are wrong,
    /// missing or permanently unreadable. Failures that may pass (no permission, too many open
    /// files, a server that is silent) say nothing about the bytes, and starting again may help.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            Self::Damaged { .. } => true,
            Self::Io(IoError { source, .. }) => {
                use ErrorKind::{InvalidData, NotFound, UnexpectedEof};
                matches!(source.kind(), InvalidData | NotFound | UnexpectedEof)
                    || source.raw_os_error() == Some(Errno::IO.raw_os_error())
            }
            _ => false,
        }
    }

    /// Returns whether an operation is refused, as writes are by a full or read-only file system. A
    /// refusal says nothing about other operations, and waiting does not help.
    pub fn is_refusal(&self) -> bool {
        use ErrorKind::{PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
        let Self::Io(IoError { source, .. }) = self else { return false };
        matches!(source.kind(), PermissionDenied | QuotaExceeded | ReadOnlyFilesystem | StorageFull)
    }

    /// Returns whether another read of the same bytes may succeed: they arrived damaged, too few,
    /// or as the answer to another request.
    pub(crate) fn may_be_transient(&self) -> bool {
        let Self::Io(IoError { source, .. }) = self else { return self.is_damage() };
        source.kind() == CONTRADICTION || self.is_damage() && !self.is_absence()
    }

    /// Adds to an error of damage how often the bytes were read.
    pub(crate) fn after_reads(mut self, reads: usize) -> Self {
        if let Self::Damaged { found, .. } = &mut self
            && reads > 1
        {
            *found += &format!(" ({reads} reads)");
        }
        self
    }

    /// The first rank that failed, where ranks exchanged their failures.
    pub fn rank(&self) -> Option<usize> {
        let failures = match self {
            Self::SaveFailed { failures, .. } | Self::OtherRanksFailed { failures, .. } => failures,
            Self::NoCheckpoint { rejected, .. } => &rejected.first()?.failures,
            _ => return None,
        };
        failures.first().map(|failure| failure.rank)
    }

    /// Returns whether a file does not exist, which on a shared file system may mean: not yet.
    pub(crate) fn is_absence(&self) -> bool {
        let Self::Io(IoError { source, .. }) = self else { return false };
        source.kind() == ErrorKind::NotFound
            || source.raw_os_error() == Some(Errno::STALE.raw_os_error())
    }
}

fn describe_format(found: u64, supported: u32) -> String {
    let (relation, remedy) = if found < u64::from(supported) {
        ("older", "resume with the version of yardstick that wrote it, or name a new folder")
    } else {
        ("newer", "use a newer yardstick")
    };
    format!("checkpoint format {found} is {relation} than format {supported}; {remedy}")
}

fn describe(rejected: &[Rejected]) -> String {
    if rejected.is_empty() { "none".to_owned() } else { join(rejected) }
}

fn join<T: fmt::Display>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn of(source: impl Into<io::Error>) -> Error {
        IoError::at(Path::new("x"), "read")(source).into()
    }

    #[test]
    fn only_what_does_not_exist_is_absent() {
        assert!(of(Errno::NOENT).is_absence() && of(Errno::STALE).is_absence());
        for errno in [Errno::IO, Errno::TIMEDOUT, Errno::ACCESS] {
            assert!(!of(errno).is_absence(), "{errno:?}");
        }
        assert!(!Error::damaged(Path::new("x"), 0, "this", "that").is_absence());
    }

    #[test]
    fn only_what_waiting_does_not_help_is_a_refusal() {
        for errno in [Errno::ACCESS, Errno::PERM, Errno::ROFS, Errno::NOSPC, Errno::DQUOT] {
            assert!(of(errno).is_refusal(), "{errno:?}");
        }
        for errno in [Errno::IO, Errno::TIMEDOUT, Errno::NOENT] {
            assert!(!of(errno).is_refusal(), "{errno:?}");
        }
    }

    #[test]
    fn only_permanent_failures_are_damage() {
        let is_damage = |source: io::Error| of(source).is_damage();
        for errno in [Errno::NOENT, Errno::IO] {
            assert!(is_damage(errno.into()), "{errno:?}");
        }
        assert!(is_damage(ErrorKind::UnexpectedEof.into()));
        assert!(is_damage(ErrorKind::InvalidData.into()), "too large, or not a regular file");
        assert!(!is_damage(CONTRADICTION.into()), "an answer to another request");
        for errno in [Errno::ACCESS, Errno::MFILE, Errno::STALE, Errno::TIMEDOUT, Errno::NOMEM] {
            assert!(!is_damage(errno.into()), "{errno:?}");
        }
    }
}
