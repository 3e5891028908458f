//! `yardstick compare`: detects whether runs got worse, and why.
//!
//! Steps of one run say nothing about the variance between runs, and consecutive runs share the
//! state of the machine at that time. The unit of comparison is therefore a run in a pair of
//! alternating runs, or a session of runs; with too few of them a default variance is assumed.

mod allan;
mod attribution;
mod bundle;
mod comparable;
mod comparison;
#[cfg(test)]
mod damaged;
mod design;
mod deviations;
mod differences;
mod estimate;
mod evidence;
mod gate;
mod metric;
#[cfg(test)]
mod recorded;
mod render;
mod side;
#[cfg(test)]
mod tests;
mod turns;
mod verdict;

pub use bundle::{Bundle, Verified, require_empty};
pub(crate) use comparable::not_comparable;
pub use comparable::require_side;
pub use comparison::{Comparison, Settings};
pub(crate) use deviations::deviations;
pub(crate) use estimate::Estimate;
pub use gate::{Gate, share};
pub use side::Side;
pub(crate) use side::Source;
pub use turns::{Turns, take_turns};
#[cfg(test)]
use verdict::Verdict;
