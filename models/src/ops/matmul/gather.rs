//! Rows of the left operand out of columns that are contiguous: the rows of weight gradients.

#![allow(unsafe_code)]

use super::step::{fill, rows_of_step};
use super::strided::Strided;
use super::transpose::{self, SIDE as BLOCK};
use crate::ops::Element;

/// Most rows of the left operand that are gathered at once.
pub(super) const WIDEST: usize = 96;

/// Cells from one gathered row to the next: whole blocks, as the transpose writes them.
pub(super) fn room_steps(steps: usize) -> usize {
    steps.next_multiple_of(BLOCK)
}

/// Copies rows so that the cells of each step follow each other.
///
/// # Safety
/// `source` must be readable over `rows` contiguous rows and `depth` columns.
#[inline(always)]
pub(super) unsafe fn gather<E: Element, const PAIRS: bool>(
    room: &mut [E::Wide],
    source: Strided<E>,
    rows: usize,
    depth: usize,
) {
    let steps = if PAIRS { depth.div_ceil(2) } else { depth };
    let source = source.transposed();
    for (step, cells) in room[..steps * WIDEST].chunks_exact_mut(WIDEST).enumerate() {
        // SAFETY: as this function.
        let operands = unsafe { rows_of_step::<E, PAIRS>(source, step, depth, rows) };
        fill::<E, PAIRS>(&mut cells[..rows], operands);
    }
}

/// Copies rows of pairs so that those of each row follow each other, with room for whole blocks.
///
/// # Safety
/// As [`gather`].
#[inline(always)]
pub(super) unsafe fn gather_rows<E: Element>(
    room: &mut [E::Wide],
    source: Strided<E>,
    rows: usize,
    depth: usize,
) {
    let stride = room_steps(depth.div_ceil(2));
    let room = &mut room[..rows.next_multiple_of(BLOCK) * stride];
    // What a shorter last block leaves of the one before becomes cells that nobody reads.
    let mut block = [[E::Wide::ZERO; WIDEST]; BLOCK];
    for first in (0..depth.div_ceil(2)).step_by(BLOCK) {
        let here = source.offset(0, 2 * first);
        let depth = (depth - 2 * first).min(2 * BLOCK);
        // SAFETY: as this function.
        unsafe {
            let cells = block.as_flattened_mut();
            // A length that the compiler knows makes loops without ends.
            match rows {
                WIDEST => gather::<E, true>(cells, here, WIDEST, depth),
                _ => gather::<E, true>(cells, here, rows, depth),
            }
        }
        for row in (0..rows).step_by(BLOCK) {
            let from = block.as_flattened()[row..].as_ptr();
            let to = room[row * stride + first..].as_mut_ptr();
            // SAFETY: whole blocks of the cells gathered, and of the room.
            unsafe { transpose::block((from, WIDEST * size_of::<E::Wide>()), (to, stride)) };
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
            let (row, steps) = (rows + 3, depth.div_ceil(2));
            let source: Vec<bf16> = (1..=depth * row).map(|n| bf16::from_bits(n as u16)).collect();
            let element = |row_of_k: usize, column: usize| {
                if row_of_k < depth { source[row_of_k * row + column] } else { bf16::ZERO }
            };
            let mut room = vec![0.0; rows.next_multiple_of(BLOCK) * room_steps(steps)];
            let columns = Strided::dense(&source, row).transposed();
            // SAFETY: the source has so many rows and columns.
            unsafe { gather_rows(&mut room, columns, rows, depth) };
            for (index, cells) in room.chunks(room_steps(steps)).take(rows).enumerate() {
                for (step, cell) in cells[..steps].iter().enumerate() {
                    let pair = bf16::pair(element(2 * step, index), element(2 * step + 1, index));
                    assert_eq!(cell.to_bits(), pair.to_bits(), "{rows} x {depth}: {index}, {step}");
                }
            }
        }
    }
}
