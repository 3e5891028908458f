//! Rows of the left operand, where the micro-kernels cannot read them in place.

#![allow(unsafe_code)]

use super::gather::{GATHER_ROWS, gather_by_row, gather_by_step, gathered_row_steps};
use super::step::StepRows;
use crate::ops::matmul::tile::{Kernel, Left, Strided};
use crate::ops::{Element, simd};

/// Packs `rows` x `depth` of the left operand.
///
/// The packed elements of each row are contiguous where k is, or where the kernel needs it.
/// Otherwise those of each step are, [`GATHER_ROWS`] apart: the kernels then read a few elements of
/// every step, which are in the second-level cache.
///
/// # Safety
/// `source` must be readable over `rows` rows and `depth` columns; one stride must be 1.
pub(in crate::ops) unsafe fn pack_left<E: Element>(
    packed: &mut [E::Wide],
    source: Strided<E>,
    rows: usize,
    depth: usize,
    kernel: &Kernel<E::Wide>,
) -> Left<E::Wide> {
    let k_is_contiguous = source.has_contiguous_rows();
    debug_assert!(k_is_contiguous || rows <= GATHER_ROWS, "{rows} rows");
    let element = size_of::<E::Wide>();
    let steps = kernel.steps(depth);
    let start = packed.as_ptr();
    let by_row = |stride| Left { start, row_bytes: stride * element, step_bytes: element };
    let by_step = Left { start, row_bytes: element, step_bytes: GATHER_ROWS * element };
    let gathers_by_row = kernel.needs_contiguous_rows();
    simd::vectorize(
        #[inline(always)]
        || {
            // SAFETY: within the operand, by the caller's contract.
            unsafe {
                match (k_is_contiguous, kernel.takes_pairs()) {
                    (true, false) => pack_rows::<E, false>(packed, source, rows, depth),
                    (true, true) => pack_rows::<E, true>(packed, source, rows, depth),
                    (false, true) if gathers_by_row => {
                        gather_by_row::<E>(packed, source, rows, depth);
                    }
                    (false, true) => gather_by_step::<E, true>(packed, source, rows, depth),
                    (false, false) => gather_by_step::<E, false>(packed, source, rows, depth),
                }
            }
        },
    );
    match k_is_contiguous {
        true => by_row(steps),
        false if gathers_by_row => by_row(gathered_row_steps(steps)),
        false => by_step,
    }
}

/// # Safety
/// `source` must be readable over `rows` rows and `depth` contiguous columns.
#[inline(always)]
unsafe fn pack_rows<E: Element, const PAIRS: bool>(
    packed: &mut [E::Wide],
    source: Strided<E>,
    rows: usize,
    depth: usize,
) {
    let steps = if PAIRS { depth.div_ceil(2) } else { depth };
    for (row, packed) in packed.chunks_exact_mut(steps).take(rows).enumerate() {
        // SAFETY: a row of the operand, by the caller's contract.
        let values = unsafe { std::slice::from_raw_parts(source.at(row, 0), depth) };
        if PAIRS {
            let (pairs, rest) = values.as_chunks::<2>();
            for (packed, pair) in packed.iter_mut().zip(pairs) {
                *packed = E::pair(pair[0], pair[1]);
            }
            if let (Some(packed), [last]) = (packed.last_mut(), rest) {
                *packed = E::pair(*last, E::ZERO);
            }
        } else {
            StepRows { first: values, second: None }.pack::<PAIRS>(packed);
        }
    }
}
