//! The blocked product C = A B or C += A B of strided operands, on one thread or several.
//!
//! Blocking after Goto and van de Geijn (2008), "Anatomy of high-performance matrix
//! multiplication": a block of B stays in the second-level cache while rows of A stream past it.
//! Every element of C is summed in an order that depends on k alone, so the result does not depend
//! on the number of threads.

#![allow(unsafe_code)]

use rayon::prelude::*;

use super::pack::{self, Packs};
use crate::ops::Float;

/// Longest run of k that is packed at once.
pub(super) const DEPTH: usize = 384;
/// Most columns of B that are packed at once; with [`DEPTH`] 576 KiB in f32.
pub(super) const COLUMNS: usize = 384;
/// Most rows of A that are packed at once.
pub(super) const ROWS: usize = 48;
/// Fewer rows than this do not repay packing a B whose columns are contiguous.
const IN_PLACE_ROWS: usize = 64;
/// Columns of A further apart than this are gathered before use.
pub(in crate::ops) const NEAR: usize = 64;

/// A matrix in memory by its first element and two strides, in elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Strided<T> {
    /// Element (0, 0).
    pub(crate) start: *const T,
    /// From one row to the next.
    pub(crate) row: usize,
    /// From one column to the next.
    pub(crate) column: usize,
}

impl<T: Copy> Strided<T> {
    /// Rows of `columns` elements, one after the other.
    pub(crate) fn dense(data: &[T], columns: usize) -> Self {
        Self { start: data.as_ptr(), row: columns, column: 1 }
    }

    /// Address of an element.
    #[inline(always)]
    pub(crate) fn at(self, row: usize, column: usize) -> *const T {
        self.start.wrapping_add(row * self.row + column * self.column)
    }

    /// The matrix that starts at an element of this one.
    #[inline(always)]
    pub(crate) fn offset(self, row: usize, column: usize) -> Self {
        Self { start: self.at(row, column), ..self }
    }

    /// Columns as rows.
    pub(crate) fn transposed(self) -> Self {
        Self { row: self.column, column: self.row, ..self }
    }
}

/// What is multiplied: C (m, n) = A (m, k) B (k, n), or C += A B.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Product<T> {
    /// m, n and k.
    pub(crate) shape: (usize, usize, usize),
    /// A.
    pub(crate) left: Strided<T>,
    /// B.
    pub(crate) right: Strided<T>,
    /// First element of C, whose rows are contiguous.
    pub(crate) output: *mut T,
    /// From one row of C to the next, in elements.
    pub(crate) output_row: usize,
    /// Whether the product is added to C.
    pub(crate) accumulate: bool,
}

// SAFETY: only addresses; whoever dereferences them answers for the accesses (see `run`).
unsafe impl<T: Send> Send for Product<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Product<T> {}

impl<T: Float> Product<T> {
    /// Multiplies on this thread.
    ///
    /// # Safety
    /// Both operands must be readable and C writable over the shape, C must overlap neither, and
    /// nobody else may access C meanwhile.
    pub(crate) unsafe fn run(&self, packs: &mut Packs<T>) {
        let (m, n, k) = self.shape;
        let panel = T::kernel().panel();
        let depth = k.div_ceil(k.div_ceil(DEPTH).max(1));
        for first in (0..k).step_by(depth.max(1)) {
            let depth = depth.min(k - first);
            let room = packs.rooms().1.len() / depth / panel * panel;
            let columns = room.min(COLUMNS.next_multiple_of(panel));
            assert!(columns > 0, "packing room for a depth of {depth}");
            for column in (0..n).step_by(columns) {
                let block = Self {
                    shape: (m, columns.min(n - column), depth),
                    left: self.left.offset(0, first),
                    right: self.right.offset(first, column),
                    output: self.output.wrapping_add(column),
                    accumulate: self.accumulate || first > 0,
                    ..*self
                };
                // SAFETY: a part of this product.
                unsafe { block.block(packs) };
            }
        }
        assert!(k > 0, "a product over nothing");
    }

    /// One block of B: packed unless it can be read in place and is used too little to be worth it.
    ///
    /// # Safety
    /// As [`Self::run`].
    unsafe fn block(&self, packs: &mut Packs<T>) {
        let (m, n, depth) = self.shape;
        let kernel = T::kernel();
        let (left_room, right_room) = packs.rooms();
        let in_place =
            self.right.column == 1 && n.is_multiple_of(kernel.lanes) && m <= IN_PLACE_ROWS;
        if !in_place {
            let widths = (kernel.panel(), kernel.lanes);
            // SAFETY: B is readable over the shape.
            unsafe { pack::right(right_room, self.right, depth, n, widths) };
        }
        let far = self.left.row == 1 && self.left.column > NEAR;
        let gather = far && m > kernel.rows && n >= kernel.panel();
        // What is gathered needs room for ROWS rows. `Workspace` makes it; attention has none, and
        // needs none, because the columns of its A are NEAR.
        let rows = if gather { ROWS } else { m }.next_multiple_of(kernel.rows);
        for first in (0..m).step_by(rows) {
            let height = rows.min(m - first);
            let mut left = self.left.offset(first, 0);
            if gather {
                // SAFETY: A is readable over the shape.
                unsafe { pack::left(left_room, left, height, depth, kernel.rows) };
                // Tiles follow each other; within one, columns are `kernel.rows` apart.
                left = Strided { start: left_room.as_ptr(), row: 1, column: kernel.rows };
            }
            for row in (0..height).step_by(kernel.rows) {
                let start =
                    if gather { left.start.wrapping_add(row * depth) } else { left.at(row, 0) };
                let tile = Self {
                    shape: (kernel.rows.min(height - row), n, depth),
                    left: Strided { start, ..left },
                    output: self.output.wrapping_add((first + row) * self.output_row),
                    ..*self
                };
                // SAFETY: a part of this product; the packed copies stand for the operands.
                unsafe { tile.row_of_tiles((!in_place).then_some(&*right_room)) };
            }
        }
    }

    /// The tiles of one row of tiles, from left to right.
    ///
    /// # Safety
    /// As [`Self::run`], with B as `packed` where that is given.
    unsafe fn row_of_tiles(&self, packed: Option<&[T]>) {
        let (rows, n, depth) = self.shape;
        let kernel = T::kernel();
        for first in (0..n).step_by(kernel.panel()) {
            let width = kernel.panel().min(n - first);
            let vectors = width.div_ceil(kernel.lanes);
            let (panel, stride) = match packed {
                Some(packed) => (packed[first * depth..].as_ptr(), vectors * kernel.lanes),
                None => (self.right.at(0, first), self.right.row),
            };
            let function = kernel.function(vectors, rows);
            let (keep, keep_status) = if self.accumulate { (T::ONE, 1) } else { (T::ZERO, 0) };
            // SAFETY: the tile lies in C; the panel holds `vectors` whole vectors per row; the
            // instruction set was detected when the kernel was chosen.
            unsafe {
                function(
                    width,
                    rows,
                    depth,
                    self.output.wrapping_add(first),
                    panel,
                    self.left.start,
                    self.output_row as isize,
                    1,
                    stride as isize,
                    self.left.column as isize,
                    self.left.row as isize,
                    keep,
                    T::ONE,
                    keep_status,
                    false,
                    false,
                    false,
                    std::ptr::null(),
                );
            }
        }
    }

    /// Multiplies with one task for each element of `packs`, on the current thread pool.
    ///
    /// # Safety
    /// As [`Self::run`].
    pub(crate) unsafe fn run_parallel(&self, packs: &mut [Packs<T>]) {
        let grid = Grid::choose::<T>(self.shape, packs.len());
        packs.par_iter_mut().enumerate().for_each(|(part, packs)| {
            let (rows, columns) = grid.cell(part, self.shape);
            if rows.is_empty() || columns.is_empty() {
                return;
            }
            let cell = Self {
                shape: (rows.len(), columns.len(), self.shape.2),
                left: self.left.offset(rows.start, 0),
                right: self.right.offset(0, columns.start),
                output: self.output.wrapping_add(rows.start * self.output_row + columns.start),
                ..*self
            };
            // SAFETY: cells are disjoint parts of C.
            unsafe { cell.run(packs) };
        });
    }
}

/// C cut into rows x columns cells of whole tiles.
#[derive(Debug, Clone, Copy)]
struct Grid {
    rows: usize,
    columns: usize,
    cell_rows: usize,
    cell_columns: usize,
}

impl Grid {
    /// The cut into `parts` cells whose largest cell takes the least time: one multiplication per
    /// element of C, and about 32 times that to pack an element of B, a quarter of it for A.
    fn choose<T: Float>((m, n, _): (usize, usize, usize), parts: usize) -> Self {
        let kernel = T::kernel();
        let cut = |rows: usize| {
            let columns = parts / rows;
            let cell_rows = m.div_ceil(kernel.rows).div_ceil(rows) * kernel.rows;
            let cell_columns = n.div_ceil(kernel.panel()).div_ceil(columns) * kernel.panel();
            Self { rows, columns, cell_rows, cell_columns }
        };
        let cost = |grid: &Self| {
            grid.cell_rows * grid.cell_columns + 32 * grid.cell_columns + 8 * grid.cell_rows
        };
        let cuts = (1..=parts).filter(|rows| parts.is_multiple_of(*rows)).map(cut);
        cuts.min_by_key(cost).unwrap_or_else(|| cut(1))
    }

    /// Rows and columns of a cell.
    fn cell(
        &self,
        part: usize,
        (m, n, _): (usize, usize, usize),
    ) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
        let row = part / self.columns * self.cell_rows;
        let column = part % self.columns * self.cell_columns;
        debug_assert!(part < self.rows * self.columns);
        (
            row.min(m)..(row + self.cell_rows).min(m),
            column.min(n)..(column + self.cell_columns).min(n),
        )
    }
}
