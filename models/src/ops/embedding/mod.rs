//! Token and position embedding: `x[b, t] = wte[token[b, t]] + wpe[t]`, the latter where a family
//! has a table of positions.
//!
//! tokens are (B, T), wte (V, C), wpe (context, C) of which the first T rows are used, x (B, T, C).
//! Backward adds each `dx[b, t]` to row `token[b, t]` of dwte and to row t of dwpe.

mod cpu;
pub(crate) mod cuda;

pub use cpu::{backward, forward};
