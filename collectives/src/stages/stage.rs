//! One collective among the members of a group: an operation over several nodes has several.

use super::partition::Partition;
use crate::RawBuffer;

/// What is done with a buffer. All members of the group do the same, with the same partition.
#[derive(Debug, Clone)]
pub(crate) struct Stage {
    pub(crate) kind: StageKind,
    /// This member's buffer.
    pub(crate) buffer: RawBuffer,
    /// Which part belongs to which member.
    pub(crate) partition: Partition,
}

/// What a stage does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StageKind {
    /// The owner of each part ends with its sum over the group; other parts stay as they are.
    ReduceScatter,
    /// Every member ends with every owner's part.
    AllGather,
    /// Every member ends with the sums of all parts.
    AllReduce,
}
