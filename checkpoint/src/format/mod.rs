//! Layouts of the files of a checkpoint, without any input or output.

mod contradiction;
pub(crate) mod digest;
pub(crate) mod index;
pub(crate) mod limits;
pub(crate) mod manifest;
pub(crate) mod name;
pub(crate) mod sealed;
pub(crate) mod shard;

/// Version of the on-disk format that is written, and the only one that is read.
pub(crate) const FORMAT: u32 = 2;
