//! Rows of elements as the packed elements that the micro-kernels read.

#![allow(unsafe_code)]

use super::BLOCK;
use crate::ops::Element;

/// Packs two neighbouring rows for products whose k runs across rows: as one row of pairs, or as
/// two rows of widened elements.
#[inline(always)]
pub(super) fn pack_across_rows<E: Element, const PAIRS: bool>(
    packed: &mut [[E::Wide; BLOCK]],
    index: usize,
    rows: &[[E; BLOCK]; 2],
) {
    if PAIRS {
        let [first, second] = rows;
        for (packed, (&first, &second)) in packed[index].iter_mut().zip(first.iter().zip(second)) {
            *packed = E::pair(first, second);
        }
    } else {
        for (packed, row) in packed[2 * index..].iter_mut().zip(rows) {
            pack_along_row::<E, PAIRS>(packed, row);
        }
    }
}

/// Packs a row for products whose k runs along it: elements as they are in the first half, or
/// widened.
#[inline(always)]
pub(super) fn pack_along_row<E: Element, const PAIRS: bool>(
    packed: &mut [E::Wide; BLOCK],
    row: &[E; BLOCK],
) {
    if PAIRS {
        // SAFETY: a pair is two elements, so BLOCK pairs are longer than the row.
        unsafe { packed.as_mut_ptr().cast::<[E; BLOCK]>().write(*row) };
    } else {
        for (packed, &element) in packed.iter_mut().zip(row) {
            *packed = element.widen();
        }
    }
}
