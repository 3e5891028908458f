//! Jobs for Kubernetes: a benchmark file becomes the objects of an MPIJob.
//!
//! Nothing here talks to a cluster. The output depends on the benchmark file, the workload file
//! that it names, and the version of this program: no time, no random number, no credentials.

mod argo;
mod benchmark;
mod collect;
mod error;
mod format;
mod launcher;
mod memory;
mod metadata;
mod mpijob;
mod names;
mod network;
mod objects;
mod paths;
mod placement;
mod pod;
mod rendered;
mod security;
mod train;
mod trainer;
mod trainjob;
mod volumes;
mod worker;
mod workload_file;
mod yaml;

pub use benchmark::{Benchmark, parse, read};
pub use collect::{Collection, Expected, Found};
pub use error::{Error, Result};
pub use format::Format;
pub use rendered::Job;
pub use trainer::{Memory, NoRoom, Ranks, Trainer, Workload};
