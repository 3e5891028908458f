//! The program, unmodified, with `--device cuda`: training on one device and on two with NCCL, the
//! doctor, and what GPUs report of themselves.
//!
//! Needs the emulated device: `make test-cuda-emulated`.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[cfg(feature = "mpi")]
mod doctor;
mod emulated;
#[cfg(feature = "mpi")]
mod hardware;
mod libraries;
#[cfg(feature = "mpi")]
mod nccl;
mod tuning;
