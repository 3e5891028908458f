//! Detection of slow ranks by their own times, without the time in which they wait for others.
//!
//! In every step the own time of a rank is compared with that of the median of the other ranks of
//! its class, so that a slowdown of all ranks does not count. Means of some steps are blocks: a
//! rank that is slow in every tenth step counts by what it costs. After each block, windows of 4 to
//! 256 blocks that end now are tested, with a bound on false names for the whole job.
//!
//! The noise of a window comes from differences of neighbouring means at its scale and all others
//! (an Allan deviation), so that regimes and steps that depend on each other make it larger, and
//! the natural pace of a rank does not. Quantiles are those of Student's t; by Bonferroni's
//! inequality over ranks, windows and bases, a job names a healthy rank at most so often, as far as
//! blocks are normal.
//!
//! Communication and the median own time, which all ranks share, are series of their own, whose
//! changes are notices.

mod class;
mod classes;
mod detector;
mod history;
mod noise;
mod notice;
mod own_time;
mod pace;
mod recent;
#[cfg(test)]
mod recorded;
mod series;
#[cfg(test)]
mod simulated;
mod stalls;
#[cfg(test)]
mod tests;
mod window;

pub use classes::classes;
pub use detector::{Detector, Findings};
pub use notice::{Notice, SharedPart};
pub use own_time::{OwnTime, StepTimes};
pub use pace::{PaceError, paces};

/// Conditions for naming a rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rule {
    /// Steps of a block; 0 for no detection.
    pub block_steps: usize,
    /// Least excess, as a share: 3 %.
    pub least_slower: f64,
    /// The same in a class of fewer than eight ranks, among which 3 % may be natural: 10 %, if that
    /// is more.
    pub least_slower_of_few: f64,
    /// Names of healthy ranks that are accepted in a thousand hours of a job.
    pub false_per_1000h: f64,
}

impl Default for Rule {
    fn default() -> Self {
        Self { block_steps: 10, least_slower: 0.03, least_slower_of_few: 0.1, false_per_1000h: 1.0 }
    }
}
