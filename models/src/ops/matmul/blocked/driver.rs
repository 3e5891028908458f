//! The blocked product C = A B of strided operands, on one thread or several.
//!
//! Blocking after Goto and van de Geijn (2008), "Anatomy of high-performance matrix
//! multiplication": a block of B stays in the second-level cache while rows of A stream past it.
//! Every element of C is summed in an order that depends on k alone, so the result does not depend
//! on the number of threads.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ops::Range;

use rayon::prelude::*;

use super::blocking::{Block, Blocking, PartialSums, ranges};
use super::epilogue::{Output, TileSums};
use super::extent::{Extent, ProductShape};
use super::grid::{Part, ThreadGrid};
use super::workspace::{Buffers, ThreadWorkspace, Workspace};
use crate::ops::Element;
use crate::ops::matmul::packing::{GATHER_ROWS, pack_left, pack_right};
use crate::ops::matmul::tile::{Kernel, Left, MAX_TILE_ELEMENTS, Strided, Target, TileShape};

/// Operands and result of C (m, n) = A (m, k) B (k, n).
#[derive(Debug, Clone, Copy)]
pub(in crate::ops) struct Product<E: Element> {
    pub(in crate::ops) shape: ProductShape,
    /// A; one of its strides is 1.
    pub(in crate::ops) left: Strided<E>,
    /// B; one of its strides is 1.
    pub(in crate::ops) right: Strided<E>,
    /// C.
    pub(in crate::ops) output: Output<E>,
}

// SAFETY: only addresses; the caller that dereferences them is responsible (see `run`).
unsafe impl<E: Element> Send for Product<E> {}
// SAFETY: as above.
unsafe impl<E: Element> Sync for Product<E> {}

/// A tile on the stack.
#[repr(align(64))]
struct StackTile<W>(MaybeUninit<[W; MAX_TILE_ELEMENTS]>);

/// The panels of one block of B.
#[derive(Debug, Clone, Copy)]
struct Panels<W> {
    first: *const W,
    /// Distance from one panel to the next, in packed elements.
    stride: usize,
    /// Steps before the slice's first in each panel.
    skipped_steps: usize,
}

impl<W> Panels<W> {
    /// The slice's first step in a panel of `columns` columns.
    fn panel(&self, index: usize, columns: usize) -> *const W {
        self.first.wrapping_add(index * self.stride + self.skipped_steps * columns)
    }

    /// Skips steps of the panels.
    fn skip(self, steps: usize) -> Self {
        Self { skipped_steps: self.skipped_steps + steps, ..self }
    }
}

impl<E: Element> Product<E> {
    /// Multiplies with one task for each thread of the workspace, on the current thread pool.
    ///
    /// # Safety
    /// Both operands must be readable and C writable over the shape, C must overlap neither, and
    /// nobody else may access C meanwhile.
    pub(in crate::ops) unsafe fn run(&self, workspace: &mut Workspace<E>) {
        assert!(self.shape.k > 0, "a product over nothing");
        let kernel = workspace.kernel();
        let grid = ThreadGrid::new::<E>(&self.extent(), kernel, workspace.threads.len());
        workspace.threads.par_iter_mut().enumerate().for_each(|(thread, workspace)| {
            let part = grid.part(thread);
            if !part.is_empty() {
                // SAFETY: the threads' parts of C are disjoint.
                unsafe { self.run_part(part, workspace) }
            }
        });
    }

    fn extent(&self) -> Extent {
        Extent {
            shape: self.shape,
            left_has_contiguous_rows: self.left.has_contiguous_rows(),
            output_is_narrow: matches!(self.output, Output::Narrow(_)),
        }
    }

    /// Computes one thread's part of C, on this thread.
    ///
    /// # Safety
    /// Both operands must be readable and C writable over the shape, C must overlap neither, and
    /// nobody else may access the part meanwhile.
    unsafe fn run_part(&self, part: Part, workspace: &mut ThreadWorkspace<E>) {
        let kernel = workspace.kernel;
        let rows = part.rows.len();
        let columns = part.columns.len();
        let blocking = Blocking::new::<E>(&self.extent(), rows, columns, kernel);
        workspace.reserve(blocking.buffers);
        for block in blocking.blocks(part, self.shape.k) {
            // SAFETY: a block of the part.
            unsafe { self.multiply_block(&block, kernel, workspace.buffers()) };
        }
        kernel.release();
    }

    /// One block: packs B, and A where the micro-kernel cannot read it in place.
    ///
    /// # Safety
    /// See [`Self::run_part`].
    unsafe fn multiply_block(
        &self,
        block: &Block,
        kernel: &Kernel<E::Wide>,
        buffers: Buffers<'_, E::Wide>,
    ) {
        let Buffers { left: packed_left, right: packed_right, sums } = buffers;
        let block_k = block.k.len();
        let right = self.right.offset(block.k.start, block.columns.start);
        // SAFETY: B is readable over the shape.
        unsafe { pack_right(packed_right, right, block_k, block.columns.len(), kernel) };
        let panels = Panels {
            first: packed_right.as_ptr(),
            stride: kernel.steps(block_k) * kernel.panel_columns(),
            skipped_steps: 0,
        };
        let packs_left = self.extent().packs_left::<E>(kernel);
        let height = if packs_left { GATHER_ROWS } else { block.rows.len() };
        let height = (height / kernel.rows * kernel.rows).max(kernel.rows);
        for rows in ranges(block.rows.clone(), height) {
            let left = self.left.offset(rows.start, block.k.start);
            let left = if packs_left {
                // SAFETY: A is readable over the shape.
                unsafe { pack_left(packed_left, left, rows.len(), block_k, kernel) }
            } else {
                kernel.in_place(left)
            };
            // SAFETY: as this function; the packed copies replace the operands.
            unsafe { self.multiply_rows(rows, block, left, panels, sums, kernel) };
        }
    }

    /// Some rows of a block, row panel by row panel.
    ///
    /// # Safety
    /// See [`Self::run_part`]; `left` and `panels` must be the operands of this block.
    unsafe fn multiply_rows(
        &self,
        rows: Range<usize>,
        block: &Block,
        left: Left<E::Wide>,
        panels: Panels<E::Wide>,
        sums: &mut [E::Wide],
        kernel: &Kernel<E::Wide>,
    ) {
        let padded_columns = block.columns.len().next_multiple_of(kernel.panel_columns());
        for panel_rows in ranges(rows.clone(), kernel.rows) {
            let left = left.offset(panel_rows.start - rows.start, 0);
            let buffered_rows = match block.partial_sums {
                PartialSums::PerBlock => panel_rows.start - block.rows.start,
                PartialSums::PerRowPanel | PartialSums::InOutput => 0,
            };
            let sums = &mut sums[buffered_rows * padded_columns..];
            for slice in block.slices() {
                let skipped = kernel.steps(slice.k.start - block.k.start);
                let left = left.offset(0, skipped);
                let panels = panels.skip(skipped);
                let rows = panel_rows.clone();
                // SAFETY: as this function, for the steps of the slice.
                unsafe { self.multiply_row_panel(rows, &slice, left, panels, sums, kernel) };
            }
        }
    }

    /// The tiles of one row panel of A, up to a tile high, from left to right.
    ///
    /// # Safety
    /// See [`Self::run_part`]; `left` and `panels` must be the operands of this slice, and `sums`
    /// must hold the partial sums where there are any.
    unsafe fn multiply_row_panel(
        &self,
        rows: Range<usize>,
        slice: &Block,
        left: Left<E::Wide>,
        panels: Panels<E::Wide>,
        sums: &mut [E::Wide],
        kernel: &Kernel<E::Wide>,
    ) {
        let steps = kernel.steps(slice.k.len());
        let is_first = slice.k.start == 0;
        let is_last = slice.k.end == self.shape.k;
        let is_buffered = slice.buffers_sums();
        for (index, columns) in ranges(slice.columns.clone(), kernel.panel_columns()).enumerate() {
            let width = columns.len();
            let vectors = width.div_ceil(kernel.lanes);
            let shape = TileShape { rows: rows.len(), vectors, steps };
            let right = panels.panel(index, vectors * kernel.lanes);
            let multiply = |target| {
                // SAFETY: as this function, for one tile.
                unsafe { kernel.multiply(target, shape, left, right) }
            };
            let output = self.output.offset(rows.start, columns.start);
            if let (Output::Wide(target), false) = (output, is_buffered)
                && width == vectors * kernel.lanes
            {
                multiply(Target { accumulate: target.accumulate || !is_first, ..target });
                continue;
            }
            let mut on_stack = StackTile::<E::Wide>(MaybeUninit::uninit());
            let start = if is_buffered {
                sums[index * kernel.rows * kernel.panel_columns()..].as_mut_ptr()
            } else {
                on_stack.0.as_mut_ptr().cast::<E::Wide>()
            };
            let row_stride = kernel.panel_columns();
            multiply(Target { start, row_stride, accumulate: is_buffered && !is_first });
            if is_buffered && !is_last {
                continue;
            }
            // Sums that are not buffered are complete here, except for wide sums at an edge.
            let output = if is_buffered || is_first { output } else { output.adding() };
            let tile = TileSums { start, row_stride, rows: rows.len(), columns: width };
            // SAFETY: a tile of C, whose operands are readable.
            unsafe { output.finish(tile) };
        }
    }
}
