//! Runs whose figures cannot be compared with those of other runs.

use std::fmt;

use crate::sections::Status;
use crate::text::number_format;

/// Smallest number of measured steps of a comparison: with fewer, one slow step decides.
pub const MEASURED_STEPS_MIN: u64 = 20;

/// Reason why the figures of a run cannot be compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unusable {
    /// The run did not complete, or is void.
    Incomplete(Status),
    /// Faults were injected.
    Injected(Vec<String>),
    /// The run ended at this step, because its loss was low enough: its length depends on its
    /// losses.
    EndedAtTarget(u64),
    /// Checks for silent data corruption found wrong values so many times.
    Corrupted(usize),
    /// Too few steps were measured; their number.
    FewSteps(u64),
    /// The record names no rank.
    NoRanks,
}

impl fmt::Display for Unusable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Incomplete(status) => {
                write!(formatter, "expected a complete run, found {}", status.name())
            }
            Self::Injected(faults) => {
                write!(formatter, "expected a run without faults, found --inject ")?;
                formatter.write_str(&faults.join(" "))
            }
            Self::EndedAtTarget(step) => write!(
                formatter,
                "expected a run to its last step, found one that its target loss ended at step \
                 {step}"
            ),
            Self::Corrupted(found) => {
                let found = number_format::count(*found, "finding");
                write!(formatter, "expected right values, found {found} of wrong ones in sdc")
            }
            Self::NoRanks => formatter.write_str("expected ranks, found none"),
            Self::FewSteps(found) => {
                let found = number_format::count(*found as usize, "measured step");
                write!(
                    formatter,
                    "expected at least {MEASURED_STEPS_MIN} measured steps, found {found}"
                )
            }
        }
    }
}
