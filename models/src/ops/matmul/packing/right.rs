//! The right operand in panels.

#![allow(unsafe_code)]

use super::step::StepRows;
use super::transpose::{SIDE, transpose_block};
use crate::ops::matmul::tile::{Kernel, Strided};
use crate::ops::{Element, simd};

/// The part of an operand that becomes a panel.
#[derive(Clone, Copy)]
struct PanelShape {
    /// Elements along k.
    depth: usize,
    /// Columns of the operand.
    columns: usize,
    /// Columns of the panel; those that the operand lacks are zeros.
    padded_columns: usize,
}

/// Packs `depth` x `columns` of the right operand into panels.
///
/// In a panel the packed elements of one step are contiguous; the last panel is as wide as its
/// vectors need and padded with zeros.
///
/// # Safety
/// `source` must be readable over `depth` rows and `columns` columns; one stride must be 1.
pub(in crate::ops) unsafe fn pack_right<E: Element>(
    packed: &mut [E::Wide],
    source: Strided<E>,
    depth: usize,
    columns: usize,
    kernel: &Kernel<E::Wide>,
) {
    // SAFETY: as this function.
    unsafe { pack_right_padded(packed, source, depth, columns, columns, kernel) }
}

/// Packs panels like [`pack_right`], padded with columns of zeros to `padded_columns`.
///
/// # Safety
/// See [`pack_right`].
pub(in crate::ops) unsafe fn pack_right_padded<E: Element>(
    packed: &mut [E::Wide],
    source: Strided<E>,
    depth: usize,
    columns: usize,
    padded_columns: usize,
    kernel: &Kernel<E::Wide>,
) {
    let panel_columns = kernel.panel_columns();
    let panel_len = panel_columns * kernel.steps(depth);
    for first in (0..padded_columns).step_by(panel_columns) {
        let shape = PanelShape {
            depth,
            columns: panel_columns.min(columns.saturating_sub(first)),
            padded_columns: panel_columns
                .min(padded_columns - first)
                .next_multiple_of(kernel.lanes),
        };
        let packed = &mut packed[first / panel_columns * panel_len..];
        let packed = &mut packed[..kernel.steps(depth) * shape.padded_columns];
        let source = source.offset(0, first.min(columns));
        simd::vectorize(
            #[inline(always)]
            || {
                // SAFETY: within the operand, by the caller's contract.
                unsafe {
                    match (kernel.takes_pairs(), source.has_contiguous_rows()) {
                        (false, true) => pack_rows::<E, false>(packed, source, shape),
                        (true, true) => pack_rows::<E, true>(packed, source, shape),
                        (false, false) => pack_columns::<E, false>(packed, source, shape),
                        (true, false) => pack_columns::<E, true>(packed, source, shape),
                    }
                }
            },
        );
    }
}

/// A panel of an operand whose rows are contiguous.
///
/// # Safety
/// `source` must be readable over the shape.
#[inline(always)]
unsafe fn pack_rows<E: Element, const PAIRS: bool>(
    packed: &mut [E::Wide],
    source: Strided<E>,
    shape: PanelShape,
) {
    let PanelShape { depth, columns, padded_columns } = shape;
    for (step, packed) in packed.chunks_exact_mut(padded_columns).enumerate() {
        // SAFETY: as this function.
        let rows = unsafe { StepRows::of::<PAIRS>(source, step, depth, columns) };
        rows.pack::<PAIRS>(&mut packed[..columns]);
        packed[columns..].fill(E::Wide::default());
    }
}

/// A panel of an operand whose columns are contiguous: transposed block by block.
///
/// # Safety
/// `source` must be readable over the shape.
#[inline(always)]
unsafe fn pack_columns<E: Element, const PAIRS: bool>(
    packed: &mut [E::Wide],
    source: Strided<E>,
    shape: PanelShape,
) {
    let PanelShape { depth, columns, padded_columns } = shape;
    let k_group = if PAIRS { 2 } else { 1 };
    let steps = depth.div_ceil(k_group);
    for column in (0..padded_columns).step_by(SIDE) {
        let has_all_columns = column + SIDE <= columns;
        let whole = if has_all_columns { depth / (SIDE * k_group) * SIDE } else { 0 };
        for step in (0..whole).step_by(SIDE) {
            for lane in column..column + SIDE {
                simd::prefetch(source.at((step + 2 * SIDE) * k_group, lane), 1);
            }
            let to = packed[step * padded_columns + column..].as_mut_ptr();
            let mut widened = [[E::Wide::default(); SIDE]; SIDE];
            let (from, from_row_bytes) = if PAIRS || size_of::<E>() == size_of::<E::Wide>() {
                // As many bytes: an element is its own packed element, or two are one in memory.
                let from = source.at(step * k_group, column).cast::<E::Wide>();
                (from, source.column_stride * size_of::<E>())
            } else {
                for (lane, widened) in widened.iter_mut().enumerate() {
                    // SAFETY: the elements of SIDE steps within the operand.
                    *widened = unsafe { widen(source.at(step, column + lane)) };
                }
                (widened.as_flattened().as_ptr(), SIDE * size_of::<E::Wide>())
            };
            // SAFETY: a block within the operand, and one of the panel.
            unsafe { transpose_block(from, from_row_bytes, to, padded_columns) };
        }
        for step in whole..steps {
            for lane in column..(column + SIDE).min(padded_columns) {
                let element = |k: usize| {
                    let is_inside = lane < columns && k < depth;
                    // SAFETY: `is_inside` guarantees an element within the operand.
                    if is_inside { unsafe { *source.at(k, lane) } } else { E::ZERO }
                };
                let k = step * k_group;
                packed[step * padded_columns + lane] =
                    if PAIRS { E::pair(element(k), element(k + 1)) } else { element(k).widen() };
            }
        }
    }
}

/// SIDE elements that follow each other.
///
/// # Safety
/// `start` must be readable over them.
#[inline(always)]
unsafe fn widen<E: Element>(start: *const E) -> [E::Wide; SIDE] {
    // SAFETY: as this function.
    unsafe { start.cast::<[E; SIDE]>().read_unaligned() }.map(E::widen)
}
