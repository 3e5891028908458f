//! `yardstick report --gap RUN`: the time of a profiled step, row by row, beside the time that the
//! measured rates of the machine allow.
//!
//! The rows add up to the step. Nothing is predicted: each op is bounded by its own FLOPs and
//! bytes, communication by what `yardstick comm` measured between the same ranks, and everything
//! else by zero. A figure whose rate is unknown, or was measured on a disturbed machine, is `null`
//! with the reason.

mod accounting;
mod bound;
mod communication;
mod links;
mod ops;
mod render;
#[cfg(test)]
mod tests;

pub use accounting::{Gap, GapRow};
pub use bound::BoundBy;
pub use communication::BucketGap;
pub use links::MeasuredLinks;
