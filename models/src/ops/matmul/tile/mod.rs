//! Interface of micro-kernels, with their operands: the layer that packing, blocking and the
//! kernels of each instruction set share.
//!
//! In C (m, n) = A (m, k) B (k, n) a *tile* is a part of C that is summed in registers, from a few
//! rows of A and a *panel* of B, a few vectors wide. Each *step* along k multiplies a column of A's
//! rows by a row of the panel. Both consist of *packed elements*, each as large as a wide element:
//! an element that was widened, or two that follow each other along k where a kernel multiplies
//! pairs (the VNNI layout of dot-product instructions).

mod kernel;
mod operands;
mod packed_product;
mod strided;

pub(in crate::ops) use kernel::{Kernel, MAX_TILE_ELEMENTS};
pub(in crate::ops) use operands::{Left, Target, TileShape};
pub(in crate::ops) use packed_product::PackedProduct;
pub(in crate::ops) use strided::Strided;
