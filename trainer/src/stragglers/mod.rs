//! Detection of slow ranks during a run, and of the kind of work that is slow.
//!
//! With the vote of each step, every rank sends its own time in the step before (`own_time.rs`),
//! without the time in which it waited for other ranks. From windows of these, the detectors of all
//! ranks find the same [`record::Straggler`]s.

mod calibration;
mod detector;
#[cfg(test)]
mod recorded;
#[cfg(test)]
mod tests;

pub(crate) use calibration::outliers;
pub(crate) use detector::{Detector, Limits};
