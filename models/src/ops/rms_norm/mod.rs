//! RMSNorm (Zhang, Sennrich, arXiv 1910.07467) over rows of C elements, without bias.
//!
//! Forward, per row: r = 1 / sqrt(mean(x^2) + epsilon), y = x r w. It keeps r.
//!
//! Backward, with g = dy w: dx += r (g - x r^2 mean(g x)); dw += the sum over rows of dy x r.

mod cpu;

pub use cpu::{apply, backward, forward};
