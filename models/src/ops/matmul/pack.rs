//! Operands copied into the order in which the micro-kernels read them.

#![allow(unsafe_code)]

use super::product::Strided;
use crate::ops::{Float, simd};

/// Side of the square blocks in which a transposing copy works.
const BLOCK: usize = 16;

/// Room for one packed block of each operand of a product.
///
/// Holds no results: only the speed of a product depends on its size.
#[derive(Debug)]
pub(crate) struct Packs<T> {
    left: Vec<T>,
    right: Vec<T>,
}

impl<T: Float> Packs<T> {
    /// Room for blocks of `depth` times `columns` of the right operand and `rows` times `depth` of
    /// the left one.
    pub(crate) fn new(rows: usize, depth: usize, columns: usize) -> Self {
        let kernel = T::kernel();
        let right = columns.next_multiple_of(kernel.panel()) * depth;
        let left = rows.next_multiple_of(kernel.rows) * depth;
        let pad = LINE_BYTES / size_of::<T>();
        Self { left: vec![T::ZERO; left + pad], right: vec![T::ZERO; right + pad] }
    }

    /// Size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        (self.left.len() + self.right.len()) * size_of::<T>()
    }

    /// The rooms for the left and the right operand, from a cache line's start on.
    pub(super) fn rooms(&mut self) -> (&mut [T], &mut [T]) {
        (aligned(&mut self.left), aligned(&mut self.right))
    }
}

/// A vector load across two cache lines costs two; so packed panels start at a line.
const LINE_BYTES: usize = 64;

fn aligned<T>(room: &mut [T]) -> &mut [T] {
    let start = room.as_ptr().align_offset(LINE_BYTES).min(LINE_BYTES / size_of::<T>());
    &mut room[start..]
}

/// Copies `depth` x `columns` of the right operand into panels of `panel` columns.
///
/// In a panel the columns of one row are contiguous; the last panel is as wide as its vectors of
/// `lanes` need and filled up with zeros.
///
/// # Safety
/// `source` must be readable over `depth` rows and `columns` columns.
pub(in crate::ops) unsafe fn right<T: Float>(
    room: &mut [T],
    source: Strided<T>,
    depth: usize,
    columns: usize,
    (panel, lanes): (usize, usize),
) {
    simd::vectorize(
        #[inline(always)]
        || {
            for (index, first) in (0..columns).step_by(panel).enumerate() {
                let width = panel.min(columns - first);
                let stride = width.next_multiple_of(lanes);
                let room = &mut room[index * panel * depth..][..depth * stride];
                // SAFETY: within the operand, by the caller's contract.
                unsafe {
                    let source = source.offset(0, first);
                    if source.column == 1 {
                        copy_rows(room, source, width, stride);
                    } else {
                        copy_transposed(room, source, depth, width, stride);
                    }
                }
            }
        },
    );
}

/// # Safety
/// `source` must be readable over the room's rows and `width` columns, with columns contiguous.
#[inline(always)]
unsafe fn copy_rows<T: Float>(room: &mut [T], source: Strided<T>, width: usize, stride: usize) {
    for (row, room) in room.chunks_exact_mut(stride).enumerate() {
        // SAFETY: one row of the operand, by the caller's contract.
        let values = unsafe { std::slice::from_raw_parts(source.at(row, 0), width) };
        room[..width].copy_from_slice(values);
        room[width..].fill(T::ZERO);
    }
}

/// # Safety
/// `source` must be readable over `depth` rows and `width` columns.
#[inline(always)]
unsafe fn copy_transposed<T: Float>(
    room: &mut [T],
    source: Strided<T>,
    depth: usize,
    width: usize,
    stride: usize,
) {
    let whole = depth / BLOCK * BLOCK;
    for column in (0..stride).step_by(BLOCK) {
        let full = source.row == 1 && column + BLOCK <= width;
        for row in (0..if full { whole } else { 0 }).step_by(BLOCK) {
            let mut block = [[T::ZERO; BLOCK]; BLOCK];
            for (lane, values) in block.iter_mut().enumerate() {
                // SAFETY: BLOCK contiguous elements within the operand.
                *values = unsafe { source.at(row, column + lane).cast::<[T; BLOCK]>().read() };
            }
            for step in 0..BLOCK {
                let room: &mut [T] = &mut room[(row + step) * stride + column..][..BLOCK];
                for lane in 0..BLOCK {
                    room[lane] = block[lane][step];
                }
            }
        }
        for row in (if full { whole } else { 0 })..depth {
            for lane in column..(column + BLOCK).min(stride) {
                // SAFETY: within the operand where lane < width.
                let value = if lane < width { unsafe { *source.at(row, lane) } } else { T::ZERO };
                room[row * stride + lane] = value;
            }
        }
    }
}

/// Copies `rows` x `depth` of the left operand, which has a row stride of 1, into tiles.
///
/// A tile has `tile` rows; in it the rows of one column are contiguous. The last tile is filled up
/// with zeros.
///
/// # Safety
/// `source` must be readable over `rows` rows and `depth` columns, with a row stride of 1.
pub(super) unsafe fn left<T: Float>(
    room: &mut [T],
    source: Strided<T>,
    rows: usize,
    depth: usize,
    tile: usize,
) {
    debug_assert_eq!(source.row, 1, "contiguous rows");
    simd::vectorize(
        #[inline(always)]
        || {
            // Column by column: they are far apart, each perhaps on a page of its own.
            for step in 0..depth {
                // SAFETY: one column of the operand, by the caller's contract.
                let values = unsafe { std::slice::from_raw_parts(source.at(0, step), rows) };
                let room = &mut room[step * tile..];
                match tile {
                    4 => scatter::<T, 4>(room, values, depth),
                    6 => scatter::<T, 6>(room, values, depth),
                    other => unreachable!("micro-kernels of {other} rows"),
                }
            }
        },
    );
}

/// Pieces of TILE values to places `depth` tiles' columns apart.
#[inline(always)]
fn scatter<T: Float, const TILE: usize>(room: &mut [T], values: &[T], depth: usize) {
    let (tiles, rest) = values.as_chunks::<TILE>();
    for (tile, values) in tiles.iter().enumerate() {
        room[tile * TILE * depth..][..TILE].copy_from_slice(values);
    }
    if !rest.is_empty() {
        let room = &mut room[tiles.len() * TILE * depth..][..TILE];
        room[..rest.len()].copy_from_slice(rest);
        room[rest.len()..].fill(T::ZERO);
    }
}
