//! `yardstick compare`: whether runs got worse, and why.
//!
//! Steps of one run say nothing about the variance between runs, and runs one after the other share
//! what the machine was like at that time. So what counts is a run in a pair of runs in turn, or a
//! session of runs; with too few of them the variance on file is assumed.

mod attribution;
mod comparison;
mod design;
mod deviations;
mod differences;
mod estimate;
mod metric;
#[cfg(test)]
pub(crate) mod recorded;
mod render;
mod side;
#[cfg(test)]
mod tests;
mod turns;
mod verdict;

pub(crate) use comparison::{Comparison, Settings};
pub(crate) use deviations::deviations;
pub(crate) use side::Side;
pub(crate) use turns::{Turns, take_turns};
pub(crate) use verdict::Verdict;
