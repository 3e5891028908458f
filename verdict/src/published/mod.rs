//! `yardstick compare published:KEY RUN`: a run beside published throughput of the same work.
//!
//! Published figures are of other machines and programs, without their variance. So there is no
//! verdict: both figures and their ratio are printed in the convention of the published one, and
//! nothing is printed if the work differs.

mod comparable;
mod comparison;
mod conditions;
mod render;
mod rows;
#[cfg(test)]
mod tests;

pub use comparison::{PublishedComparison, PublishedFigure, RowComparison};
pub use conditions::Condition;
pub use rows::{Convention, Published, Row, Shape};

/// Prefix of the name of published figures in the place of a base.
const PREFIX: &str = "published:";

/// Returns the key of published figures, if this names any.
pub fn key(place: &str) -> Option<&str> {
    place.strip_prefix(PREFIX)
}
