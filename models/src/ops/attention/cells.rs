//! Blocks of wide values in the cells that the micro-kernels read.

#![allow(unsafe_code)]

use super::BLOCK;
use crate::ops::Element;

/// Two neighbouring rows as cells along the rows: one row of pairs, or two rows of cells.
#[inline(always)]
pub(super) fn across_rows<E: Element, const PAIRS: bool>(
    cells: &mut [[E::Wide; BLOCK]],
    index: usize,
    first: &[E::Wide; BLOCK],
    second: &[E::Wide; BLOCK],
) {
    if PAIRS {
        for (cell, (&first, &second)) in cells[index].iter_mut().zip(first.iter().zip(second)) {
            *cell = E::pair(E::narrow(first), E::narrow(second));
        }
    } else {
        for (row, values) in [first, second].into_iter().enumerate() {
            for (cell, &value) in cells[2 * index + row].iter_mut().zip(values) {
                *cell = E::narrow(value).widen();
            }
        }
    }
}

/// A row as cells along itself: elements as they are in the first half, or widened.
#[inline(always)]
pub(super) fn along_row<E: Element, const PAIRS: bool>(
    cells: &mut [E::Wide; BLOCK],
    values: &[E::Wide; BLOCK],
) {
    if PAIRS {
        // SAFETY: a pair is two elements, so the row has room for BLOCK and more.
        let elements = unsafe { &mut *cells.as_mut_ptr().cast::<[E; BLOCK]>() };
        for (element, &value) in elements.iter_mut().zip(values) {
            *element = E::narrow(value);
        }
    } else {
        for (cell, &value) in cells.iter_mut().zip(values) {
            *cell = E::narrow(value).widen();
        }
    }
}
