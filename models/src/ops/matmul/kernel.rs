//! Micro-kernels: the innermost loop of a matmul, one tile of the output in registers.
//!
//! Those for AMX, and for AVX-512 in f32 and bf16, are our own; all others are those of the `gemm`
//! crate, whose driver is not used because it allocates packing buffers on every call.

#![allow(unsafe_code)]

use std::fmt::{Debug, Formatter};

use gemm_common::microkernel::MicroKernelFn;

use super::strided::Strided;
#[cfg(target_arch = "x86_64")]
use super::{amx, avx512, beside::Beside};
use crate::ops::{Element, Float, simd};

/// Where a tile of sums goes: whole vectors in each row.
#[derive(Debug, Clone, Copy)]
pub(in crate::ops) struct Target<W> {
    /// First element.
    pub(in crate::ops) start: *mut W,
    /// From one row to the next, in elements.
    pub(in crate::ops) row: usize,
    /// Whether the sums are added to what is there.
    pub(in crate::ops) accumulate: bool,
}

/// A column of cells of the left operand for each step, each cell the size of a wide element.
#[derive(Debug, Clone, Copy)]
pub(in crate::ops) struct Left<W> {
    /// The first cell; need not be aligned.
    pub(in crate::ops) start: *const W,
    /// From one row to the next.
    pub(in crate::ops) row_bytes: usize,
    /// From one step to the next.
    pub(in crate::ops) step_bytes: usize,
}

/// A micro-kernel of our own for one number of rows and of vectors, and any of steps.
#[cfg(target_arch = "x86_64")]
pub(super) type Tile<W> = unsafe fn(Target<W>, usize, Left<W>, *const W);

/// A micro-kernel of our own for all numbers of rows, vectors and steps.
#[cfg(target_arch = "x86_64")]
pub(super) type Tiles<W> = unsafe fn(Target<W>, (usize, usize, usize), Left<W>, *const W);

/// The same with work for the units of the processor that it leaves idle.
#[cfg(target_arch = "x86_64")]
pub(super) type TilesBeside<W> =
    unsafe fn(Target<W>, (usize, usize, usize), Left<W>, *const W, Option<&mut Beside>);

/// Micro-kernels of one instruction set, for operands in cells of W.
///
/// A tile has up to `vectors` vectors of `lanes` elements along contiguous output columns, times up
/// to `rows` output rows. A cell holds `group` elements that follow each other along k.
pub struct Kernel<W: 'static> {
    /// Name of the instruction set, as in `avx512f`.
    pub(super) name: &'static str,
    pub(super) lanes: usize,
    pub(super) vectors: usize,
    pub(super) rows: usize,
    /// Elements in a cell: 2 (bf16 as it is, or parts of f32) or 1 (everything else, widened).
    pub(super) group: usize,
    /// Parts of an element, each in a cell of its own: 3 (f32 in bf16) or 1.
    pub(super) parts: usize,
    /// Cells of a row of the left operand that are read at once. Where they are several, those of a
    /// row must be contiguous; else those of a step may be.
    pub(super) row_cells: usize,
    /// Longest run of k that is multiplied at once, in cells of a part: rows of longer ones leave
    /// the first cache before the next panel needs them.
    pub(super) run: usize,
    /// Longest run of k that is packed at once, in cells of a part: as long, or several of those.
    pub(super) depth: usize,
    /// Whether sums are better kept in tiles of their own until all of k is added, than added to C
    /// for every part of k: rows of C lie pages apart.
    pub(super) sums_wait: bool,
    pub(super) functions: Functions<W>,
}

/// The functions of a kernel.
#[derive(Clone, Copy)]
pub(super) enum Functions<W: 'static> {
    /// Our own for all shapes.
    #[cfg(target_arch = "x86_64")]
    AnyShape(Tiles<W>),
    /// Our own for all shapes of operands in parts.
    #[cfg(target_arch = "x86_64")]
    Parts(TilesBeside<W>),
    /// Our own by rows and vectors, each less one.
    #[cfg(target_arch = "x86_64")]
    ByShape(&'static [[Tile<W>; avx512::VECTORS]; avx512::ROWS]),
    /// By vectors and rows, each less one.
    Gemm(&'static [&'static [MicroKernelFn<W>]]),
}

impl<W> Debug for Kernel<W> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Kernel").field(&self.name).finish()
    }
}

impl<W: Float> Kernel<W> {
    /// Sums in a vector.
    pub(in crate::ops) fn lanes(&self) -> usize {
        self.lanes
    }

    /// Whether a cell is a pair of narrow elements that follow each other along k.
    pub(in crate::ops) fn takes_pairs(&self) -> bool {
        self.group == 2 && self.parts == 1
    }

    /// Whether elements are split into parts: then all operands have to be packed.
    pub(in crate::ops) fn takes_parts(&self) -> bool {
        self.parts > 1
    }

    /// Columns of a full tile.
    pub(in crate::ops) fn panel(&self) -> usize {
        self.lanes * self.vectors
    }

    /// Cells of `depth` elements along k. Those of several parts fill whole registers.
    pub(in crate::ops) fn steps(&self, depth: usize) -> usize {
        let cells = depth.div_ceil(self.group);
        if self.takes_parts() { cells.next_multiple_of(self.row_cells) * self.parts } else { cells }
    }

    /// Whether the micro-kernels can read a left operand over `k` whose rows are contiguous as it
    /// is: k along cells that elements already form.
    pub(in crate::ops) fn reads_rows<E: Element<Wide = W>>(&self, k: usize) -> bool {
        self.group * size_of::<E>() == size_of::<W>() && k.is_multiple_of(self.group)
    }

    /// Whether the left operand's cells of a row must be contiguous; else those of a step may be.
    pub(in crate::ops) fn reads_rows_only(&self) -> bool {
        self.row_cells > 1
    }

    /// Gives back what this thread holds to multiply: after the last of a task's products.
    pub(in crate::ops) fn release(&self) {
        #[cfg(target_arch = "x86_64")]
        if let Functions::AnyShape(_) | Functions::Parts(_) = self.functions {
            amx::release();
        }
    }

    /// Whether this thread has given back what it held.
    #[cfg(test)]
    pub(in crate::ops) fn is_released() -> bool {
        #[cfg(target_arch = "x86_64")]
        return amx::is_released();
        #[cfg(not(target_arch = "x86_64"))]
        true
    }

    /// A left operand by rows that [`Self::reads_rows`] says is readable as it is.
    pub(in crate::ops) fn in_place<E: Element<Wide = W>>(&self, left: Strided<E>) -> Left<W> {
        Left {
            start: left.start.cast(),
            row_bytes: left.row * size_of::<E>(),
            step_bytes: size_of::<W>(),
        }
    }

    /// Asks for `cells` cells that will be needed soon.
    #[inline(always)]
    pub(super) fn prefetch(&self, start: *const W, cells: usize) {
        #[cfg(target_arch = "x86_64")]
        if let Functions::ByShape(_) | Functions::AnyShape(_) = self.functions {
            simd::prefetch_far(start, cells);
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (start, cells);
    }

    /// As [`Self::multiply`], with work for units of the processor that a kernel for parts leaves
    /// idle. What it has no time for is left to the caller.
    ///
    /// # Safety
    /// As [`Self::multiply`] and [`Beside::step`].
    #[cfg(target_arch = "x86_64")]
    pub(super) unsafe fn multiply_beside(
        &self,
        target: Target<W>,
        shape: (usize, usize, usize),
        left: Left<W>,
        right: *const W,
        beside: &mut Beside,
    ) {
        let Functions::Parts(function) = self.functions else { unreachable!("{self:?}") };
        // SAFETY: as this function; the processor was asked when the kernel was chosen.
        unsafe { function(target, shape, left, right, Some(beside)) }
    }

    /// Multiplies `rows` rows of `depth` cells with a panel of `vectors` vectors per step, and
    /// writes or adds the tile.
    ///
    /// # Safety
    /// Operands must be readable and the target writable over these dimensions, the rows of the
    /// panel contiguous; 1 to `self.rows` rows, 1 to `self.vectors` vectors, and a depth that
    /// [`Self::steps`] gives of at least one element.
    #[inline(always)]
    pub(in crate::ops) unsafe fn multiply(
        &self,
        target: Target<W>,
        (rows, vectors, depth): (usize, usize, usize),
        left: Left<W>,
        right: *const W,
    ) {
        match self.functions {
            #[cfg(target_arch = "x86_64")]
            Functions::AnyShape(function) => {
                // SAFETY: as this function; the processor was asked when this was chosen.
                unsafe { function(target, (rows, vectors, depth), left, right) }
            }
            #[cfg(target_arch = "x86_64")]
            Functions::Parts(function) => {
                // SAFETY: as above.
                unsafe { function(target, (rows, vectors, depth), left, right, None) }
            }
            #[cfg(target_arch = "x86_64")]
            Functions::ByShape(functions) => {
                // SAFETY: as this function; the features were detected when this was chosen.
                unsafe { functions[rows - 1][vectors - 1](target, depth, left, right) }
            }
            Functions::Gemm(functions) => {
                let width = vectors * self.lanes;
                let (keep, status) = if target.accumulate { (W::ONE, 1) } else { (W::ZERO, 0) };
                let stride = |bytes: usize| (bytes / size_of::<W>()) as isize;
                // SAFETY: as above.
                unsafe {
                    functions[vectors - 1][rows - 1](
                        width,
                        rows,
                        depth,
                        target.start,
                        right,
                        left.start,
                        target.row as isize,
                        1,
                        width as isize,
                        stride(left.step_bytes),
                        stride(left.row_bytes),
                        keep,
                        W::ONE,
                        status,
                        false,
                        false,
                        false,
                        std::ptr::null(),
                    );
                }
            }
        }
    }
}
