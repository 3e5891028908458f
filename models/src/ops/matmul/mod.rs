//! Linear layers: Y = X W^T + b, and its three gradients.
//!
//! X is (N, I), W (O, I) as PyTorch's `Linear` keeps it, b (O), Y (N, O), all row-major:
//!
//! - dX = dY W
//! - dW += dY^T X
//! - db += the column sums of dY

mod cpu;
pub mod kernel;
pub(in crate::ops) mod pack;
pub(crate) mod product;

#[cfg(test)]
mod tests;

pub(crate) use pack::Packs;

pub use cpu::{backward_bias, backward_input, backward_weight, forward};

use crate::ops::Float;

/// Instruction set of the f32 micro-kernels that this processor gets: `avx512f`, `fma`, `neon` or
/// `scalar`.
pub fn kernel_name() -> &'static str {
    kernel::single().name
}

/// Whether these are not the fastest that there are for this architecture: AVX-512 on x86-64 (so
/// true with `fma` as well), NEON on ARM.
pub fn is_fallback() -> bool {
    kernel_name() != kernel::BEST
}

/// Shape of one linear layer over N rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// N.
    pub rows: usize,
    /// I, columns of X.
    pub inputs: usize,
    /// O, columns of Y.
    pub outputs: usize,
}

/// Packing buffers for products on a number of threads.
///
/// The number decides only how work is divided: results are the same for all.
#[derive(Debug)]
pub struct Workspace<T> {
    pub(crate) packs: Vec<Packs<T>>,
}

impl<T: Float> Workspace<T> {
    /// Buffers for this many threads (at least 1).
    pub fn new(threads: usize) -> Self {
        let (rows, depth, columns) = (product::ROWS, product::DEPTH, product::COLUMNS);
        let packs = || Packs::new(rows, depth, columns);
        Self { packs: (0..threads.max(1)).map(|_| packs()).collect() }
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.packs.iter().map(Packs::bytes).sum()
    }
}
