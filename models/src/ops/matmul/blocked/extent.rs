//! The dimensions of a product, and other properties that determine its blocks.

use crate::ops::Element;
use crate::ops::matmul::tile::Kernel;

/// The dimensions of a product C (m, n) = A (m, k) B (k, n).
#[derive(Debug, Clone, Copy)]
pub(in crate::ops) struct ProductShape {
    pub(in crate::ops) m: usize,
    pub(in crate::ops) n: usize,
    pub(in crate::ops) k: usize,
}

/// A product as far as its blocks, and the memory that they take, depend on it.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    pub(in crate::ops) shape: ProductShape,
    /// k is contiguous in A.
    pub(in crate::ops) left_has_contiguous_rows: bool,
    /// Sums are rounded once they are complete, so that they are buffered before.
    pub(in crate::ops) output_is_narrow: bool,
}

impl Extent {
    /// Returns whether A is packed; otherwise the micro-kernel reads it in place.
    pub(super) fn packs_left<E: Element>(&self, kernel: &Kernel<E::Wide>) -> bool {
        !(self.left_has_contiguous_rows && kernel.reads_in_place::<E>(self.shape.k))
    }
}
