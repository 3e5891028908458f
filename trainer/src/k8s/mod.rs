//! Jobs for Kubernetes: a benchmark file becomes the objects of an MPIJob.
//!
//! Nothing here talks to a cluster. What is rendered depends on the benchmark file, the workload
//! file that it names, and the version of this program: no time, no random number, no credentials.

mod argo;
mod benchmark;
mod collect;
mod format;
pub(crate) mod frozen;
mod launcher;
mod memory;
mod metadata;
mod mpijob;
mod names;
mod network;
mod paths;
mod placement;
mod pod;
mod rendered;
mod security;
#[cfg(test)]
mod tests;
mod train;
mod trainjob;
mod volumes;
mod worker;
mod workload_file;

pub(crate) use benchmark::read;
pub(crate) use collect::{Collection, Expected, Found};
pub(crate) use format::Format;
pub(crate) use rendered::Job;
