//! Judgements of runs: golden losses, wrong bits, gates, published figures, the gap of a step,
//! nights of a job, and the page of the report.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[cfg(feature = "mpi")]
mod corruption;
#[cfg(feature = "mpi")]
mod fingerprint;
mod gap;
#[cfg(feature = "mpi")]
mod gates;
mod k8s_collect;
mod published;
#[cfg(feature = "mpi")]
mod report_html;
