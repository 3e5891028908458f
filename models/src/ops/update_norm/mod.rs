//! The norms of the weights and of their last update.
//!
//! An update by [AdamW](super::adamw) can be derived from its results: the new weights w, and both
//! moments m and v. With k = 1 - lr decay,
//!
//! - w = k w_old - d, where d = lr (m / c1) / (sqrt(v / c2) + epsilon)
//! - w_old = (w + d) / k
//! - w - w_old = -(lr decay w + d) / k
//!
//! The last line has no difference of numbers that are almost equal, so it is as exact as f32 is,
//! also where the update is far below the weights. The stored update differs from it by the
//! rounding of w. Where k is 0, the old weights are lost, and the update is not finite.
//!
//! Squares are added in f64, over a tree whose shape depends on the length alone: the sums have the
//! same bits on any number of threads.

mod cpu;

pub use cpu::update_squares;

use super::adamw::AdamW;

/// Sums over elements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UpdateSquares {
    /// Sum of the squares of the weights.
    pub weights: f64,
    /// Sum of the squares of their last update.
    pub update: f64,
}

/// The factors of every element: -(w - w_old) = decay w + rate m / (root_correction sqrt(v) +
/// epsilon).
#[derive(Debug, Clone, Copy)]
pub(super) struct Factors {
    pub(super) decay: f64,
    pub(super) rate: f64,
    pub(super) root_correction: f64,
    pub(super) epsilon: f64,
}

impl Factors {
    /// Factors of elements that were updated with these parameters; gradients have no part in it.
    pub(super) fn new(adamw: &AdamW) -> Self {
        let decay = adamw.learning_rate * adamw.weight_decay;
        let kept = 1.0 - decay;
        Self {
            decay: decay / kept,
            rate: adamw.learning_rate / adamw.correction1 / kept,
            root_correction: 1.0 / adamw.correction2.sqrt(),
            epsilon: adamw.epsilon,
        }
    }
}
