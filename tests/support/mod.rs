//! Runs the binary as a user would, with and without mpirun, and reads the result of the run.

#![allow(dead_code, unused_imports, unreachable_pub, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test's helper may panic")]

mod folder;
pub mod launcher;
mod process;
mod schema;
mod variant;

pub use folder::{Folder, LossBits, RunResult, StepLine, only_training_libraries, record, text};
pub use process::{
    BothRanks, Finished, Running, delay_streams, finish, launch, library_of, mpirun, mpirun_test,
    on_both_ranks, resident_bytes, run, supervise, yardstick,
};
pub use schema::expect_valid;
pub use variant::{SEVERAL_BUCKETS, VARIANTS, Variant};
