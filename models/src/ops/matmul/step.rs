//! The cells of one step along k, out of the rows that they are made of.

#![allow(unsafe_code)]

use super::strided::Strided;
use crate::ops::{Element, simd};

/// Rows that are asked for before they are read: they are far apart.
const AHEAD: usize = 16;

/// The rows that make up one step's cells: two where cells are pairs, except behind an odd k.
pub(super) type Rows<'a, E> = (&'a [E], Option<&'a [E]>);

/// One step's cells.
#[inline(always)]
pub(super) fn fill<E: Element, const PAIRS: bool>(cells: &mut [E::Wide], rows: Rows<'_, E>) {
    match rows {
        (first, Some(second)) => E::pair_all(first, second, cells),
        (first, None) if PAIRS => {
            for (cell, &first) in cells.iter_mut().zip(first) {
                *cell = E::pair(first, E::ZERO);
            }
        }
        (first, None) => {
            for (cell, &value) in cells.iter_mut().zip(first) {
                *cell = value.widen();
            }
        }
    }
}

/// # Safety
/// `source` must be readable over `depth` rows and `width` contiguous columns.
#[inline(always)]
pub(super) unsafe fn rows_of_step<'a, E: Element, const PAIRS: bool>(
    source: Strided<E>,
    step: usize,
    depth: usize,
    width: usize,
) -> Rows<'a, E> {
    let row = |index| {
        simd::prefetch(source.at(index + AHEAD, 0), width);
        // SAFETY: a row of the operand, by the caller's contract.
        unsafe { std::slice::from_raw_parts(source.at(index, 0), width) }
    };
    if PAIRS {
        (row(2 * step), (2 * step + 1 < depth).then(|| row(2 * step + 1)))
    } else {
        (row(step), None)
    }
}
