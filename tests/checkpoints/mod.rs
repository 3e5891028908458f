//! Checkpoints of runs: on tiers and object stores, the commands about them, and files that others
//! plant among them.

mod ckpt;
#[cfg(feature = "mpi")]
mod object_checkpoints;
#[cfg(feature = "mpi")]
mod partner;
mod planted_files;
#[cfg(feature = "mpi")]
mod tiers;
