//! Blocks of queries against the blocks of keys up to them.

#![allow(unsafe_code)]

use rayon::prelude::*;

use super::{BLOCK, Scratch, Shape, Workspace};
use crate::ops::matmul::pack;
use crate::ops::matmul::product::{Product, Strided};
use crate::ops::{Float, simd};

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

/// Writes `output` (B, T, C) and `log_sums` (B, H, T) from `qkv` (B, T, 3 C).
///
/// # Panics
/// When a slice is shorter or longer than its shape.
pub fn forward<T: Float>(
    output: &mut [T],
    log_sums: &mut [T],
    qkv: &[T],
    shape: Shape,
    workspace: &mut Workspace<T>,
) {
    assert_eq!(qkv.len(), shape.rows() * shape.width() * 3, "qkv (B, T, 3 C) of {shape:?}");
    assert_eq!(output.len(), shape.rows() * shape.width(), "output (B, T, C) of {shape:?}");
    assert_eq!(log_sums.len(), shape.rows() * shape.heads, "log sums (B, H, T) of {shape:?}");
    let (output, log_sums) = (Shared::new(output), Shared::new(log_sums));
    let parts = workspace.parts.len();
    workspace.parts.par_iter_mut().enumerate().for_each(|(part, scratch)| {
        for head in shape.heads_of(part, parts) {
            let operands = Operands::new(qkv, shape, head);
            let (row, column) = shape.corner(head);
            for first in (0..shape.tokens).step_by(BLOCK) {
                let rows = BLOCK.min(shape.tokens - first);
                let output = output.at((row + first) * shape.width() + column);
                // SAFETY: no other task has this part of the log sums, nor outlives the slice.
                let log_sums = unsafe {
                    let start = log_sums.at(head * shape.tokens + first);
                    std::slice::from_raw_parts_mut(start, rows)
                };
                // SAFETY: the lengths were checked; no other task writes these rows and columns.
                unsafe { queries(output, log_sums, first, &operands, scratch) };
            }
        }
    });
}

/// q, k and v (T, D) of one sequence and head.
#[derive(Debug, Clone, Copy)]
pub(super) struct Operands<T> {
    pub(super) query: Strided<T>,
    pub(super) key: Strided<T>,
    pub(super) value: Strided<T>,
    pub(super) shape: Shape,
}

impl<T: Float> Operands<T> {
    pub(super) fn new(qkv: &[T], shape: Shape, head: usize) -> Self {
        let (row, column) = shape.corner(head);
        let stride = 3 * shape.width();
        let third = |index: usize| Strided {
            start: qkv[row * stride + index * shape.width() + column..].as_ptr(),
            row: stride,
            column: 1,
        };
        Self { query: third(0), key: third(1), value: third(2), shape }
    }

    /// Writes q^T / sqrt(D) of a block of queries (D, BLOCK), zero past the last query.
    ///
    /// # Safety
    /// The operands must still be readable.
    pub(super) unsafe fn scaled_query(&self, query: &mut [T], first: usize, rows: usize) {
        let source = self.query.offset(first, 0).transposed();
        let scale = self.scale();
        // SAFETY: `rows` queries from `first` on exist.
        unsafe { pack::right(query, source, self.shape.head_width, rows, (BLOCK, BLOCK)) };
        simd::vectorize(
            #[inline(always)]
            || query.iter_mut().for_each(|q| *q *= scale),
        );
    }

    /// 1 / sqrt(D).
    pub(super) fn scale(&self) -> T {
        T::ONE / T::from_f64(self.shape.head_width as f64).sqrt()
    }
}

/// The product of `left` (keys, D) with a transposed block (D, BLOCK), as (keys, BLOCK).
pub(super) fn against_block<T: Float>(
    left: Strided<T>,
    block: &[T],
    keys: usize,
    output: &mut [[T; BLOCK]],
) -> Product<T> {
    Product {
        shape: (keys, BLOCK, block.len() / BLOCK),
        left,
        right: Strided { start: block.as_ptr(), row: BLOCK, column: 1 },
        output: output.as_flattened_mut().as_mut_ptr(),
        output_row: BLOCK,
        accumulate: false,
    }
}

/// One block of queries.
///
/// # Safety
/// The operands must be readable, and the block's rows of the output this caller's alone.
unsafe fn queries<T: Float>(
    output: *mut T,
    log_sums: &mut [T],
    first: usize,
    operands: &Operands<T>,
    scratch: &mut Scratch<T>,
) {
    let Shape { head_width, .. } = operands.shape;
    let width = operands.shape.width();
    let rows = log_sums.len();
    let mut softmax = Softmax::new();
    // SAFETY: as this function.
    unsafe { operands.scaled_query(&mut scratch.query, first, rows) };
    for key in (0..=first).step_by(BLOCK) {
        let keys = BLOCK.min(first + rows - key);
        let scores = &mut scratch.scores[..keys];
        let product = against_block(operands.key.offset(key, 0), &scratch.query, keys, scores);
        // SAFETY: as this function; the scores are this thread's.
        unsafe { product.run(&mut scratch.packs) };
        simd::vectorize(
            #[inline(always)]
            || softmax.absorb(scores, key == first),
        );
        if key > 0 {
            // SAFETY: as this function.
            unsafe { scale_rows(output, width, head_width, &softmax.correction[..rows]) };
        }
        let product = Product {
            shape: (rows, head_width, keys),
            left: Strided { start: scores.as_flattened().as_ptr(), row: 1, column: BLOCK },
            right: operands.value.offset(key, 0),
            output,
            output_row: width,
            accumulate: key > 0,
        };
        // SAFETY: as this function.
        unsafe { product.run(&mut scratch.packs) };
    }
    let inverses = softmax.sum.map(|sum| T::ONE / sum);
    // SAFETY: as this function.
    unsafe { scale_rows(output, width, head_width, &inverses[..rows]) };
    for (log_sum, (maximum, sum)) in
        log_sums.iter_mut().zip(softmax.maximum.iter().zip(softmax.sum))
    {
        *log_sum = *maximum + T::from_f64(sum.to_f64().ln());
    }
}

/// Multiplies each row of `columns` elements, `stride` apart, by its factor.
///
/// # Safety
/// The rows must be this caller's alone.
unsafe fn scale_rows<T: Float>(start: *mut T, stride: usize, columns: usize, factors: &[T]) {
    simd::vectorize(
        #[inline(always)]
        || {
            for (row, &factor) in factors.iter().enumerate() {
                let start = start.wrapping_add(row * stride);
                // SAFETY: one of the caller's rows.
                let row = unsafe { std::slice::from_raw_parts_mut(start, columns) };
                row.iter_mut().for_each(|value| *value *= factor);
            }
        },
    );
}

/// Maximum and sum of exponentials so far, for each query of a block.
struct Softmax<T> {
    maximum: [T; BLOCK],
    sum: [T; BLOCK],
    /// What earlier sums and outputs are to be multiplied by after the last block.
    correction: [T; BLOCK],
}

impl<T: Float> Softmax<T> {
    fn new() -> Self {
        Self { maximum: [T::LOWEST; BLOCK], sum: [T::ZERO; BLOCK], correction: [T::ZERO; BLOCK] }
    }

    /// Turns S^T into exponentials relative to the maximum so far, adds up their sums.
    #[inline(always)]
    fn absorb(&mut self, scores: &mut [[T; BLOCK]], diagonal: bool) {
        if diagonal {
            for (key, scores) in scores.iter_mut().enumerate() {
                scores[..key].fill(T::LOWEST); // queries before this key
            }
        }
        let mut maximum = self.maximum;
        for scores in &*scores {
            for (maximum, &score) in maximum.iter_mut().zip(scores) {
                *maximum = score.larger(*maximum);
            }
        }
        let Self { sum, correction, .. } = self;
        for (correction, (old, new)) in correction.iter_mut().zip(self.maximum.iter().zip(maximum))
        {
            *correction = (*old - new).exp();
        }
        for (sum, correction) in sum.iter_mut().zip(&*correction) {
            *sum *= *correction;
        }
        for scores in scores {
            for ((score, sum), &maximum) in scores.iter_mut().zip(&mut *sum).zip(&maximum) {
                *score = (*score - maximum).exp();
                *sum += *score;
            }
        }
        self.maximum = maximum;
    }
}
