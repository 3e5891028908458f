//! Least time of a part of a step, and the rate that it follows from.

use serde::Serialize;

/// Rate that bounds a part of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BoundBy {
    /// Measured matmul rate.
    Matmul,
    /// Measured rate of memory.
    Memory,
    /// None: the op has no products, and its operands stay in caches, whose rate is not measured.
    Caches,
    /// Communication that backward cannot hide, by links that were measured.
    Links,
    /// None: a step could do without the part.
    Nothing,
}

/// Bound of a part of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Bound {
    pub(super) ms: f64,
    pub(super) by: BoundBy,
}
