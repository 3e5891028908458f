//! Jobs that fail and go on: kills, stops, hangs, and what `launch` makes of them.
#![cfg(feature = "mpi")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod faults;
mod launching;
