//! The gradients of q, k and v, block by block, from recomputed scores.

#![allow(unsafe_code)]

use rayon::prelude::*;

use super::head::{
    Group, Shared, against_queries, by_key, by_query, panels, part, rows_of_cells, scale,
};
use super::softmax::Queries;
use super::workspace::Scratch;
use super::{BLOCK, Shape, Workspace};
use crate::ops::matmul::kernel::{Kernel, Left, Target};
use crate::ops::matmul::pack;
use crate::ops::matmul::small::Small;
use crate::ops::matmul::strided::Strided;
use crate::ops::{Element, simd};

/// Writes `dqkv` (B, T, (H + 2 K) D) from `doutput` (B, T, H D) and what forward saw and wrote.
///
/// # Panics
/// When a slice is shorter or longer than its shape, or H no multiple of K.
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
    let parts = workspace.parts.len();
    workspace.parts.par_iter_mut().enumerate().for_each(|(index, scratch)| {
        for number in shape.groups_of(index, parts) {
            let group = Group::new(&shape, number);
            let of_row = |column| part(qkv, shape.qkv_width(), (group.row, column));
            let dimensions = (shape.tokens, shape.head_width);
            let Scratch { kernel, keys, values, panels: room, .. } = &mut *scratch;
            // SAFETY: the lengths were checked.
            let (keys, values) = unsafe {
                panels(room, of_row(group.key), dimensions, kernel);
                (
                    rows_of_cells(keys, of_row(group.key), dimensions, kernel),
                    rows_of_cells(values, of_row(group.value), dimensions, kernel),
                )
            };
            let gradient = |column| dqkv.at(group.row * shape.qkv_width() + column);
            for index in 0..shape.group() {
                let column = group.query + index * shape.head_width;
                let of_output = |data| part(data, shape.width(), (group.row, column));
                let head = Head {
                    shape: &shape,
                    query: of_row(column),
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
            let (stride, rows) = (scratch.stride(), shape.tokens);
            // SAFETY: no other task writes this group's columns.
            unsafe {
                narrow(gradient(group.key), &scratch.key_sums, stride, &shape, rows);
                narrow(gradient(group.value), &scratch.value_sums, stride, &shape, rows);
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
    unsafe fn queries(&self, first: usize, scratch: &mut Scratch<E>) {
        let Shape { tokens, head_width, .. } = *self.shape;
        let (kernel, stride) = (scratch.kernel, scratch.stride());
        let rows = BLOCK.min(tokens - first);
        // SAFETY: as this function; `rows` queries from `first` on exist.
        let queries = unsafe {
            self.pack(first, rows, scratch);
            self.known(first, rows)
        };
        let block = scratch.panels.len() / tokens.div_ceil(BLOCK);
        for key in (0..=first).step_by(BLOCK) {
            let (keys, diagonal) = (BLOCK.min(first + rows - key), key == first);
            // SAFETY: as this function.
            unsafe { self.scores(key, keys, scratch) };
            differentiate(&queries, keys, diagonal, scratch);
            let Scratch {
                panels,
                rows: [query, doutput],
                along_keys,
                along_queries: [probabilities, differences],
                left: room,
                sums: query_sums,
                key_sums,
                value_sums,
                ..
            } = &mut *scratch;
            let product = |left, right: &[E::Wide], depth, sums: &mut [E::Wide], m, accumulate| {
                let target = Target { start: sums.as_mut_ptr(), row: stride, accumulate };
                let shape = (m, head_width, kernel.steps(depth));
                // SAFETY: the operands and sums are this thread's and hold the shape.
                unsafe { Small { shape, left, right: right.as_ptr(), target }.run(kernel) };
            };
            let add = !(diagonal && self.first_of_group);
            let values = &mut value_sums[key * stride..];
            let left = by_key::<E>(probabilities, (keys, rows), room, kernel);
            product(left, doutput, rows, values, keys, add);
            let left = by_key::<E>(differences, (keys, rows), room, kernel);
            product(left, query, rows, &mut key_sums[key * stride..], keys, add);
            let panel = &panels[key / BLOCK * block..][..block];
            let left = by_query::<E>(along_keys, (rows, keys), room, kernel);
            product(left, panel, keys, query_sums, rows, key > 0);
        }
        let gradient = self.gradient.wrapping_add(first * self.shape.qkv_width());
        // SAFETY: as this function.
        unsafe { narrow(gradient, &scratch.sums, stride, self.shape, rows) };
    }

    /// Packs q and dout of a block in both directions.
    ///
    /// # Safety
    /// The operands must be readable, with `rows` queries from `first` on.
    unsafe fn pack(&self, first: usize, rows: usize, scratch: &mut Scratch<E>) {
        let head_width = self.shape.head_width;
        for (index, source) in [self.query, self.doutput].into_iter().enumerate() {
            let source = source.offset(first, 0);
            let (columns, of_rows) = (&mut scratch.columns[index], &mut scratch.rows[index]);
            let kernel: &Kernel<_> = scratch.kernel;
            // SAFETY: as this function.
            unsafe {
                let across = (head_width, rows);
                pack::right_filled(columns, source.transposed(), across, BLOCK, kernel);
                pack::right(of_rows, source, (rows, head_width), kernel);
            }
        }
    }

    /// S^T sqrt(D) and dP^T of a block of keys.
    ///
    /// # Safety
    /// The operands must be readable, with `keys` keys from `first` on.
    unsafe fn scores(&self, first: usize, keys: usize, scratch: &mut Scratch<E>) {
        let Scratch { kernel, columns: [query, doutput], scores, changes, .. } = scratch;
        // SAFETY: as this function; the blocks are this thread's.
        unsafe {
            against_queries::<E>(self.keys, first, query, &mut scores[..keys]).run(kernel);
            against_queries::<E>(self.values, first, doutput, &mut changes[..keys]).run(kernel);
        }
    }

    /// The log-sum-exps of a block of queries, and the sums over D of dout out.
    ///
    /// # Safety
    /// The operands must be readable, with `rows` queries from `first` on.
    unsafe fn known(&self, first: usize, rows: usize) -> Queries<E::Wide> {
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
        Queries { log_sums, row_sums, scale: scale(self.shape) }
    }
}

/// Scores and changes to P and dS.
fn differentiate<E: Element>(
    queries: &Queries<E::Wide>,
    keys: usize,
    diagonal: bool,
    scratch: &mut Scratch<E>,
) {
    let Scratch { kernel, scores, changes, along_keys, along_queries, .. } = scratch;
    let scores = (&mut scores[..keys], &changes[..keys]);
    let [probabilities, differences] = along_queries;
    let along_queries = [probabilities.as_mut_slice(), differences];
    simd::vectorize(
        #[inline(always)]
        || {
            if kernel.takes_pairs() {
                queries.differentiate::<E, true>(scores, along_keys, along_queries, diagonal);
            } else {
                queries.differentiate::<E, false>(scores, along_keys, along_queries, diagonal);
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
