//! The gradients of q, k and v, block by block, from recomputed scores.

#![allow(unsafe_code)]

use rayon::prelude::*;

use super::head::{
    Group, Shared, by_queries, left_rows, pack_blocks, rows_of_keys, rows_of_queries, scale,
    submatrix,
};
use super::softmax::{KeyBlock, QueryStatistics};
use super::workspace::Scratch;
use super::{BLOCK, Shape, Workspace};
use crate::ops::matmul::packing::{pack_right, pack_right_padded};
use crate::ops::matmul::tile::{Left, PackedProduct, Strided, Target};
use crate::ops::{Element, simd};

/// Writes `dqkv` (B, T, (H + 2 K) D) from `doutput` (B, T, H D) and what forward saw and wrote.
///
/// # Panics
/// Panics if a slice is shorter or longer than its shape, or H no multiple of K.
pub fn backward<E: Element>(
    dqkv: &mut [E],
    doutput: &[E],
    qkv: &[E],
    (output, log_sums): (&[E], &[E::Wide]),
    shape: Shape,
    workspace: &mut Workspace<E>,
) {
    shape.check(qkv.len(), output.len(), log_sums.len());
    assert_eq!(dqkv.len(), qkv.len(), "dqkv (B, T, (H + 2 K) D) of {shape:?}");
    assert_eq!(doutput.len(), output.len(), "doutput (B, T, H D) of {shape:?}");
    let dqkv = Shared::new(dqkv);
    let threads = workspace.threads.len();
    workspace.threads.par_iter_mut().enumerate().for_each(|(thread, buffers)| {
        let scratch = &mut buffers.scratch();
        for number in shape.groups_of(thread, threads) {
            let group = Group::new(&shape, number);
            let from_column = |column| submatrix(qkv, shape.qkv_width(), group.row, column);
            let Scratch { kernel, keys, values, panels, .. } = &mut *scratch;
            // SAFETY: the lengths were checked.
            let (keys, values) = unsafe {
                pack_blocks(panels, from_column(group.key), &shape, kernel);
                let keys = left_rows(keys, from_column(group.key), &shape, kernel);
                (keys, left_rows(values, from_column(group.value), &shape, kernel))
            };
            let gradient = |column| dqkv.at(group.row * shape.qkv_width() + column);
            for index in 0..shape.group() {
                let column = group.query + index * shape.head_width;
                let of_output = |data| submatrix(data, shape.width(), group.row, column);
                let head = Head {
                    shape: &shape,
                    query: from_column(column),
                    keys,
                    values,
                    output: of_output(output),
                    doutput: of_output(doutput),
                    log_sums: &log_sums[(group.head + index) * shape.tokens..][..shape.tokens],
                    gradient: gradient(column),
                    first_of_group: index == 0,
                };
                for first in (0..shape.tokens).step_by(BLOCK) {
                    // SAFETY: the lengths were checked; no other task writes this head's columns.
                    unsafe { head.queries(first, scratch) };
                }
            }
            let stride = scratch.stride();
            let rows = shape.tokens;
            // SAFETY: no other task writes this group's columns.
            unsafe {
                narrow(gradient(group.key), scratch.key_sums, stride, &shape, rows);
                narrow(gradient(group.value), scratch.value_sums, stride, &shape, rows);
            }
        }
        scratch.kernel.release();
    });
}

/// One sequence and query head.
struct Head<'a, E: Element> {
    shape: &'a Shape,
    query: Strided<E>,
    keys: Left<E::Wide>,
    values: Left<E::Wide>,
    output: Strided<E>,
    doutput: Strided<E>,
    log_sums: &'a [E::Wide],
    /// The first element of dq.
    gradient: *mut E,
    first_of_group: bool,
}

impl<E: Element> Head<'_, E> {
    /// One block of queries. A block of keys gets its first gradient on the diagonal of the first
    /// head of its group.
    ///
    /// # Safety
    /// The operands must be readable, and this head's columns of dq the caller's alone.
    unsafe fn queries(&self, first: usize, scratch: &mut Scratch<'_, E>) {
        let Shape { tokens, head_width, .. } = *self.shape;
        let kernel = scratch.kernel;
        let stride = scratch.stride();
        let rows = BLOCK.min(tokens - first);
        // SAFETY: as this function; `rows` queries from `first` on exist.
        let statistics = unsafe {
            self.pack(first, rows, scratch);
            self.statistics(first, rows)
        };
        let block = scratch.panels.len() / tokens.div_ceil(BLOCK);
        for key in (0..=first).step_by(BLOCK) {
            let keys = BLOCK.min(first + rows - key);
            let is_diagonal = key == first;
            // SAFETY: as this function.
            unsafe { self.scores(key, keys, scratch) };
            differentiate(&statistics, keys, is_diagonal, scratch);
            let Scratch {
                panels,
                rows: [query, doutput],
                along_keys,
                probabilities,
                score_gradients,
                by_query,
                sums: query_sums,
                key_sums,
                value_sums,
                ..
            } = &mut *scratch;
            let product = |left, right: &[E::Wide], rows, k, target| PackedProduct {
                rows,
                columns: head_width,
                steps: kernel.steps(k),
                left,
                right: right.as_ptr(),
                target,
            };
            let target = |sums: &mut [E::Wide], accumulate| Target {
                start: sums.as_mut_ptr(),
                row_stride: stride,
                accumulate,
            };
            let adds = !(is_diagonal && self.first_of_group);
            let dvalues = target(&mut value_sums[key * stride..], adds);
            let dkeys = target(&mut key_sums[key * stride..], adds);
            let dqueries = target(query_sums, key > 0);
            let panel = &panels[key / BLOCK * block..][..block];
            let score_gradients_of_queries = rows_of_queries(along_keys, by_query, kernel);
            // SAFETY: the operands and sums are this thread's and hold the shapes.
            unsafe {
                product(rows_of_keys(probabilities), doutput, keys, rows, dvalues).run(kernel);
                product(rows_of_keys(score_gradients), query, keys, rows, dkeys).run(kernel);
                product(score_gradients_of_queries, panel, rows, keys, dqueries).run(kernel);
            }
        }
        let gradient = self.gradient.wrapping_add(first * self.shape.qkv_width());
        // SAFETY: as this function.
        unsafe { narrow(gradient, scratch.sums, stride, self.shape, rows) };
    }

    /// Packs q and dout of a block in both directions.
    ///
    /// # Safety
    /// The operands must be readable, with `rows` queries from `first` on.
    unsafe fn pack(&self, first: usize, rows: usize, scratch: &mut Scratch<'_, E>) {
        let head_width = self.shape.head_width;
        for (index, source) in [self.query, self.doutput].into_iter().enumerate() {
            let source = source.offset(first, 0);
            let kernel = scratch.kernel;
            let columns = &mut scratch.columns[index];
            let packed_rows = &mut scratch.rows[index];
            // SAFETY: as this function.
            unsafe {
                let transposed = source.transposed();
                pack_right_padded(columns, transposed, head_width, rows, BLOCK, kernel);
                pack_right(packed_rows, source, rows, head_width, kernel);
            }
        }
    }

    /// S^T sqrt(D) and dP^T of a block of keys.
    ///
    /// # Safety
    /// The operands must be readable, with `keys` keys from `first` on.
    unsafe fn scores(&self, first: usize, keys: usize, scratch: &mut Scratch<'_, E>) {
        let Scratch { kernel, columns: [query, doutput], scores, probability_gradients, .. } =
            scratch;
        let scores = &mut scores[..keys];
        let probability_gradients = &mut probability_gradients[..keys];
        // SAFETY: as this function; the blocks are this thread's.
        unsafe {
            by_queries(self.keys.offset(first, 0), query, scores).run(kernel);
            by_queries(self.values.offset(first, 0), doutput, probability_gradients).run(kernel);
        }
    }

    /// The log-sum-exps of a block of queries, and the sums over D of dout out.
    ///
    /// # Safety
    /// The operands must be readable, with `rows` queries from `first` on.
    unsafe fn statistics(&self, first: usize, rows: usize) -> QueryStatistics<E::Wide> {
        let mut log_sums = [E::Wide::ZERO; BLOCK];
        log_sums[..rows].copy_from_slice(&self.log_sums[first..first + rows]);
        let mut row_sums = [E::Wide::ZERO; BLOCK];
        simd::vectorize(
            #[inline(always)]
            || {
                for (row, sum) in row_sums[..rows].iter_mut().enumerate() {
                    let row = |of: Strided<E>| {
                        let start = of.at(first + row, 0);
                        // SAFETY: one row of the head, by the caller's contract.
                        unsafe { std::slice::from_raw_parts(start, self.shape.head_width) }
                    };
                    *sum = simd::dot(row(self.output), row(self.doutput));
                }
            },
        );
        QueryStatistics { log_sums, row_sums, scale: scale(self.shape) }
    }
}

/// P and dS from the scores and the gradients of P.
fn differentiate<E: Element>(
    statistics: &QueryStatistics<E::Wide>,
    keys: usize,
    is_diagonal: bool,
    scratch: &mut Scratch<'_, E>,
) {
    let takes_pairs = scratch.kernel.takes_pairs();
    let block = KeyBlock {
        scores: &mut scratch.scores[..keys],
        probability_gradients: &scratch.probability_gradients[..keys],
        probabilities: scratch.probabilities,
        score_gradients: scratch.score_gradients,
        score_gradients_along_keys: scratch.along_keys,
    };
    simd::vectorize(
        #[inline(always)]
        || {
            if takes_pairs {
                statistics.differentiate::<E, true>(block, is_diagonal);
            } else {
                statistics.differentiate::<E, false>(block, is_diagonal);
            }
        },
    );
}

/// Writes `rows` rows of sums to columns of dqkv.
///
/// # Safety
/// These rows and columns must be the caller's alone.
unsafe fn narrow<E: Element>(
    gradient: *mut E,
    sums: &[E::Wide],
    stride: usize,
    shape: &Shape,
    rows: usize,
) {
    simd::vectorize(
        #[inline(always)]
        || {
            for (row, sums) in sums.chunks_exact(stride).take(rows).enumerate() {
                let start = gradient.wrapping_add(row * shape.qkv_width());
                // SAFETY: one row, by the caller's contract.
                let row = unsafe { std::slice::from_raw_parts_mut(start, shape.head_width) };
                for (element, &sum) in row.iter_mut().zip(sums) {
                    *element = E::narrow(sum);
                }
            }
        },
    );
}
