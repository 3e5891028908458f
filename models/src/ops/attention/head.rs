//! The operands of one group of heads, and the products of their blocks.

#![allow(unsafe_code)]

use super::workspace::Scratch;
use super::{BLOCK, Shape};
use crate::ops::matmul::packing::{TRANSPOSE_SIDE, pack_left, pack_right, transpose_block};
use crate::ops::matmul::tile::{Kernel, Left, PackedProduct, Strided, Target};
use crate::ops::{Element, Float};

/// A pointer that tasks share, each writing a part of its own.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shared<T>(*mut T);

// SAFETY: only an address; the caller that dereferences it is responsible for the access.
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

/// The position of one group of heads in rows of qkv.
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
        let Shape { heads, key_value_heads, head_width, .. } = *shape;
        let sequence = number / key_value_heads;
        let group = number % key_value_heads;
        let head = group * shape.group();
        Self {
            row: sequence * shape.tokens,
            head: sequence * heads + head,
            query: head * head_width,
            key: (heads + group) * head_width,
            value: (heads + key_value_heads + group) * head_width,
        }
    }
}

/// The part of rows of `columns` elements that starts at one of them.
pub(super) fn submatrix<E: Element>(
    data: &[E],
    columns: usize,
    row: usize,
    column: usize,
) -> Strided<E> {
    let start = data[row * columns + column..].as_ptr();
    Strided { start, row_stride: columns, column_stride: 1 }
}

/// k or v (T, D) as a left operand: in place if the micro-kernels can read it so, else packed.
///
/// # Safety
/// `source` must be readable over T rows and D columns.
pub(super) unsafe fn left_rows<E: Element>(
    packed: &mut [E::Wide],
    source: Strided<E>,
    shape: &Shape,
    kernel: &Kernel<E::Wide>,
) -> Left<E::Wide> {
    if kernel.reads_in_place::<E>(shape.head_width) {
        return kernel.in_place(source);
    }
    // SAFETY: as this function.
    unsafe { pack_left(packed, source, shape.tokens, shape.head_width, kernel) }
}

/// Packs all blocks of k or v (T, D) into panels of D columns.
///
/// # Safety
/// `source` must be readable over T rows and D columns.
pub(super) unsafe fn pack_blocks<E: Element>(
    packed: &mut [E::Wide],
    source: Strided<E>,
    shape: &Shape,
    kernel: &Kernel<E::Wide>,
) {
    let tokens = shape.tokens;
    let block = packed.len() / tokens.div_ceil(BLOCK);
    for (first, packed) in (0..tokens).step_by(BLOCK).zip(packed.chunks_exact_mut(block)) {
        let rows = BLOCK.min(tokens - first);
        // SAFETY: as this function.
        unsafe { pack_right(packed, source.offset(first, 0), rows, shape.head_width, kernel) };
    }
}

/// Rows of k or v, as many as the target has, by a block of queries' columns: (keys, BLOCK), k
/// along D.
pub(super) fn by_queries<W: Float>(
    rows: Left<W>,
    columns: &[W],
    target: &mut [[W; BLOCK]],
) -> PackedProduct<W> {
    PackedProduct {
        rows: target.len(),
        columns: BLOCK,
        steps: columns.len() / BLOCK,
        left: rows,
        right: columns.as_ptr(),
        target: Target {
            start: target.as_flattened_mut().as_mut_ptr(),
            row_stride: BLOCK,
            accumulate: false,
        },
    }
}

/// A block packed along the keys as the left operand, a row for each query: transposed into
/// `buffer` where the micro-kernels need contiguous rows, else as it is.
pub(super) fn rows_of_queries<W: Float>(
    along_keys: &[[W; BLOCK]],
    buffer: &mut [W],
    kernel: &Kernel<W>,
) -> Left<W> {
    let element = size_of::<W>();
    let along_keys = along_keys.as_flattened();
    if !kernel.needs_contiguous_rows() {
        let step_bytes = BLOCK * element;
        return Left { start: along_keys.as_ptr(), row_bytes: element, step_bytes };
    }
    let steps = buffer.len() / BLOCK;
    for step in (0..steps).step_by(TRANSPOSE_SIDE) {
        for query in (0..BLOCK).step_by(TRANSPOSE_SIDE) {
            let from = along_keys[step * BLOCK + query..].as_ptr();
            let to = buffer[query * steps + step..].as_mut_ptr();
            // SAFETY: 16 x 16 packed elements of both, by the slices: `steps` rows, two keys in
            // each, become so many columns of each query.
            unsafe { transpose_block(from, BLOCK * element, to, steps) };
        }
    }
    Left { start: buffer.as_ptr(), row_bytes: steps * element, step_bytes: element }
}

/// A block packed along the queries as the left operand, a row for each key.
pub(super) fn rows_of_keys<W: Float>(along_queries: &[[W; BLOCK]]) -> Left<W> {
    let element = size_of::<W>();
    let start = along_queries.as_flattened().as_ptr();
    Left { start, row_bytes: BLOCK * element, step_bytes: element }
}

impl<E: Element> Scratch<'_, E> {
    /// Elements from one row of sums to the next.
    pub(super) fn stride(&self) -> usize {
        self.sums.len() / BLOCK
    }
}

/// 1 / sqrt(D).
pub(super) fn scale<W: Float>(shape: &Shape) -> W {
    W::ONE / W::from_f64(shape.head_width as f64).sqrt()
}
