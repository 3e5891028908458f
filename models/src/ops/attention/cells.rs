//! Rows of elements in the cells that the micro-kernels read.

#![allow(unsafe_code)]

use super::BLOCK;
use crate::ops::Element;

/// Two neighbouring rows as cells along the rows: one row of pairs, or two rows of cells.
#[inline(always)]
pub(super) fn across_rows<E: Element, const PAIRS: bool>(
    cells: &mut [[E::Wide; BLOCK]],
    index: usize,
    rows: &[[E; BLOCK]; 2],
) {
    if PAIRS {
        let [first, second] = rows;
        for (cell, (&first, &second)) in cells[index].iter_mut().zip(first.iter().zip(second)) {
            *cell = E::pair(first, second);
        }
    } else {
        for (cells, row) in cells[2 * index..].iter_mut().zip(rows) {
            along_row::<E, PAIRS>(cells, row);
        }
    }
}

/// A row as cells along itself: elements as they are in the first half, or widened.
#[inline(always)]
pub(super) fn along_row<E: Element, const PAIRS: bool>(
    cells: &mut [E::Wide; BLOCK],
    row: &[E; BLOCK],
) {
    if PAIRS {
        // SAFETY: a pair is two elements, so the row has room for BLOCK and more.
        unsafe { cells.as_mut_ptr().cast::<[E; BLOCK]>().write(*row) };
    } else {
        for (cell, &element) in cells.iter_mut().zip(row) {
            *cell = element.widen();
        }
    }
}
