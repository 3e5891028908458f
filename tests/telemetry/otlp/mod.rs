//! Metrics and spans of a run in an OpenTelemetry collector; one that does not answer changes
//! nothing but a warning.

mod attributes;
mod failed;
#[cfg(feature = "mpi")]
mod metrics;
#[cfg(feature = "mpi")]
mod observed;
mod password;
#[cfg(feature = "mpi")]
mod real_collector;
mod receiver;
#[cfg(feature = "mpi")]
mod spans;
mod unavailable;
