//! Measurement of time: phases of a step, communication, profiles of one step, and the rates of the
//! machine.

pub mod communication;
mod device_timeline;
mod intervals;
pub mod phase;
pub(crate) mod probe;
pub(crate) mod profile;
pub(crate) mod progress;
pub(crate) mod step_trace;
pub(crate) mod tallies;
