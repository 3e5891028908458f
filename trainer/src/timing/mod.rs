//! Measurement of time: phases of a step, communication, profiles of one step, and the rates of the
//! machine.

pub mod communication;
mod device_timeline;
mod intervals;
pub(crate) mod matmul_probe;
pub(crate) mod memory_probe;
pub mod phase;
pub(crate) mod profile;
pub(crate) mod progress;
pub(crate) mod step_trace;
pub(crate) mod tallies;
pub(crate) mod virtual_clock;
