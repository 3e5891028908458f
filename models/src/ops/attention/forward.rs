//! Blocks of queries against the blocks of keys up to them.

#![allow(unsafe_code)]

use rayon::prelude::*;

use super::head::{
    Group, Shared, by_queries, left_rows, pack_blocks, rows_of_queries, scale, submatrix,
};
use super::softmax::Softmax;
use super::workspace::Scratch;
use super::{BLOCK, Shape, Workspace};
use crate::ops::matmul::packing::pack_right_padded;
use crate::ops::matmul::tile::{Left, PackedProduct, Strided, Target};
use crate::ops::{Element, Float, simd};

/// Writes `output` (B, T, H D) and `log_sums` (B, H, T) from `qkv` (B, T, (H + 2 K) D).
///
/// # Panics
/// Panics if a slice is shorter or longer than its shape, or H no multiple of K.
pub fn forward<E: Element>(
    output: &mut [E],
    log_sums: &mut [E::Wide],
    qkv: &[E],
    shape: Shape,
    workspace: &mut Workspace<E>,
) {
    shape.check(qkv.len(), output.len(), log_sums.len());
    let output = Shared::new(output);
    let log_sums = Shared::new(log_sums);
    let threads = workspace.threads.len();
    workspace.threads.par_iter_mut().enumerate().for_each(|(thread, buffers)| {
        let scratch = &mut buffers.scratch();
        for number in shape.groups_of(thread, threads) {
            let group = Group::new(&shape, number);
            let from_column = |column| submatrix(qkv, shape.qkv_width(), group.row, column);
            let Scratch { kernel, keys, panels, .. } = &mut *scratch;
            // SAFETY: the lengths were checked.
            let keys = unsafe {
                pack_blocks(panels, from_column(group.value), &shape, kernel);
                left_rows(keys, from_column(group.key), &shape, kernel)
            };
            for head in 0..shape.group() {
                let column = group.query + head * shape.head_width;
                for first in (0..shape.tokens).step_by(BLOCK) {
                    let rows = BLOCK.min(shape.tokens - first);
                    let start = log_sums.at((group.head + head) * shape.tokens + first);
                    // SAFETY: no other task has this part of the log sums, nor outlives the slice.
                    let log_sums = unsafe { std::slice::from_raw_parts_mut(start, rows) };
                    let query = from_column(column).offset(first, 0);
                    let output = output.at((group.row + first) * shape.width() + column);
                    let block = QueryBlock { query, keys, output, first, shape: &shape };
                    // SAFETY: the lengths were checked; no other task writes this part of out.
                    unsafe { block.run(log_sums, scratch) };
                }
            }
        }
        scratch.kernel.release();
    });
}

/// One block of queries.
struct QueryBlock<'a, E: Element> {
    query: Strided<E>,
    keys: Left<E::Wide>,
    output: *mut E,
    first: usize,
    shape: &'a Shape,
}

impl<E: Element> QueryBlock<'_, E> {
    /// Writes the output and the log-sum-exps of the block.
    ///
    /// # Safety
    /// The operands must be readable, and the block's part of the output this caller's alone.
    unsafe fn run(&self, log_sums: &mut [E::Wide], scratch: &mut Scratch<'_, E>) {
        let rows = log_sums.len();
        let head_width = self.shape.head_width;
        let kernel = scratch.kernel;
        let stride = scratch.stride();
        let scale = scale(self.shape);
        let block = scratch.panels.len() / self.shape.tokens.div_ceil(BLOCK);
        let Scratch { panels, columns: [columns, _], scores, along_keys, by_query, sums, .. } =
            scratch;
        let mut softmax = Softmax::new();
        let query = self.query.transposed();
        // SAFETY: `rows` queries exist.
        unsafe { pack_right_padded(columns, query, head_width, rows, BLOCK, kernel) };
        let mut accumulate = false;
        for (key, values) in (0..=self.first).step_by(BLOCK).zip(panels.chunks_exact(block)) {
            let keys = BLOCK.min(self.first + rows - key);
            let scores = &mut scores[..keys];
            // SAFETY: as this function; the scores are this thread's.
            unsafe { by_queries(self.keys.offset(key, 0), columns, scores).run(kernel) };
            let diagonal = key == self.first;
            simd::vectorize(
                #[inline(always)]
                || {
                    if kernel.takes_pairs() {
                        softmax.update::<E, true>(scores, along_keys, scale, diagonal);
                    } else {
                        softmax.update::<E, false>(scores, along_keys, scale, diagonal);
                    }
                    if accumulate {
                        scale_rows(sums, stride, &softmax.correction);
                    }
                },
            );
            let product = PackedProduct {
                rows,
                columns: head_width,
                steps: kernel.steps(keys),
                left: rows_of_queries(along_keys, by_query, kernel),
                right: values.as_ptr(),
                target: Target { start: sums.as_mut_ptr(), row_stride: stride, accumulate },
            };
            // SAFETY: as this function; the sums are this thread's.
            unsafe { product.run(kernel) };
            accumulate = true;
        }
        // SAFETY: as this function.
        unsafe { self.finish(sums, stride, &softmax.sum, rows) };
        let of_query = softmax.maximum.iter().zip(softmax.sum);
        for (log_sum, (&maximum, sum)) in log_sums.iter_mut().zip(of_query) {
            *log_sum = maximum * scale + E::Wide::from_f64(sum.to_f64().ln());
        }
    }

    /// Divides by the sums of exponentials, and narrows.
    ///
    /// # Safety
    /// See [`Self::run`].
    unsafe fn finish(&self, sums: &[E::Wide], stride: usize, totals: &[E::Wide], rows: usize) {
        let Shape { head_width, .. } = *self.shape;
        simd::vectorize(
            #[inline(always)]
            || {
                for (row, (sums, &total)) in sums.chunks(stride).zip(totals).take(rows).enumerate()
                {
                    let inverse = E::Wide::ONE / total;
                    let start = self.output.wrapping_add(row * self.shape.width());
                    // SAFETY: a row of the block.
                    let output = unsafe { std::slice::from_raw_parts_mut(start, head_width) };
                    for (output, &sum) in output.iter_mut().zip(sums) {
                        *output = E::narrow(sum * inverse);
                    }
                }
            },
        );
    }
}

/// Multiplies each row by its factor.
#[inline(always)]
fn scale_rows<W: Float>(sums: &mut [W], stride: usize, factors: &[W]) {
    for (row, &factor) in sums.chunks_exact_mut(stride).zip(factors) {
        row.iter_mut().for_each(|value| *value *= factor);
    }
}
