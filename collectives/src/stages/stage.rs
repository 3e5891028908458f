//! A stage: a collective within one group. An operation over several nodes has several stages.

use super::partition::Partition;
use crate::RawBuffer;

/// Operation on a buffer, with the same kind and partition on all members of the group.
#[derive(Debug, Clone)]
pub(crate) struct Stage {
    pub(crate) kind: StageKind,
    /// This member's buffer.
    pub(crate) buffer: RawBuffer,
    /// Assignment of parts to members.
    pub(crate) partition: Partition,
}

/// Kind of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StageKind {
    /// The owner of each part ends with its sum over the group; other parts stay as they are.
    ReduceScatter,
    /// Every member ends with every owner's part.
    AllGather,
    /// Every member ends with the sums of all parts.
    AllReduce,
}
