//! The files of a checkpoint, format v1: how each is laid out, without any input or output.

pub(crate) mod index;
pub(crate) mod manifest;
pub(crate) mod sealed;
pub(crate) mod shard;
