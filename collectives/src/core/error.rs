//! Errors of communication between ranks.

use std::sync::Arc;
use std::time::Duration;

use super::group::GroupPlan;
use super::operation::Operation;

/// A failure of a collective operation or of its backend.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation was not complete at its deadline. The backend is dead from here on; the content
    /// of the buffer is unspecified. The process should end soon (exit code 5).
    #[error(
        "{operation} of {bytes} bytes{}{} was not over after {:.1} s on rank {rank} (backend \
         {backend}; {}): a peer is lost or far behind; look at the other ranks' logs first",
        group_text(group), position_text(*position), waited.as_secs_f64(), peers_text(peers)
    )]
    Deadline {
        /// The operation that was waited for.
        operation: Operation,
        /// The group whose operation it is; `None` for all ranks.
        group: Option<Arc<GroupPlan>>,
        /// Position among several operations, where a device was given several.
        position: Option<Position>,
        /// The waiting rank.
        rank: usize,
        /// Time from submission until the deadline, or on a device since its computation needs it.
        waited: Duration,
        /// Size of the buffer.
        bytes: usize,
        /// Name of the backend.
        backend: &'static str,
        /// Ranks known to be missing; empty where the backend cannot know.
        peers: Vec<usize>,
    },
    /// The library below reports that a peer's process is gone. The backend is dead from here on.
    #[error(
        "{operation}{}{} on rank {rank}: a peer was lost ({}): {text}",
        group_text(group), position_text(*position), peers_text(peers)
    )]
    PeerLost {
        /// The operation that failed.
        operation: Operation,
        /// The group whose operation it is; `None` for all ranks.
        group: Option<Arc<GroupPlan>>,
        /// Position among several operations, where a device was given several.
        position: Option<Position>,
        /// The reporting rank.
        rank: usize,
        /// The library's message.
        text: String,
        /// Ranks that may be the lost one; empty where the backend cannot know.
        peers: Vec<usize>,
    },
    /// The backend failed or was abandoned before, and takes no more operations.
    #[error("backend {backend} on rank {rank} is dead since: {reason}")]
    Dead {
        /// Name of the backend.
        backend: &'static str,
        /// The reporting rank.
        rank: usize,
        /// Cause of the backend's death.
        reason: Arc<str>,
    },
    /// An MPI call returned an error. The backend is dead from here on.
    #[error("{operation}{} on rank {rank}: MPI error {code}: {text}", group_text(group))]
    Mpi {
        /// The operation or the MPI call that failed.
        operation: String,
        /// The group whose operation it is; `None` for all ranks.
        group: Option<Arc<GroupPlan>>,
        /// The reporting rank.
        rank: usize,
        /// MPI's error code.
        code: i32,
        /// MPI's message for it.
        text: String,
    },
    /// NCCL reports an error that is not a lost peer for certain. The backend is dead from here on.
    #[error(
        "{operation}{}{} on rank {rank}: NCCL: {text} ({})",
        group_text(group), position_text(*position), peers_text(peers)
    )]
    Nccl {
        /// The operation or the call that failed.
        operation: String,
        /// The group whose operation it is; `None` for all ranks.
        group: Option<Arc<GroupPlan>>,
        /// Position among several operations, where a device was given several.
        position: Option<Position>,
        /// The reporting rank.
        rank: usize,
        /// NCCL's message.
        text: String,
        /// Ranks that may be the cause; empty where the backend cannot know.
        peers: Vec<usize>,
    },
    /// This rank's device failed, or its driver. The backend is dead from here on.
    #[error("{operation}{} on rank {rank}: the device failed", group_text(group))]
    Device {
        /// The operation that was waited for or started.
        operation: Operation,
        /// The group whose operation it is; `None` for all ranks.
        group: Option<Arc<GroupPlan>>,
        /// The reporting rank.
        rank: usize,
        /// The driver's message.
        source: Box<device::cuda::Error>,
    },
    /// Not all ranks opened the backend before the deadline. It is stuck there: the process should
    /// end soon (exit code 5).
    #[error(
        "backend {backend} did not open within {:.1} s: a peer is missing or far behind; {hint}",
        waited.as_secs_f64()
    )]
    OpenDeadline {
        /// Name of the backend.
        backend: &'static str,
        /// Time from the first call of the library until the deadline.
        waited: Duration,
        /// Hint where to look for the cause.
        hint: String,
    },
    /// The backend could not be started.
    #[error("backend {backend} cannot start: {text}")]
    Start {
        /// Name of the backend.
        backend: &'static str,
        /// Description of the failure, and a hint.
        text: String,
    },
    /// The operation does not exist for this element type.
    #[error("{operation} does not support {text}")]
    Unsupported {
        /// The requested operation.
        operation: Operation,
        /// Description of the unsupported type.
        text: String,
    },
    /// Arguments that do not fit the world, or that differ between ranks.
    #[error("{operation}{} on rank {rank}: {text}", group_text(group))]
    Mismatch {
        /// The requested operation.
        operation: Operation,
        /// The group whose operation it is; `None` for all ranks.
        group: Option<Arc<GroupPlan>>,
        /// The reporting rank.
        rank: usize,
        /// Description of the expected and the found arguments.
        text: String,
    },
    /// More operations are outstanding than fit in the table of a backend or a buffer.
    #[error(
        "{operation} on rank {rank}: {capacity} operations are outstanding already, no more fit; \
         wait for some first, or use larger buckets (collectives.bucket_bytes)"
    )]
    Full {
        /// The requested operation.
        operation: Operation,
        /// The reporting rank.
        rank: usize,
        /// Number of operations that fit.
        capacity: usize,
    },
}

impl Error {
    /// Returns whether the cause may be another rank: the process then ends with exit code 5.
    /// Libraries without fault tolerance report a lost peer as an MPI error like any other.
    pub fn is_peer_failure(&self) -> bool {
        matches!(
            self,
            Self::Deadline { .. }
                | Self::OpenDeadline { .. }
                | Self::PeerLost { .. }
                | Self::Dead { .. }
                | Self::Mpi { .. }
                | Self::Nccl { .. }
        )
    }

    /// Names the missing ranks of a passed deadline, if none is known yet.
    #[cfg(feature = "mpi")]
    pub(crate) fn name_missing(&mut self, missing: impl FnOnce() -> Vec<usize>) {
        if let Self::Deadline { peers, .. } = self
            && peers.is_empty()
        {
            *peers = missing();
        }
    }

    /// The ranks that are known to be missing.
    pub fn missing_ranks(&self) -> &[usize] {
        match self {
            Self::Deadline { peers, .. } => peers,
            Self::PeerLost { peers, .. } | Self::Nccl { peers, .. } if peers.len() == 1 => peers,
            _ => &[],
        }
    }
}

/// Position of an operation among those of its kind that a device was given together: among the
/// reductions of a step, the number of the bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Number from 1, in the order of their starts.
    pub number: u32,
    /// Number of these operations.
    pub of: u32,
}

fn position_text(position: Option<Position>) -> String {
    position.map_or(String::new(), |Position { number, of }| format!(" (number {number} of {of})"))
}

fn group_text(group: &Option<Arc<GroupPlan>>) -> String {
    group.as_ref().map_or(String::new(), |group| format!(" in {group}"))
}

fn peers_text(peers: &[usize]) -> String {
    if peers.is_empty() {
        "which rank is missing is not known".to_owned()
    } else {
        format!("missing ranks: {peers:?}")
    }
}
