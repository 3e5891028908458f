//! How a group of ranks works on a buffer: which rank owns which part, in which chunks, and how
//! parts are summed. A part is the range of the buffer whose sums one rank, its owner, computes or
//! contributes. The group is the ranks of a node, ranks of different nodes, or all.

#[cfg(feature = "mpi")]
pub(crate) mod chunks;
#[cfg(feature = "mpi")]
pub(crate) mod partition;
#[cfg(feature = "mpi")]
pub(crate) mod stage;
pub(crate) mod sum;
