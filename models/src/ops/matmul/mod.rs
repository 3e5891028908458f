//! Linear layers: Y = X W^T + b, and its three gradients.
//!
//! X is (N, I), W (O, I) as PyTorch's `Linear` keeps it, b (O), Y (N, O), all row-major:
//!
//! - dX = dY W
//! - dW += dY^T X
//! - db += the column sums of dY
//!
//! Sums are taken wide over all of their terms; what is stored narrow is rounded once, after
//! the epilogue. Gradients of weights are wide.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod amx_parts;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod beside;
mod cpu;
mod cut;
pub(in crate::ops) mod detect;
mod gather;
pub mod kernel;
pub(crate) mod output;
#[cfg(target_arch = "x86_64")]
mod overlapped;
pub(in crate::ops) mod pack;
pub(crate) mod product;
pub(in crate::ops) mod small;
#[cfg(target_arch = "x86_64")]
mod split;
mod step;
#[cfg(target_arch = "x86_64")]
mod stepwise;
pub(crate) mod strided;
pub(in crate::ops) mod transpose;
pub(in crate::ops) mod weight;
mod workspace;

#[cfg(test)]
mod exactness;
#[cfg(test)]
mod past_agrees;
#[cfg(all(test, target_arch = "x86_64"))]
mod split_agrees;
#[cfg(test)]
mod tests;

pub use cpu::{Epilogue, Sums, backward_bias, backward_input, backward_weight, forward};
pub use cut::Extent;
pub use weight::{PackedWeight, Weight};
pub use workspace::Workspace;

use crate::ops::Element;

/// Instruction set of the micro-kernels that this element gets on this processor: `amx_bf16` or
/// `avx512bf16` (bf16 only), `amx_bf16x3` (f32 only, as three bf16), `avx512f`, `fma`, `neon` or
/// `scalar`.
///
/// Where bf16 gets another one than the first two, it is widened to f32 while it is packed.
pub fn kernel_name<E: Element>() -> &'static str {
    E::kernel().name
}

/// Those that are no fallback on this architecture, best first, whether or not this processor has
/// them: on x86-64 AMX (f32, bf16) and AVX-512, for bf16 those for pairs of it; NEON on ARM.
pub fn full_speed_kernels<E: Element>() -> &'static [&'static str] {
    detect::full_speed::<E>()
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

impl Shape {
    /// Its products: Y, dX and dW. With `is_packed` weights are kept in panels.
    pub fn products(self, is_packed: bool) -> [Extent; 3] {
        let Self { rows, inputs, outputs } = self;
        let y = Extent {
            shape: (rows, outputs, inputs),
            left_is_rows: true,
            right_is_packed: is_packed,
            is_narrow: true,
        };
        let dx = Extent { shape: (rows, inputs, outputs), ..y };
        let dw = Extent {
            shape: (outputs, inputs, rows),
            left_is_rows: false,
            right_is_packed: false,
            is_narrow: false,
        };
        [y, dx, dw]
    }
}
