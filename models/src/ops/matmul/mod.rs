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
//!
//! Each layer of the code uses those listed before it: `tile` (operands and result of a
//! micro-kernel), `kernels` (the micro-kernels of each instruction set), `packing` (operands in
//! their order), `blocked` (products of any size, by cache blocks and threads), `linear` (the
//! functions here).

pub(in crate::ops) mod blocked;
pub(crate) mod cuda;
pub(in crate::ops) mod kernels;
mod linear;
pub(in crate::ops) mod packing;
pub(in crate::ops) mod tile;

pub use blocked::{Extent, Workspace};
pub use linear::{Epilogue, Shape, Sums, backward_bias, backward_input, backward_weight, forward};

use crate::ops::Element;

/// Instruction set of the micro-kernels that this element gets on this processor: `amx_bf16` or
/// `avx512bf16` (bf16 only), `avx512f`, `fma`, `neon` or `scalar`.
///
/// With any but the first two, bf16 is widened to f32 while it is packed.
pub fn kernel_name<E: Element>() -> &'static str {
    kernels::best::<E>().name
}

/// Kernels that are no fallback on this architecture, best first, whether or not this processor has
/// them: on x86-64 AVX-512, for bf16 AMX and AVX512-BF16; NEON on ARM.
pub fn full_speed_kernels<E: Element>() -> &'static [&'static str] {
    kernels::full_speed::<E>()
}
