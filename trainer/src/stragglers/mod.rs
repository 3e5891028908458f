//! Which rank is slow, and at what, while a run goes on.
//!
//! With the vote of each step, every rank tells the others what the step before took it by itself
//! (`own_time.rs`), without the time in which it waited for them. From windows of these, the
//! detector of each rank comes to the same [`record::Straggler`]s.

mod detector;
mod own_time;
#[cfg(test)]
mod recorded;
mod sniff;
#[cfg(test)]
mod tests;

pub(crate) use detector::{Detector, Limits};
pub(crate) use own_time::{FIELDS, OwnTime};
pub(crate) use sniff::outliers;
