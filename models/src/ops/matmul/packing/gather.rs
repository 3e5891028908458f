//! Rows of the left operand out of columns that are contiguous: those of weight gradients.

#![allow(unsafe_code)]

use super::step::StepRows;
use super::transpose::{SIDE, transpose_block};
use crate::ops::Element;
use crate::ops::matmul::tile::Strided;

/// Most rows of the left operand that are gathered at once.
pub(in crate::ops) const GATHER_ROWS: usize = 96;

/// Packed elements from one row gathered [by row](gather_by_row) to the next: whole blocks, as the
/// transpose writes them.
pub(in crate::ops) fn gathered_row_steps(steps: usize) -> usize {
    steps.next_multiple_of(SIDE)
}

/// Packs rows so that the elements of each step follow each other.
///
/// # Safety
/// `source` must be readable over `rows` contiguous rows and `depth` columns.
#[inline(always)]
pub(super) unsafe fn gather_by_step<E: Element, const PAIRS: bool>(
    packed: &mut [E::Wide],
    source: Strided<E>,
    rows: usize,
    depth: usize,
) {
    let steps = if PAIRS { depth.div_ceil(2) } else { depth };
    let source = source.transposed();
    let packed = &mut packed[..steps * GATHER_ROWS];
    for (step, packed) in packed.chunks_exact_mut(GATHER_ROWS).enumerate() {
        // SAFETY: as this function.
        let step_rows = unsafe { StepRows::of::<PAIRS>(source, step, depth, rows) };
        step_rows.pack::<PAIRS>(&mut packed[..rows]);
    }
}

/// Packs rows of pairs so that the pairs of each row follow each other, in whole blocks.
///
/// # Safety
/// See [`gather_by_step`].
#[inline(always)]
pub(super) unsafe fn gather_by_row<E: Element>(
    packed: &mut [E::Wide],
    source: Strided<E>,
    rows: usize,
    depth: usize,
) {
    let steps = depth.div_ceil(2);
    let stride = gathered_row_steps(steps);
    let packed = &mut packed[..rows.next_multiple_of(SIDE) * stride];
    // Leftovers of a previous block behind a shorter last block become elements that nobody reads.
    let mut block = [[E::Wide::default(); GATHER_ROWS]; SIDE];
    for first in (0..steps).step_by(SIDE) {
        let source = source.offset(0, 2 * first);
        let depth = (depth - 2 * first).min(2 * SIDE);
        // SAFETY: as this function.
        unsafe { gather_by_step::<E, true>(block.as_flattened_mut(), source, rows, depth) };
        for row in (0..rows).step_by(SIDE) {
            let from = block.as_flattened()[row..].as_ptr();
            let to = packed[row * stride + first..].as_mut_ptr();
            // SAFETY: whole blocks of the pairs gathered, and of the packed rows.
            unsafe { transpose_block(from, GATHER_ROWS * size_of::<E::Wide>(), to, stride) };
        }
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    #[test]
    fn gathered_rows_have_the_pairs_of_their_columns() {
        for (rows, depth) in [(1_usize, 1_usize), (16, 32), (17, 33), (81, 62), (96, 127)] {
            let row_stride = rows + 3;
            let steps = depth.div_ceil(2);
            let source: Vec<bf16> =
                (1..=depth * row_stride).map(|n| bf16::from_bits(n as u16)).collect();
            let element = |k: usize, row: usize| {
                if k < depth { source[k * row_stride + row] } else { bf16::ZERO }
            };
            let stride = gathered_row_steps(steps);
            let mut packed = vec![0.0; rows.next_multiple_of(SIDE) * stride];
            let columns = Strided::dense(&source, row_stride).transposed();
            // SAFETY: the source has these rows and columns.
            unsafe { gather_by_row(&mut packed, columns, rows, depth) };
            for (row, packed) in packed.chunks(stride).take(rows).enumerate() {
                for (step, packed) in packed[..steps].iter().enumerate() {
                    let pair = bf16::pair(element(2 * step, row), element(2 * step + 1, row));
                    assert_eq!(packed.to_bits(), pair.to_bits(), "{rows} x {depth}: {row}, {step}");
                }
            }
        }
    }
}
