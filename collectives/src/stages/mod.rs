//! Work of a group of ranks on a buffer: its division into parts and chunks, and the sums of parts.
//! A part is the range of the buffer whose sums one rank, its owner, computes or contributes. The
//! group is the ranks of a node, ranks of different nodes, or all.

#[cfg(feature = "mpi")]
pub(crate) mod chunks;
#[cfg(feature = "mpi")]
pub(crate) mod partition;
#[cfg(feature = "mpi")]
pub(crate) mod stage;
pub(crate) mod sum;
