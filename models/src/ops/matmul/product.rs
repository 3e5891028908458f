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

use super::cut::{Cut, Extent, Waiting};
use super::gather::WIDEST;
use super::kernel::{Kernel, Left, Target};
use super::output::Output;
use super::pack;
use super::strided::Strided;
use super::workspace::{Packs, Rooms};
use crate::ops::{Element, simd};

/// The right operand B (k, n).
#[derive(Debug, Clone, Copy)]
pub(crate) enum Right<E: Element> {
    /// As it is in memory; packed block by block.
    Plain(Strided<E>),
    /// In panels over all of k, from this cell on.
    Packed(*const E::Wide),
}

/// What is multiplied: C (m, n) = A (m, k) B (k, n).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Product<E: Element> {
    /// m, n and k.
    pub(crate) shape: (usize, usize, usize),
    /// A; one of its strides is 1.
    pub(crate) left: Strided<E>,
    /// B; one of its strides is 1.
    pub(crate) right: Right<E>,
    /// C.
    pub(crate) output: Output<E>,
}

// SAFETY: only addresses; whoever dereferences them answers for the accesses (see `run`).
unsafe impl<E: Element> Send for Product<E> {}
// SAFETY: as above.
unsafe impl<E: Element> Sync for Product<E> {}

/// The largest tile of any kernel.
#[repr(align(64))]
struct Tile<W>(MaybeUninit<[W; TILE]>);

/// Columns of the widest tile.
pub(super) const PANEL: usize = 64;
/// Columns of the tiles of AMX.
pub(super) const HALF_PANEL: usize = PANEL / 2;
/// Elements of the largest tile, that of AMX.
pub(super) const TILE: usize = 1024;

/// The panels of one block of B.
#[derive(Debug, Clone, Copy)]
pub(super) struct Panels<W> {
    first: *const W,
    /// From one panel to the next, in cells.
    stride: usize,
    /// Steps before the block's first in each panel.
    skip: usize,
}

/// Ranges of rows and columns of C, and of k.
#[derive(Debug, Clone)]
pub(super) struct Block {
    pub(super) rows: Range<usize>,
    pub(super) columns: Range<usize>,
    pub(super) depth: Range<usize>,
    /// The run of k that is multiplied at once.
    run: usize,
    /// Where sums wait until all of k is added.
    waiting: Waiting,
    /// Whether finished results are written past the caches, where they are whole lines.
    goes_past: bool,
}

impl Block {
    /// Whether sums wait in a room of theirs until all of k is added.
    pub(super) fn waits(&self) -> bool {
        self.waiting != Waiting::Nowhere
    }

    /// Its runs of k, one after the other.
    fn runs(&self) -> impl Iterator<Item = Self> {
        let Range { start, end } = self.depth;
        (start..end)
            .step_by(self.run)
            .map(move |first| Self { depth: first..end.min(first + self.run), ..self.clone() })
    }
}

/// The blocks of a cell of C, those along k one after the other.
fn blocks(
    (rows, columns): (Range<usize>, Range<usize>),
    k: usize,
    cut: Cut,
    goes_past: bool,
) -> impl Iterator<Item = Block> {
    let Cut { depth, columns: width, rows: height, run, waiting, .. } = cut;
    let part = |of: &Range<usize>, first: usize, most: usize| first..(first + most).min(of.end);
    columns.clone().step_by(width).flat_map(move |column| {
        let (rows, columns) = (rows.clone(), part(&columns, column, width));
        rows.clone().step_by(height).flat_map(move |row| {
            let (rows, columns) = (part(&rows, row, height), columns.clone());
            (0..k).step_by(depth).map(move |first| Block {
                rows: rows.clone(),
                columns: columns.clone(),
                depth: first..(first + depth).min(k),
                run,
                waiting,
                goes_past,
            })
        })
    })
}

impl<E: Element> Product<E> {
    fn extent(&self) -> Extent {
        Extent {
            shape: self.shape,
            left_is_rows: self.left.column == 1,
            right_is_packed: matches!(self.right, Right::Packed(_)),
            is_narrow: matches!(self.output, Output::Narrow(_)),
        }
    }

    /// Multiplies the rows and columns of a cell of C on this thread.
    ///
    /// # Safety
    /// Both operands must be readable and C writable over the shape, C must overlap neither, and
    /// nobody else may access the cell meanwhile.
    unsafe fn run(&self, rows: Range<usize>, columns: Range<usize>, packs: &mut Packs<E>) {
        let k = self.shape.2;
        let cut = Cut::new::<E>(&self.extent(), (rows.len(), columns.len()), packs.kernel);
        packs.make_room(cut.cells);
        // Other processors than those with AMX were not measured.
        let goes_past = packs.kernel.sums_wait && self.output.is_large(rows.len() * columns.len());
        let blocks = blocks((rows, columns), k, cut, goes_past);
        // SAFETY: parts of the cell; C overlaps no operand, also of the block that comes next.
        unsafe {
            match packs.kernel.takes_parts() {
                #[cfg(target_arch = "x86_64")]
                true => self.run_overlapped(blocks, cut.cells, packs),
                _ => blocks.for_each(|block| self.block(&block, packs)),
            }
        }
        simd::fence();
        packs.kernel.release();
    }

    /// One block: packs B unless it is, and A where the kernels cannot read it as it is.
    ///
    /// # Safety
    /// As [`Self::run`]; before C is read, [`simd::fence`] must follow.
    unsafe fn block(&self, block: &Block, packs: &mut Packs<E>) {
        let (kernel, depth) = (packs.kernel, block.depth.len());
        let Rooms { left: gathered, right: packed, sums } = packs.rooms();
        if let Right::Plain(right) = self.right {
            let right = right.offset(block.depth.start, block.columns.start);
            // SAFETY: B is readable over the shape.
            unsafe { pack::right(packed, right, (depth, block.columns.len()), kernel) };
        }
        let panels = self.panels(block, packed.as_ptr(), kernel);
        let in_place = !self.extent().gathers::<E>(kernel);
        let count = block.columns.len().div_ceil(kernel.panel());
        let rows = if in_place { block.rows.len() } else { WIDEST };
        let rows = rows / kernel.rows * kernel.rows;
        for row in block.rows.clone().step_by(rows.max(kernel.rows)) {
            let left = self.left.offset(row, block.depth.start);
            let height = rows.max(kernel.rows).min(block.rows.end - row);
            let (left, strip) = if in_place {
                (kernel.in_place(left), left.row * kernel.rows * size_of::<E>())
            } else {
                // SAFETY: A is readable over the shape.
                let left = unsafe { pack::left(gathered, left, (height, depth), kernel) };
                (left, left.row_bytes * kernel.rows)
            };
            for first in (0..height).step_by(kernel.rows) {
                let start = left.start.wrapping_byte_add(first / kernel.rows * strip);
                let rows = row + first..row + height.min(first + kernel.rows);
                for run in block.runs() {
                    let skip = kernel.steps(run.depth.start - block.depth.start);
                    let start = start.wrapping_byte_add(skip * left.step_bytes);
                    let left = Left { start, ..left };
                    let panels = Panels { skip: panels.skip + skip, ..panels };
                    // What the processor does not foresee: short runs of rows.
                    let next = in_place.then(|| start.wrapping_byte_add(strip));
                    let multiply = |index: usize, target, shape: (usize, usize, usize), panel| {
                        if let Some(next) = next {
                            for row in (index..kernel.rows).step_by(count) {
                                let next = next.wrapping_byte_add(row * left.row_bytes);
                                kernel.prefetch(next, shape.2);
                            }
                        }
                        // SAFETY: as this function; the packed copies stand for the operands.
                        unsafe { kernel.multiply(target, shape, left, panel) };
                    };
                    // SAFETY: as this function.
                    unsafe { self.strip(rows.clone(), &run, panels, sums, kernel, multiply) };
                }
            }
        }
    }

    /// B in panels: as packed for this block, or for all of k.
    pub(super) fn panels(
        &self,
        block: &Block,
        packed: *const E::Wide,
        kernel: &Kernel<E::Wide>,
    ) -> Panels<E::Wide> {
        match self.right {
            Right::Plain(_) => {
                let steps = kernel.steps(block.depth.len());
                Panels { first: packed, stride: steps * kernel.panel(), skip: 0 }
            }
            Right::Packed(start) => {
                let all = kernel.steps(self.shape.2);
                let first = start.wrapping_add(block.columns.start * all);
                let skip = kernel.steps(block.depth.start);
                Panels { first, stride: all * kernel.panel(), skip }
            }
        }
    }

    /// The tiles of one strip of rows, from left to right. `multiply` takes the index of each,
    /// where it goes, its rows, vectors and steps, and its panel of B.
    ///
    /// # Safety
    /// As [`Self::block`], with B as `panels`; `multiply` must write no other sums.
    pub(super) unsafe fn strip(
        &self,
        rows: Range<usize>,
        block: &Block,
        panels: Panels<E::Wide>,
        sums: &mut [E::Wide],
        kernel: &Kernel<E::Wide>,
        mut multiply: impl FnMut(usize, Target<E::Wide>, (usize, usize, usize), *const E::Wide),
    ) {
        let steps = kernel.steps(block.depth.len());
        let (first, last) = (block.depth.start == 0, block.depth.end == self.shape.2);
        let count = block.columns.len().div_ceil(kernel.panel());
        for (index, column) in block.columns.clone().step_by(kernel.panel()).enumerate() {
            let width = kernel.panel().min(block.columns.end - column);
            let vectors = width.div_ceil(kernel.lanes);
            let panel = panels.first.wrapping_add(index * panels.stride);
            let panel = panel.wrapping_add(panels.skip * vectors * kernel.lanes);
            let shape = (rows.len(), vectors, steps);
            let mut multiply = |start, row, accumulate| {
                multiply(index, Target { start, row, accumulate }, shape, panel);
            };
            let output = self.output.offset(rows.start, column);
            if let (Output::Wide { start, row, accumulate }, false) = (output, block.waits())
                && width == vectors * kernel.lanes
            {
                multiply(start, row, accumulate || !first);
                continue;
            }
            let mut here = Tile::<E::Wide>(MaybeUninit::uninit());
            let tile = if block.waits() {
                let strip = match block.waiting {
                    Waiting::InBlock => (rows.start - block.rows.start) / kernel.rows,
                    Waiting::InStrip | Waiting::Nowhere => 0,
                };
                sums[(strip * count + index) * kernel.rows * kernel.panel()..].as_mut_ptr()
            } else {
                here.0.as_mut_ptr().cast::<E::Wide>()
            };
            if !last && block.waits() {
                multiply(tile, kernel.panel(), !first);
                continue;
            }
            // Sums that do not wait come here once, but for wide ones at an edge.
            let output = if block.waits() || first { output } else { output.adding() };
            let past = block.goes_past && output.takes_whole_lines(width);
            output.prefetch((rows.len(), width), past);
            multiply(tile, kernel.panel(), block.waits() && !first);
            // SAFETY: a tile of C, whose operands are readable; past the caches as it may go.
            unsafe { output.finish((tile, kernel.panel()), (rows.len(), width), past) };
        }
    }

    /// Multiplies with one task for each element of `packs`, on the current thread pool.
    ///
    /// # Safety
    /// Both operands must be readable and C writable over the shape, C must overlap neither, and
    /// nobody else may access C meanwhile.
    pub(crate) unsafe fn run_parallel(&self, packs: &mut [Packs<E>]) {
        let (m, n, k) = self.shape;
        assert!(k > 0, "a product over nothing");
        let grid = self.extent().grid::<E>(packs[0].kernel, packs.len());
        packs.par_iter_mut().enumerate().for_each(|(part, packs)| {
            let (rows, columns) = grid.cell(part, (m, n));
            if !rows.is_empty() && !columns.is_empty() {
                // SAFETY: cells are disjoint parts of C.
                unsafe { self.run(rows, columns, packs) };
            }
        });
    }
}
