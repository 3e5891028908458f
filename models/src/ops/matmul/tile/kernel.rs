//! A micro-kernel: the innermost loop of a product, one tile of C in registers.

#![allow(unsafe_code)]

use std::fmt::{Debug, Formatter};

use super::operands::{Left, Target, TileShape};
use super::strided::Strided;
use crate::ops::{Element, Float};

/// Longest block of k, in steps, for kernels that broadcast packed elements of A: 6 rows of so many
/// fill about half of the first-level cache.
const BROADCAST_BLOCK_STEPS: usize = 768;
/// Elements of the largest tile of any kernel.
pub(in crate::ops) const MAX_TILE_ELEMENTS: usize = 1024;

/// Multiplies the rows of the left operand by a panel of the right one, whose rows of one step are
/// contiguous, and writes or adds the tile.
pub(in crate::ops) type MicroKernel<W> = unsafe fn(Target<W>, TileShape, Left<W>, *const W);

/// The micro-kernel of one instruction set, and the sizes that packing and blocking take from it.
pub(in crate::ops) struct Kernel<W: 'static> {
    /// Name of the instruction set, as in `avx512f`.
    pub(in crate::ops) name: &'static str,
    /// Elements of a vector.
    pub(in crate::ops) lanes: usize,
    /// Vectors along a row of a full tile.
    pub(in crate::ops) vectors: usize,
    /// Rows of a full tile.
    pub(in crate::ops) rows: usize,
    /// Elements of k in a packed element: 2 (pairs of bf16) or 1 (everything else, widened).
    pub(in crate::ops) k_group: usize,
    /// Steps whose packed elements of a row of A are loaded together. Where they are several, those
    /// of a row must be contiguous.
    pub(in crate::ops) step_group: usize,
    /// Longest slice of k that is multiplied at once, in steps: rows of A over longer slices leave
    /// the first-level cache before the next panel needs them.
    pub(in crate::ops) slice_steps: usize,
    /// Longest block of k that is packed at once, in steps: one slice or several.
    pub(in crate::ops) block_steps: usize,
    /// Sums over a range of k are faster buffered in tiles than added to C for each range: rows of
    /// C are pages apart.
    pub(in crate::ops) buffers_sums: bool,
    /// The code.
    pub(in crate::ops) micro_kernel: MicroKernel<W>,
    /// Releases the registers that the code configures for a thread.
    pub(in crate::ops) release: fn(),
}

impl<W> Debug for Kernel<W> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Kernel").field(&self.name).finish()
    }
}

impl<W: Float> Kernel<W> {
    /// A kernel that broadcasts widened elements of A one by one.
    pub(in crate::ops) fn broadcasting(
        name: &'static str,
        lanes: usize,
        vectors: usize,
        rows: usize,
        micro_kernel: MicroKernel<W>,
    ) -> Self {
        Self {
            name,
            lanes,
            vectors,
            rows,
            k_group: 1,
            step_group: 1,
            slice_steps: BROADCAST_BLOCK_STEPS,
            block_steps: BROADCAST_BLOCK_STEPS,
            buffers_sums: false,
            micro_kernel,
            release: || (),
        }
    }

    /// Returns whether a packed element is a pair of narrow elements that follow each other along
    /// k.
    pub(in crate::ops) fn takes_pairs(&self) -> bool {
        self.k_group == 2
    }

    /// Columns of a panel of B, which are those of a full tile.
    pub(in crate::ops) fn panel_columns(&self) -> usize {
        self.lanes * self.vectors
    }

    /// Steps along `k` elements.
    pub(in crate::ops) fn steps(&self, k: usize) -> usize {
        k.div_ceil(self.k_group)
    }

    /// Returns whether the micro-kernel can read A in place where its rows of `k` elements are
    /// contiguous: its elements already form packed elements.
    pub(in crate::ops) fn reads_in_place<E: Element<Wide = W>>(&self, k: usize) -> bool {
        self.k_group * size_of::<E>() == size_of::<W>() && k.is_multiple_of(self.k_group)
    }

    /// Returns whether the left operand's packed elements of a row must be contiguous; otherwise
    /// those of a step may be.
    pub(in crate::ops) fn needs_contiguous_rows(&self) -> bool {
        self.step_group > 1
    }

    /// A left operand that [`Self::reads_in_place`].
    pub(in crate::ops) fn in_place<E: Element<Wide = W>>(&self, left: Strided<E>) -> Left<W> {
        Left {
            start: left.start.cast(),
            row_bytes: left.row_stride * size_of::<E>(),
            step_bytes: size_of::<W>(),
        }
    }

    /// Releases the registers that this thread has configured: after the last product of a task.
    pub(in crate::ops) fn release(&self) {
        (self.release)();
    }

    /// Multiplies and writes or adds one tile.
    ///
    /// # Safety
    /// Operands must be readable and the target writable over the shape: 1 to `self.rows` rows, 1
    /// to
    /// `self.vectors` vectors, and at least one step.
    #[inline(always)]
    pub(in crate::ops) unsafe fn multiply(
        &self,
        target: Target<W>,
        shape: TileShape,
        left: Left<W>,
        right: *const W,
    ) {
        // SAFETY: as this function; the processor has the instructions of the kernels it was given.
        unsafe { (self.micro_kernel)(target, shape, left, right) }
    }
}
