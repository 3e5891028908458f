//! GELU in its tanh form (Hendrycks, Gimpel, arXiv 1606.08415), as GPT-2 uses it.
//!
//! y = x / 2 (1 + tanh u) with u = sqrt(2 / pi) (x + 0.044715 x^3). Because
//! (1 + tanh u) / 2 = 1 / (1 + e^(-2u)) =: s, it is computed as y = x s, which loses no digits
//! where tanh is near -1. Its derivative is s + x s (1 - s) 2 du/dx.
//!
//! Forward and backward are epilogues of matrix products.

mod cpu;
pub(crate) mod cuda;

pub(in crate::ops) use cpu::{gate, with_slope};
