//! The gradients of q, k and v, block by block, from recomputed scores.

#![allow(unsafe_code)]

use rayon::prelude::*;

use super::forward::{Operands, Shared, against_block};
use super::{BLOCK, Scratch, Shape, Workspace};
use crate::ops::matmul::pack;
use crate::ops::matmul::product::{Product, Strided};
use crate::ops::{Float, simd};

/// Writes `dqkv` (B, T, 3 C) from `doutput` (B, T, C) and what forward saw and wrote.
///
/// # Panics
/// When a slice is shorter or longer than its shape.
pub fn backward<T: Float>(
    dqkv: &mut [T],
    doutput: &[T],
    qkv: &[T],
    (output, log_sums): (&[T], &[T]),
    shape: Shape,
    workspace: &mut Workspace<T>,
) {
    assert_eq!(qkv.len(), shape.rows() * shape.width() * 3, "qkv (B, T, 3 C) of {shape:?}");
    assert_eq!(dqkv.len(), qkv.len(), "dqkv (B, T, 3 C) of {shape:?}");
    assert_eq!(output.len(), shape.rows() * shape.width(), "output (B, T, C) of {shape:?}");
    assert_eq!(doutput.len(), output.len(), "doutput (B, T, C) of {shape:?}");
    assert_eq!(log_sums.len(), shape.rows() * shape.heads, "log sums (B, H, T) of {shape:?}");
    let dqkv = Shared::new(dqkv);
    let parts = workspace.parts.len();
    workspace.parts.par_iter_mut().enumerate().for_each(|(part, scratch)| {
        for number in shape.heads_of(part, parts) {
            let (row, column) = shape.corner(number);
            let start = row * shape.width() + column;
            let dense = |slice: &[T]| slice[start..].as_ptr();
            let head = Head {
                operands: Operands::new(qkv, shape, number),
                output: Strided { start: dense(output), row: shape.width(), column: 1 },
                doutput: Strided { start: dense(doutput), row: shape.width(), column: 1 },
                log_sums: &log_sums[number * shape.tokens..][..shape.tokens],
                gradient: dqkv.at(row * 3 * shape.width() + column),
            };
            for first in (0..shape.tokens).step_by(BLOCK) {
                // SAFETY: the lengths were checked; no other task writes this head's columns.
                unsafe { head.queries(first, scratch) };
            }
        }
    });
}

/// One sequence and head.
struct Head<'a, T> {
    operands: Operands<T>,
    output: Strided<T>,
    doutput: Strided<T>,
    log_sums: &'a [T],
    /// The first element of dq; dk and dv are C and 2 C further on.
    gradient: *mut T,
}

impl<T: Float> Head<'_, T> {
    /// One block of queries. A block of keys gets its first gradient on the diagonal.
    ///
    /// # Safety
    /// The operands must be readable, and this head's columns of the gradient the caller's alone.
    unsafe fn queries(&self, first: usize, scratch: &mut Scratch<T>) {
        let Shape { tokens, head_width, .. } = self.operands.shape;
        let rows = BLOCK.min(tokens - first);
        let doutput = self.doutput.offset(first, 0);
        let mut log_sums = [T::ZERO; BLOCK];
        log_sums[..rows].copy_from_slice(&self.log_sums[first..first + rows]);
        // SAFETY: as this function; `rows` queries from `first` on exist.
        let row_sums = unsafe {
            self.operands.scaled_query(&mut scratch.query, first, rows);
            let widths = (BLOCK, BLOCK);
            pack::right(&mut scratch.output, doutput.transposed(), head_width, rows, widths);
            self.row_sums(first, rows)
        };
        for key in (0..=first).step_by(BLOCK) {
            let keys = BLOCK.min(first + rows - key);
            let Scratch { packs, query, output, scores, changes } = &mut *scratch;
            let (scores, changes) = (&mut scores[..keys], &mut changes[..keys]);
            let Operands { key: key_rows, value, .. } = self.operands;
            // SAFETY: as this function; the blocks are this thread's.
            unsafe {
                against_block(key_rows.offset(key, 0), query, keys, scores).run(packs);
                against_block(value.offset(key, 0), output, keys, changes).run(packs);
            }
            let scale = self.operands.scale();
            simd::vectorize(
                #[inline(always)]
                || softmax(scores, changes, (&log_sums, &row_sums), scale, key == first),
            );
            let diagonal = key == first;
            let scores = Strided { start: scores.as_flattened().as_ptr(), row: BLOCK, column: 1 };
            let changes = Strided { start: changes.as_flattened().as_ptr(), row: BLOCK, column: 1 };
            let query_rows = self.operands.query.offset(first, 0);
            // SAFETY: as this function.
            unsafe {
                self.product(2, key, (keys, rows), scores, doutput, !diagonal).run(packs);
                self.product(1, key, (keys, rows), changes, query_rows, !diagonal).run(packs);
                let (changes, keys_from) = (changes.transposed(), key_rows.offset(key, 0));
                self.product(0, first, (rows, keys), changes, keys_from, key > 0).run(packs);
            }
        }
    }

    /// (m, k) `left` times (k, D) `right`, to rows from `row` on of a third of the gradient.
    fn product(
        &self,
        third: usize,
        row: usize,
        (m, k): (usize, usize),
        left: Strided<T>,
        right: Strided<T>,
        accumulate: bool,
    ) -> Product<T> {
        let width = self.operands.shape.width();
        Product {
            shape: (m, self.operands.shape.head_width, k),
            left,
            right,
            output: self.gradient.wrapping_add(row * 3 * width + third * width),
            output_row: 3 * width,
            accumulate,
        }
    }

    /// The sums over D of dout out, for a block of queries.
    ///
    /// # Safety
    /// The operands must be readable, with `rows` queries from `first` on.
    unsafe fn row_sums(&self, first: usize, rows: usize) -> [T; BLOCK] {
        let width = self.operands.shape.head_width;
        let mut sums = [T::ZERO; BLOCK];
        simd::vectorize(
            #[inline(always)]
            || {
                for (row, sum) in sums[..rows].iter_mut().enumerate() {
                    // SAFETY: one row of the head, by the caller's contract.
                    let (output, doutput) = unsafe {
                        let output = self.output.at(first + row, 0);
                        let doutput = self.doutput.at(first + row, 0);
                        (
                            std::slice::from_raw_parts(output, width),
                            std::slice::from_raw_parts(doutput, width),
                        )
                    };
                    *sum = simd::dot(output, doutput);
                }
            },
        );
        sums
    }
}

/// S^T to P^T in `scores`, and dP^T to dS^T / sqrt(D) in `changes`.
#[inline(always)]
fn softmax<T: Float>(
    scores: &mut [[T; BLOCK]],
    changes: &mut [[T; BLOCK]],
    (log_sums, row_sums): (&[T; BLOCK], &[T; BLOCK]),
    scale: T,
    diagonal: bool,
) {
    for (key, (scores, changes)) in scores.iter_mut().zip(changes).enumerate() {
        if diagonal {
            scores[..key].fill(T::LOWEST); // queries before this key
        }
        for query in 0..BLOCK {
            let probability = (scores[query] - log_sums[query]).exp();
            scores[query] = probability;
            changes[query] = probability * (changes[query] - row_sums[query]) * scale;
        }
    }
}
