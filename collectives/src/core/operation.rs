//! Operations on buffers, and their timings.

use std::fmt;
use std::time::{Duration, Instant};

use super::traffic::Interval;

/// Two independent orders of operations, so that small control messages never wait behind data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel {
    /// Gradients and weights.
    Data,
    /// Stop flags, votes, gathers of timings.
    Control,
}

/// Operation on a buffer of `len` elements on every rank. All operations are in place.
///
/// All ranks must start the collective operations of one channel in the same order, with the same
/// operation, element type and length; and either all on the same range of a backend's
/// [buffer](crate::Collective::allocate), or all on other memory.
///
/// In the memory of devices tags are not transmitted: the messages from one rank to another match
/// in the order in which both start them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Every rank ends with the element-wise sum, bit-identical on all ranks. Ranks are added in
    /// ascending order; but on the data channel, for a buffer in memory that the ranks of a node
    /// share, first those of each node in ascending order, then the nodes' sums in the order of the
    /// nodes' first ranks.
    /// In the memory of devices, the order is NCCL's.
    AllReduceSum,
    /// Rank r ends with the same sum in the r-th of R equal parts; the other parts are unspecified,
    /// but for elements that are zero on all ranks: they stay zero everywhere.
    ReduceScatterSum,
    /// Rank r contributes the r-th of R equal parts; every rank ends with all of them.
    AllGather,
    /// Every rank ends with the root's buffer.
    Broadcast {
        /// The rank whose buffer it is.
        root: usize,
    },
    /// No rank leaves before all have entered. The buffer is empty.
    Barrier,
    /// Point to point: sends the buffer.
    Send {
        /// Receiving rank.
        to: usize,
        /// Matches the receiver's tag; at most [`Operation::TAG_MAX`].
        tag: u16,
    },
    /// Point to point: fills the buffer. The sender's buffer has the same length.
    Receive {
        /// Sending rank.
        from: usize,
        /// Matches the sender's tag; at most [`Operation::TAG_MAX`].
        tag: u16,
    },
    /// Several messages that were [started together](crate::Collective::submit_group), in timings
    /// and errors. Their size is that of all, sent and received. Not to be submitted by itself.
    Messages,
}

impl Operation {
    /// Largest tag. MPI guarantees 32767 (MPI 4.0, section 9.1.2, `MPI_TAG_UB`), which backends
    /// divide among the dimensions of groups and messages of their own.
    pub const TAG_MAX: u16 = 1023;

    /// Tag of the messages of [`AllToAll`](crate::AllToAll), not for others.
    pub const ALL_TO_ALL_TAG: u16 = Self::TAG_MAX - 1;

    /// Bytes that each rank sends over its link, per byte of the buffer, as NVIDIA's nccl-tests
    /// define it (doc/PERFORMANCE.md there): comparable between operations and numbers of ranks.
    pub fn bus_factor(self, world: usize) -> f64 {
        self.bus_parts(world) as f64 / world as f64
    }

    /// The same as bytes, for a buffer of so many.
    pub fn bus_bytes(self, bytes: usize, world: usize) -> u64 {
        (bytes as u128 * self.bus_parts(world) as u128 / world as u128) as u64
    }

    /// Number of parts of the buffer that each rank sends, where each rank has one part.
    fn bus_parts(self, world: usize) -> usize {
        match self {
            Self::AllReduceSum => 2 * (world - 1),
            Self::ReduceScatterSum | Self::AllGather => world - 1,
            _ => world,
        }
    }

    /// The operation with ranks of the world instead of those of a group.
    ///
    /// A rank that the group does not have stays as it is.
    pub(crate) fn in_world(self, ranks: &[usize]) -> Self {
        let of_world = |rank: usize| ranks.get(rank).copied().unwrap_or(rank);
        match self {
            Self::Broadcast { root } => Self::Broadcast { root: of_world(root) },
            Self::Send { to, tag } => Self::Send { to: of_world(to), tag },
            Self::Receive { from, tag } => Self::Receive { from: of_world(from), tag },
            other => other,
        }
    }

    /// The other rank of a point-to-point operation.
    pub fn peer(self) -> Option<usize> {
        match self {
            Self::Send { to, .. } => Some(to),
            Self::Receive { from, .. } => Some(from),
            _ => None,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllReduceSum => write!(formatter, "all-reduce"),
            Self::ReduceScatterSum => write!(formatter, "reduce-scatter"),
            Self::AllGather => write!(formatter, "all-gather"),
            Self::Broadcast { root } => write!(formatter, "broadcast from rank {root}"),
            Self::Barrier => write!(formatter, "barrier"),
            Self::Send { to, tag } => write!(formatter, "send to rank {to} (tag {tag})"),
            Self::Receive { from, tag } => {
                write!(formatter, "receive from rank {from} (tag {tag})")
            }
            Self::Messages => write!(formatter, "grouped messages"),
        }
    }
}

/// Start and end of an operation, and the size of its buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Time at which the backend started it.
    pub started: Instant,
    /// Time at which it was complete on this rank.
    pub ended: Instant,
    /// Size of the buffer in bytes, or of all buffers of grouped messages.
    pub bytes: usize,
    /// Time of its stage over the outer dimension of a [grid](crate::GridPlan): stages over the
    /// inner one are before and after it. `None` without such a stage.
    pub outer: Option<Interval>,
}

/// An operation that a device has completed after its computation was made to wait for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    /// The operation.
    pub operation: Operation,
    /// Name of the [dimension](crate::GroupPlan::dimension) of its group; `world` for all ranks.
    pub dimension: &'static str,
    /// Its timing.
    pub timing: Timing,
    /// Time at which the device's computation began to wait, or would have if it had not been over.
    pub wait_start: Instant,
}

impl Timing {
    /// Time from start to end.
    pub fn elapsed(&self) -> Duration {
        self.ended.saturating_duration_since(self.started)
    }
}
