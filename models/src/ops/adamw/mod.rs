//! AdamW with decoupled decay (Loshchilov, Hutter, arXiv 1711.05101, algorithm 2), one pass:
//!
//! - g = s gradient
//! - m = b1 m + (1 - b1) g
//! - v = b2 v + (1 - b2) g^2
//! - w -= lr ((m / c1) / (sqrt(v / c2) + epsilon) + decay w)
//!
//! where c1 = 1 - b1^step and c2 = 1 - b2^step, steps counted from 1, and s is the factor of
//! gradient clipping.

mod cpu;

pub use cpu::{narrow, step};

/// What one AdamW step needs besides the buffers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// lr.
    pub learning_rate: f64,
    /// b1.
    pub beta1: f64,
    /// b2.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Decoupled decay; 0 for norms and biases.
    pub weight_decay: f64,
    /// c1 = 1 - b1^step.
    pub correction1: f64,
    /// c2 = 1 - b2^step.
    pub correction2: f64,
    /// s, what gradients are multiplied by first (1 without clipping).
    pub gradient_scale: f64,
}
