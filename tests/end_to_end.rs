//! Tests that start yardstick, alone and under mpirun. They are one program, so that those that
//! wait do so while others compute (`support::slots`).
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod checkpoints;
mod commands;
#[cfg(feature = "mpi")]
mod jobs;
#[cfg(feature = "mpi")]
mod parallel;
mod telemetry;
mod training;
mod verdicts;

/// Entry point of a rank of `support::denied_ranks`, which is not a test by itself.
#[cfg(feature = "mpi")]
#[test]
fn rank_of_a_job() {
    support::denied_ranks::become_yardstick();
}
