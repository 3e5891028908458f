//! SwiGLU (Shazeer, arXiv 2002.05202): hidden = silu(gate) up, with silu(g) = g s and
//! s = 1 / (1 + e^-g).
//!
//! Rows of the input hold the F elements of gate, then the F of up. Backward:
//! dgate = dhidden up s (1 + g (1 - s)), dup = dhidden g s.

mod cpu;
pub(crate) mod cuda;

pub use cpu::{backward, forward, recompute};
