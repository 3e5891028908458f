//! Operands copied into the cells and the order in which the micro-kernels read them.
//!
//! A cell has the size of a wide element. It holds one element, widened, or two that follow each
//! other along k where the kernel takes pairs, or a part of two ([`super::split`]); behind an odd k
//! comes a zero.

#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
use std::any::TypeId;

use super::gather::{WIDEST, gather, gather_rows, room_steps};
use super::kernel::{Kernel, Left};
use super::product::{HALF_PANEL, PANEL};
use super::step::{fill, rows_of_step};
#[cfg(target_arch = "x86_64")]
use super::stepwise::Packing;
use super::strided::Strided;
use super::transpose::{self, SIDE as BLOCK};
use crate::ops::simd::{self, LINE_BYTES};
use crate::ops::{Element, Float};

/// Elements from the start of a room to its first cache line, where packed panels start: a vector
/// load across two lines costs two.
fn misalignment<W>(start: *const W) -> usize {
    start.align_offset(LINE_BYTES).min(LINE_BYTES / size_of::<W>())
}

/// Room for so many cells from a cache line on.
pub(super) fn room<W: Float>(cells: usize) -> Vec<W> {
    vec![W::ZERO; room_len::<W>(cells)]
}

/// Length of such a room.
pub(super) fn room_len<W>(cells: usize) -> usize {
    cells + LINE_BYTES / size_of::<W>()
}

/// The part of a room that starts at a cache line; nothing of no room.
pub(super) fn aligned<W>(room: &mut [W]) -> &mut [W] {
    let start = misalignment(room.as_ptr()).min(room.len());
    &mut room[start..]
}

/// Room and operand of kernels that ask for parts: both are of f32.
#[cfg(target_arch = "x86_64")]
pub(super) fn of_singles<E: Element>(
    room: &mut [E::Wide],
    source: Strided<E>,
) -> (&mut [f32], Strided<f32>) {
    assert!(TypeId::of::<E>() == TypeId::of::<f32>(), "parts of another element");
    let Strided { start, row, column } = source;
    // SAFETY: f32 is its own wide type.
    let room = unsafe { std::slice::from_raw_parts_mut(room.as_mut_ptr().cast(), room.len()) };
    (room, Strided { start: start.cast(), row, column })
}

/// Copies `depth` x `columns` of the right operand into panels.
///
/// In a panel the cells of one step are contiguous; the last panel is as wide as its vectors need
/// and filled up with zeros.
///
/// # Safety
/// `source` must be readable over `depth` rows and `columns` columns; one stride must be 1.
pub(in crate::ops) unsafe fn right<E: Element>(
    room: &mut [E::Wide],
    source: Strided<E>,
    (depth, columns): (usize, usize),
    kernel: &Kernel<E::Wide>,
) {
    // SAFETY: as this function.
    unsafe { right_filled(room, source, (depth, columns), columns, kernel) }
}

/// The same, filled up with columns of zeros to `all` columns.
///
/// # Safety
/// As [`right`].
pub(in crate::ops) unsafe fn right_filled<E: Element>(
    room: &mut [E::Wide],
    source: Strided<E>,
    (depth, columns): (usize, usize),
    all: usize,
    kernel: &Kernel<E::Wide>,
) {
    let (panel, steps) = (kernel.panel(), kernel.steps(depth));
    #[cfg(target_arch = "x86_64")]
    if kernel.takes_parts() {
        // SAFETY: as this function; the processor was asked when the kernel was chosen.
        unsafe {
            let (room, source) = of_singles(room, source);
            Packing::right(room, source, (depth, columns), (all, panel)).finish();
        }
        return;
    }
    for (index, first) in (0..all).step_by(panel).enumerate() {
        let width = panel.min(columns.saturating_sub(first));
        let stride = panel.min(all - first).next_multiple_of(kernel.lanes);
        let room = &mut room[index * panel * steps..][..steps * stride];
        let source = source.offset(0, first.min(columns));
        simd::vectorize(
            #[inline(always)]
            || {
                // SAFETY: within the operand, by the caller's contract.
                unsafe {
                    match (kernel.group, source.column) {
                        (1, 1) => copy_panel::<E, false>(room, source, depth, width, stride),
                        (_, 1) => copy_panel::<E, true>(room, source, depth, width, stride),
                        (1, _) => copy_transposed::<E, false>(room, source, depth, width, stride),
                        (_, _) => copy_transposed::<E, true>(room, source, depth, width, stride),
                    }
                }
            },
        );
    }
}

/// # Safety
/// As [`copy_rows`].
#[inline(always)]
unsafe fn copy_panel<E: Element, const PAIRS: bool>(
    room: &mut [E::Wide],
    source: Strided<E>,
    depth: usize,
    width: usize,
    stride: usize,
) {
    // SAFETY: as this function.
    unsafe {
        // A length that the compiler knows makes loops without ends.
        match (width, stride) {
            (PANEL, PANEL) => copy_rows::<E, PAIRS>(room, source, depth, PANEL, PANEL),
            (HALF_PANEL, HALF_PANEL) => {
                copy_rows::<E, PAIRS>(room, source, depth, HALF_PANEL, HALF_PANEL);
            }
            _ => copy_rows::<E, PAIRS>(room, source, depth, width, stride),
        }
    }
}

/// # Safety
/// `source` must be readable over `depth` rows and `width` contiguous columns.
#[inline(always)]
unsafe fn copy_rows<E: Element, const PAIRS: bool>(
    room: &mut [E::Wide],
    source: Strided<E>,
    depth: usize,
    width: usize,
    stride: usize,
) {
    for (step, room) in room.chunks_exact_mut(stride).enumerate() {
        // SAFETY: as this function.
        let rows = unsafe { rows_of_step::<E, PAIRS>(source, step, depth, width) };
        fill::<E, PAIRS>(&mut room[..width], rows);
        room[width..].fill(E::Wide::ZERO);
    }
}

/// # Safety
/// `source` must be readable over `depth` contiguous rows and `width` columns.
#[inline(always)]
unsafe fn copy_transposed<E: Element, const PAIRS: bool>(
    room: &mut [E::Wide],
    source: Strided<E>,
    depth: usize,
    width: usize,
    stride: usize,
) {
    let group = if PAIRS { 2 } else { 1 };
    let steps = depth.div_ceil(group);
    for column in (0..stride).step_by(BLOCK) {
        let full = column + BLOCK <= width;
        let whole = if full { depth / (BLOCK * group) * BLOCK } else { 0 };
        for step in (0..whole).step_by(BLOCK) {
            for lane in column..column + BLOCK {
                simd::prefetch(source.at((step + 2 * BLOCK) * group, lane), 1);
            }
            let room = &mut room[step * stride + column..];
            let mut block = [[E::Wide::ZERO; BLOCK]; BLOCK];
            let from = if PAIRS || size_of::<E>() == size_of::<E::Wide>() {
                // As many bytes: an element is its own cell, or two are one in memory's order.
                (source.at(step * group, column).cast(), source.column * size_of::<E>())
            } else {
                for (lane, cells) in block.iter_mut().enumerate() {
                    // SAFETY: the elements of BLOCK cells within the operand.
                    *cells = unsafe { widened(source.at(step, column + lane)) };
                }
                (block.as_flattened().as_ptr(), BLOCK * size_of::<E::Wide>())
            };
            // SAFETY: whole cells within the operand, and as many of the room.
            unsafe { transpose::block(from, (room.as_mut_ptr(), stride)) };
        }
        for step in whole..steps {
            for lane in column..(column + BLOCK).min(stride) {
                let element = |index: usize| {
                    let inside = lane < width && index < depth;
                    // SAFETY: within the operand where it says so.
                    if inside { unsafe { *source.at(index, lane) } } else { E::ZERO }
                };
                let index = step * group;
                room[step * stride + lane] = if PAIRS {
                    E::pair(element(index), element(index + 1))
                } else {
                    element(index).widen()
                };
            }
        }
    }
}

/// BLOCK elements that follow each other.
///
/// # Safety
/// `start` must be readable over them.
#[inline(always)]
unsafe fn widened<E: Element>(start: *const E) -> [E::Wide; BLOCK] {
    // SAFETY: as this function.
    unsafe { start.cast::<[E; BLOCK]>().read_unaligned() }.map(E::widen)
}

/// Copies `rows` x `depth` of the left operand for use by the micro-kernels.
///
/// Where k is contiguous, or the kernel asks for it, so are the cells of each row. Else those of
/// each step are, with room for [`WIDEST`]: what the kernels then read, a few cells of every step,
/// is in the second-level cache.
///
/// # Safety
/// `source` must be readable over `rows` rows and `depth` columns; one stride must be 1.
pub(in crate::ops) unsafe fn left<E: Element>(
    room: &mut [E::Wide],
    source: Strided<E>,
    (rows, depth): (usize, usize),
    kernel: &Kernel<E::Wide>,
) -> Left<E::Wide> {
    debug_assert!(source.column == 1 || rows <= WIDEST, "{rows} rows");
    let cell = size_of::<E::Wide>();
    let steps = kernel.steps(depth);
    let start = room.as_ptr();
    let (row, step) = match (source.column, kernel.reads_rows_only()) {
        (1, _) => (steps, 1),
        (_, true) => (room_steps(steps), 1),
        (_, false) => (1, WIDEST),
    };
    let left = Left { start, row_bytes: row * cell, step_bytes: step * cell };
    #[cfg(target_arch = "x86_64")]
    if kernel.takes_parts() {
        // SAFETY: as this function; the processor was asked when the kernel was chosen.
        unsafe {
            let (room, source) = of_singles(room, source);
            Packing::left(room, source, (rows, depth), row).finish();
        }
        return left;
    }
    simd::vectorize(
        #[inline(always)]
        || {
            // SAFETY: within the operand, by the caller's contract.
            unsafe {
                match (kernel.group, source.column, step) {
                    (1, 1, _) => copy_rows_of_cells::<E, false>(room, source, rows, depth),
                    (_, 1, _) => copy_rows_of_cells::<E, true>(room, source, rows, depth),
                    (_, _, 1) => gather_rows::<E>(room, source, rows, depth),
                    (1, ..) => gather::<E, false>(room, source, rows, depth),
                    _ => gather::<E, true>(room, source, rows, depth),
                }
            }
        },
    );
    left
}

/// # Safety
/// `source` must be readable over `rows` rows and `depth` contiguous columns.
#[inline(always)]
unsafe fn copy_rows_of_cells<E: Element, const PAIRS: bool>(
    room: &mut [E::Wide],
    source: Strided<E>,
    rows: usize,
    depth: usize,
) {
    let steps = if PAIRS { depth.div_ceil(2) } else { depth };
    for (row, room) in room.chunks_exact_mut(steps).take(rows).enumerate() {
        // SAFETY: a row of the operand, by the caller's contract.
        let values = unsafe { std::slice::from_raw_parts(source.at(row, 0), depth) };
        if PAIRS {
            let (pairs, rest) = values.as_chunks::<2>();
            for (cell, pair) in room.iter_mut().zip(pairs) {
                *cell = E::pair(pair[0], pair[1]);
            }
            if let (Some(cell), [last]) = (room.last_mut(), rest) {
                *cell = E::pair(*last, E::ZERO);
            }
        } else {
            fill::<E, PAIRS>(room, (values, None));
        }
    }
}
