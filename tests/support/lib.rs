//! What tests of several crates share: the binary run as a user would, with and without mpirun, and
//! on nodes of one machine; the result of the run; an S3 server with faults; system calls that are
//! denied; allocations that are counted; the gap of a step and its growth.
#![allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "a test's helper may panic")]

pub mod counting;
pub mod denied_ranks;
mod folder;
mod gap;
pub mod launcher;
mod nodes;
mod ports;
mod process;
mod profile;
pub mod s3;
mod s3_faults;
mod schema;
pub mod seccomp;
mod slots;
mod variant;
pub mod versitygw;

pub use folder::{Folder, LossBits, RunResult, StepLine, only_training_libraries, record, text};
pub use gap::{GapGrowth, StepGap, assert_gap_grows_as_planted};
pub use nodes::{add_node, mpirun_on_nodes};
pub use ports::free_port;
pub use process::{
    EachRank, Finished, PROBE, ResidentBytes, Running, delay_streams, finish, finish_waiting,
    launch, library_of, mpirun, mpirun_test, on_each_rank, resident_bytes, run, supervise,
    yardstick,
};
pub use profile::profile_row;
pub use schema::expect_valid;
pub use variant::{SEVERAL_BUCKETS, VARIANTS, Variant, is_matrix};
