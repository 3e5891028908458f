//! Ranks in two dimensions, with the state of training divided among them in every way: the losses
//! of one rank, traffic, checkpoints from any layout to any other, and lost ranks.
#![cfg(feature = "mpi")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod checkpoints;
mod faults;
mod layout;
mod losses;
