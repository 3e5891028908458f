//! Checkpoints on a file system that fails, hangs, is slow, and loses what was not synced. It is a
//! FUSE mount, which needs `/dev/fuse` and root.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod disk;
mod errors;
mod faults;
mod gap;
#[cfg(feature = "mpi")]
mod hangs;
mod mount;
mod power_cuts;
#[path = "../../checkpoint/tests/suite/support.rs"]
#[allow(dead_code, reason = "of what the tests of the crate use, a part")]
mod ranks;
mod refusals;
#[cfg(feature = "mpi")]
mod runs;
