//! What can be done with a buffer, and what is checked before it is.

use std::fmt;
use std::time::{Duration, Instant};

use crate::Error;

/// Element type of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dtype {
    /// Bytes; no reduction.
    U8,
    /// bfloat16; no reduction, as it would lose what the addends have.
    Bf16,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
}

impl Dtype {
    /// Whether sums are taken over it.
    pub(crate) fn is_summed(self) -> bool {
        matches!(self, Self::F32 | Self::F64)
    }

    /// Size of one element in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::Bf16 => 2,
            Self::F32 => 4,
            Self::F64 => 8,
        }
    }
}

/// Two independent orders of operations, so that small control messages never wait behind data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel {
    /// Gradients and weights.
    Data,
    /// Stop flags, votes, gathers of timings.
    Control,
}

/// What is done with a buffer of `len` elements on every rank. Everything is in place.
///
/// All ranks must start the collective operations of one channel in the same order, with the same
/// operation, element type and length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Every rank ends with the element-wise sum, bit-identical on all ranks: that of the nodes'
    /// sums in the order of the nodes' first ranks, each that of its ranks in their order, where
    /// ranks of a node share memory and the channel is that of data; else of the ranks in order.
    AllReduceSum,
    /// Rank r ends with the same sum in the r-th of R equal parts; the other parts are unspecified,
    /// but for elements that are zero on all ranks: they stay zero everywhere.
    ReduceScatterSum,
    /// Rank r gives the r-th of R equal parts; every rank ends with all of them.
    AllGather,
    /// Every rank ends with the root's buffer.
    Broadcast {
        /// The giving rank.
        root: usize,
    },
    /// Nobody passes before everybody came. The buffer is empty.
    Barrier,
    /// Point to point: gives the buffer.
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
}

impl Operation {
    /// Largest tag. MPI promises 32767 (MPI 4.0, section 9.1.2, `MPI_TAG_UB`); those above are the
    /// backend's own.
    pub const TAG_MAX: u16 = 16_383;

    /// The other rank of a point-to-point operation.
    pub fn peer(self) -> Option<usize> {
        match self {
            Self::Send { to, .. } => Some(to),
            Self::Receive { from, .. } => Some(from),
            _ => None,
        }
    }

    /// What this rank can know to be wrong before anybody else is asked. All backends use it.
    pub(crate) fn check(
        self,
        dtype: Dtype,
        len: usize,
        rank: usize,
        world: usize,
    ) -> Result<(), Error> {
        let mismatch = |text: String| Err(Error::Mismatch { operation: self, rank, text });
        match self {
            Self::AllReduceSum | Self::ReduceScatterSum if !dtype.is_summed() => {
                Err(Error::Unsupported { operation: self, text: format!("a sum over {dtype:?}") })
            }
            Self::ReduceScatterSum | Self::AllGather if !len.is_multiple_of(world) => {
                mismatch(format!("expected a multiple of {world} ranks, found {len} elements"))
            }
            Self::Broadcast { root } if root >= world => {
                mismatch(format!("expected a root below {world}, found {root}"))
            }
            Self::Barrier if len != 0 => {
                mismatch(format!("expected an empty buffer, found {len} elements"))
            }
            Self::Send { to: peer, .. } | Self::Receive { from: peer, .. }
                if peer >= world || peer == rank =>
            {
                mismatch(format!("expected another rank below {world}, found {peer}"))
            }
            Self::Send { tag, .. } | Self::Receive { tag, .. } if tag > Self::TAG_MAX => {
                mismatch(format!("expected a tag of at most {}, found {tag}", Self::TAG_MAX))
            }
            _ => Ok(()),
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
        }
    }
}

/// When an operation ran, and on how much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// When the backend started it.
    pub started: Instant,
    /// When it was complete on this rank.
    pub ended: Instant,
    /// Size of the buffer in bytes.
    pub bytes: usize,
}

impl Timing {
    /// Time from start to end.
    pub fn elapsed(&self) -> Duration {
        self.ended.saturating_duration_since(self.started)
    }
}
