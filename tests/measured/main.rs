//! Tests that measure speed or memory, so that one of them at a time has the machine: the memory
//! plan, the utilisation, and a soak of slow ranks.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod memory_plan;
#[cfg(feature = "mpi")]
mod stragglers;
#[cfg(feature = "mpi")]
mod utilisation;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Keeps other tests of this binary waiting until it is dropped.
fn alone() -> MutexGuard<'static, ()> {
    static MACHINE: Mutex<()> = Mutex::new(());
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Entry point of a rank of `support::denied_ranks`, which is not a test by itself.
#[cfg(feature = "mpi")]
#[test]
fn rank_of_a_job() {
    support::denied_ranks::become_yardstick();
}
