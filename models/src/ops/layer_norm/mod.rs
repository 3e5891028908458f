//! LayerNorm with bias (Ba, Kiros, Hinton, arXiv 1607.06450) over rows of C elements.
//!
//! Forward, per row: mean m, variance v (of all C, not C - 1), r = 1 / sqrt(v + 1e-5),
//! h = (x - m) r, y = h w + b. It keeps m and r.
//!
//! Backward, with g = dy w: dx += r (g - mean(g) - h mean(g h)); dw += the sum over rows of dy h;
//! db += the sum over rows of dy.

mod cpu;

pub use cpu::{apply, backward, forward};

/// Added to the variance, as in GPT-2.
pub const EPSILON: f64 = 1e-5;

/// A norm's parameters.
#[derive(Debug, Clone, Copy)]
pub struct Parameters<'a, T> {
    /// w (C).
    pub weight: &'a [T],
    /// b (C).
    pub bias: &'a [T],
}

/// Gradients of a norm's parameters, accumulated in the wide type of the elements.
#[derive(Debug)]
pub struct Gradients<'a, T> {
    /// dw (C).
    pub weight: &'a mut [T],
    /// db (C).
    pub bias: &'a mut [T],
}
