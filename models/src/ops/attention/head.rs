//! The operands of one group of heads, and the products of their blocks.

#![allow(unsafe_code)]

use super::workspace::Scratch;
use super::{BLOCK, Shape};
use crate::ops::matmul::kernel::{Kernel, Left, Target};
use crate::ops::matmul::pack;
use crate::ops::matmul::small::Small;
use crate::ops::matmul::strided::Strided;
use crate::ops::matmul::transpose;
use crate::ops::{Element, Float};

/// A pointer that tasks share, each writing a part of its own.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shared<T>(*mut T);

// SAFETY: only an address; whoever dereferences it answers for the access.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    pub(super) fn new(slice: &mut [T]) -> Self {
        Self(slice.as_mut_ptr())
    }

    pub(super) fn at(self, offset: usize) -> *mut T {
        self.0.wrapping_add(offset)
    }
}

/// Where one group of heads lies in rows of qkv.
#[derive(Debug, Clone, Copy)]
pub(super) struct Group {
    /// Row of its first token.
    pub(super) row: usize,
    /// Number of its first query head, of all B H.
    pub(super) head: usize,
    /// Columns of its first query head, of its keys and of its values.
    pub(super) query: usize,
    pub(super) key: usize,
    pub(super) value: usize,
}

impl Group {
    pub(super) fn new(shape: &Shape, number: usize) -> Self {
        let (heads, shared) = (shape.heads, shape.key_value_heads);
        let (sequence, group) = (number / shared, number % shared);
        let head = group * shape.group();
        Self {
            row: sequence * shape.tokens,
            head: sequence * heads + head,
            query: head * shape.head_width,
            key: (heads + group) * shape.head_width,
            value: (heads + shared + group) * shape.head_width,
        }
    }
}

/// A part of rows of `columns` elements that starts at one of them.
pub(super) fn part<E: Element>(
    data: &[E],
    columns: usize,
    (row, column): (usize, usize),
) -> Strided<E> {
    Strided { start: data[row * columns + column..].as_ptr(), row: columns, column: 1 }
}

/// k or v (T, D) in cells: as it is if the micro-kernels can read it so, or else in `room`.
///
/// # Safety
/// `source` must be readable over `tokens` rows and D columns.
pub(super) unsafe fn rows_of_cells<E: Element>(
    room: &mut [E::Wide],
    source: Strided<E>,
    (tokens, head_width): (usize, usize),
    kernel: &Kernel<E::Wide>,
) -> Left<E::Wide> {
    if kernel.reads_rows::<E>(head_width) {
        return kernel.in_place(source);
    }
    // SAFETY: as this function.
    unsafe { pack::left(room, source, (tokens, head_width), kernel) }
}

/// Packs all blocks of k or v (T, D) into panels of D columns.
///
/// # Safety
/// `source` must be readable over `tokens` rows and D columns.
pub(super) unsafe fn panels<E: Element>(
    room: &mut [E::Wide],
    source: Strided<E>,
    (tokens, head_width): (usize, usize),
    kernel: &Kernel<E::Wide>,
) {
    let block = room.len() / tokens.div_ceil(BLOCK);
    for (first, room) in (0..tokens).step_by(BLOCK).zip(room.chunks_exact_mut(block)) {
        let shape = (BLOCK.min(tokens - first), head_width);
        // SAFETY: as this function.
        unsafe { pack::right(room, source.offset(first, 0), shape, kernel) };
    }
}

/// Rows of k or v against a block of queries' columns: (keys, BLOCK), k along D.
pub(super) fn against_queries<E: Element>(
    rows: Left<E::Wide>,
    first: usize,
    columns: &[E::Wide],
    target: &mut [[E::Wide; BLOCK]],
) -> Small<E::Wide> {
    let start = rows.start.wrapping_byte_add(first * rows.row_bytes);
    let shape = (target.len(), BLOCK, columns.len() / BLOCK);
    let start_of_target = target.as_flattened_mut().as_mut_ptr();
    let target = Target { start: start_of_target, row: BLOCK, accumulate: false };
    Small { shape, left: Left { start, ..rows }, right: columns.as_ptr(), target }
}

/// Cells along the keys as the left operand, a row for each query: in `room` where the
/// micro-kernels ask for contiguous rows, else as they are.
pub(super) fn by_query<E: Element>(
    cells: &[[E::Wide; BLOCK]],
    (queries, keys): (usize, usize),
    room: &mut [E::Wide],
    kernel: &Kernel<E::Wide>,
) -> Left<E::Wide> {
    let steps = cells.as_flattened();
    let cell = size_of::<E::Wide>();
    if kernel.takes_parts() {
        return of_elements::<E>(cells, Strided::transposed, (queries, keys), room, kernel);
    }
    if !kernel.reads_rows_only() {
        return Left { start: steps.as_ptr(), row_bytes: cell, step_bytes: BLOCK * cell };
    }
    let row = room.len() / BLOCK;
    for step in (0..row).step_by(transpose::SIDE) {
        for query in (0..BLOCK).step_by(transpose::SIDE) {
            let from = (steps[step * BLOCK + query..].as_ptr(), BLOCK * cell);
            let to = (room[query * row + step..].as_mut_ptr(), row);
            // SAFETY: 16 x 16 cells of both, by the slices: `row` rows of cells, two keys in each,
            // become that many cells of each query.
            unsafe { transpose::block(from, to) };
        }
    }
    Left { start: room.as_ptr(), row_bytes: row * cell, step_bytes: cell }
}

/// Cells along the queries as the left operand, a row for each key: in `room` where they are
/// elements that have to be split, else as they are.
pub(super) fn by_key<E: Element>(
    cells: &[[E::Wide; BLOCK]],
    (keys, queries): (usize, usize),
    room: &mut [E::Wide],
    kernel: &Kernel<E::Wide>,
) -> Left<E::Wide> {
    if kernel.takes_parts() {
        return of_elements::<E>(cells, |by_key| by_key, (keys, queries), room, kernel);
    }
    let cell = size_of::<E::Wide>();
    Left { start: cells.as_flattened().as_ptr(), row_bytes: BLOCK * cell, step_bytes: cell }
}

/// Elements of a block, as `seen`, that are their own cells until they are split.
fn of_elements<E: Element>(
    cells: &[[E::Wide; BLOCK]],
    seen: impl FnOnce(Strided<E>) -> Strided<E>,
    (rows, depth): (usize, usize),
    room: &mut [E::Wide],
    kernel: &Kernel<E::Wide>,
) -> Left<E::Wide> {
    assert!(size_of::<E>() == size_of::<E::Wide>(), "elements of another width");
    assert!(rows.max(depth) <= BLOCK && cells.len() == BLOCK, "{rows} x {depth} of a block");
    let by_key = Strided { start: cells.as_ptr().cast::<E>(), row: BLOCK, column: 1 };
    // SAFETY: a part of BLOCK x BLOCK elements.
    unsafe { pack::left(room, seen(by_key), (rows, depth), kernel) }
}

impl<E: Element> Scratch<E> {
    /// Elements from one row of sums to the next.
    pub(super) fn stride(&self) -> usize {
        self.sums.len() / BLOCK
    }
}

/// 1 / sqrt(D).
pub(super) fn scale<W: Float>(shape: &Shape) -> W {
    W::ONE / W::from_f64(shape.head_width as f64).sqrt()
}
