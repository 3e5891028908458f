//! Runs whose figures are not compared with those of others.

use std::fmt;

use crate::sections::Status;
use crate::text::number_format;

/// With fewer measured steps, one that is slow decides.
pub const MEASURED_STEPS_MIN: u64 = 20;

/// Why not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unusable {
    /// It did not complete, or is void.
    Incomplete(Status),
    /// These faults were injected.
    Injected(Vec<String>),
    /// It ended at this step, because its loss was low enough: how long it ran depends on its
    /// losses.
    EndedAtTarget(u64),
    /// Only so many steps were measured.
    FewSteps(u64),
    /// It names no rank.
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
