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

pub use cpu::narrow;
pub(crate) use cpu::update;
use half::bf16;

/// The parameters of one AdamW step.
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
    /// s, by which gradients are multiplied first (1 without clipping).
    pub gradient_scale: f64,
}

/// One step on a slice of the flat buffers: updates `weights` and both moments.
///
/// # Panics
/// Panics if the lengths differ.
pub fn step(
    weights: &mut [f32],
    gradients: &[f32],
    first_moments: &mut [f32],
    second_moments: &mut [f32],
    adamw: &AdamW,
) {
    update::<f32>(weights, None, gradients, first_moments, second_moments, adamw);
}

/// Does one [`step`], and writes the weights rounded to `working`.
///
/// # Panics
/// Panics if the lengths differ.
pub fn step_and_narrow(
    weights: &mut [f32],
    working: &mut [bf16],
    gradients: &[f32],
    first_moments: &mut [f32],
    second_moments: &mut [f32],
    adamw: &AdamW,
) {
    update(weights, Some(working), gradients, first_moments, second_moments, adamw);
}
