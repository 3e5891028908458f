//! f32 in cells for products of bf16: three parts of 8 bits each, which add up to the element.
//!
//! A product of two elements is then the sum of six products of parts, each exact in f32. The three
//! that are left out are together below 2^-23 of it, and on average nothing: less than sums in f32
//! round. 16 cells of the first parts along k are followed by those of the second and the third
//! parts, then come the next 16; behind the end of k are zeros.
//!
//! Parts and products of parts that would be subnormal (below 1.2e-38) count as 0: the last bits of
//! elements below 1e-31, and of products below 1e-31. A sum with an infinite element, or one that
//! rounds to no finite bf16 (from 3.396e38 on), is not a number.

#![allow(unsafe_code)]
use std::mem::MaybeUninit;

use super::strided::Strided;
use super::transpose::{self, SIDE};
use std::arch::x86_64::{
    __m512i, _mm512_add_epi32, _mm512_and_si512, _mm512_castps_si512, _mm512_castsi512_ps,
    _mm512_maskz_loadu_epi32, _mm512_or_si512, _mm512_permutex2var_epi16, _mm512_set1_epi32,
    _mm512_srli_epi32, _mm512_storeu_si512, _mm512_sub_ps,
};

/// Parts of an element.
pub(super) const PARTS: usize = 3;
/// Elements and cells in a vector.
pub(super) const LANES: usize = SIDE;
/// Elements along k of 16 cells, two in each.
pub(super) const RUN: usize = 2 * SIDE;

/// Whether this processor has the instructions that parts are made with.
pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw")
}

/// Copies `depth` x `columns` of the right operand into panels `panel` columns wide, the last as
/// wide as its vectors need.
///
/// # Safety
/// [`is_available`] must have said so; `source` must be readable over `depth` rows and `columns`
/// columns, one of its strides 1.
///
/// # Panics
/// When `room` lacks cells of the panels.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn right(
    room: &mut [f32],
    source: Strided<f32>,
    (depth, columns): (usize, usize),
    panel: usize,
) {
    let (all, runs) = (columns.next_multiple_of(LANES), depth.div_ceil(RUN));
    let room = &mut room[..all * runs * PARTS * SIDE];
    let mut vector = |run: usize, column: usize| {
        let first = column / panel * panel;
        let stride = panel.min(all - first);
        let start = (first * runs + run * stride) * PARTS * SIDE + column - first;
        let to = Place { start: room[start..].as_mut_ptr(), part: SIDE * stride, row: stride };
        let source = source.offset(run * RUN, column);
        let (depth, count) = (depth - run * RUN, columns - column);
        // SAFETY: what the operand has from there on, and a vector of each row of the run.
        unsafe {
            if source.column == 1 {
                pair_rows(to, source, (depth, count));
            } else {
                let turned = turned::<LANES, RUN>(source.transposed(), (count, depth));
                pair_rows(to, dense(turned.assume_init_ref()), (RUN, LANES));
            }
        }
    };
    // Along the rows of memory: that the processor foresees.
    if source.column == 1 {
        for run in 0..runs {
            (0..columns).step_by(LANES).for_each(|column| vector(run, column));
        }
    } else {
        for column in (0..columns).step_by(LANES) {
            (0..runs).for_each(|run| vector(run, column));
        }
    }
}

/// Copies `rows` x `depth` of the left operand into rows of cells, `stride` cells apart.
///
/// # Safety
/// As [`right`].
///
/// # Panics
/// When `room` lacks cells of whole blocks of rows.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn left(
    room: &mut [f32],
    source: Strided<f32>,
    (rows, depth): (usize, usize),
    stride: usize,
) {
    let room = &mut room[..rows.next_multiple_of(SIDE) * stride];
    assert!(stride >= depth.div_ceil(RUN) * PARTS * SIDE, "rows of {stride} cells");
    let mut block = |row: usize, first: usize| {
        let source = source.offset(row, first);
        let start = room[row * stride + first / RUN * PARTS * SIDE..].as_mut_ptr();
        let to = Place { start, part: SIDE, row: stride };
        // SAFETY: what the operand has from there on, and 16 rows of cells of the run.
        unsafe {
            if source.column == 1 {
                pair_neighbours(to, source, (rows - row, depth - first));
            } else {
                let turned = turned::<RUN, SIDE>(source.transposed(), (depth - first, rows - row));
                pair_neighbours(to, dense(turned.assume_init_ref()), (SIDE, RUN));
            }
        }
    };
    if source.column == 1 {
        for row in (0..rows).step_by(SIDE) {
            (0..depth).step_by(RUN).for_each(|first| block(row, first));
        }
    } else {
        for first in (0..depth).step_by(RUN) {
            (0..rows).step_by(SIDE).for_each(|row| block(row, first));
        }
    }
}

/// Where 16 vectors of each part go.
#[derive(Clone, Copy)]
struct Place {
    start: *mut f32,
    /// From one part, and from one of its vectors, to the next.
    part: usize,
    row: usize,
}

impl Place {
    /// Writes a vector of each part.
    ///
    /// # Safety
    /// The place must be writable there.
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn write(self, row: usize, parts: [__m512i; PARTS]) {
        for (part, cells) in parts.into_iter().enumerate() {
            let to = self.start.wrapping_add(part * self.part + row * self.row);
            // SAFETY: as this function.
            unsafe { _mm512_storeu_si512(to.cast(), cells) };
        }
    }
}

/// Cells of rows 2 i and 2 i + 1, of up to `count` columns, in vector i, with zeros for rows from
/// `depth` on.
///
/// # Safety
/// Up to `depth` rows and `count` columns of the source must be readable, and the place writable.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn pair_rows(to: Place, source: Strided<f32>, (depth, count): (usize, usize)) {
    let mask = lanes(count);
    for cell in 0..SIDE {
        let row = |row: usize| {
            // SAFETY: as this function.
            unsafe { load(source.at(row, 0), if row < depth { mask } else { 0 }) }
        };
        let (mut cells, upper) = (split(row(2 * cell)), split(row(2 * cell + 1)));
        for (cells, upper) in cells.iter_mut().zip(upper) {
            // The lower half of a part is zero, unless it is of NaN: then so are the sums.
            *cells = _mm512_or_si512(_mm512_srli_epi32::<16>(*cells), upper);
        }
        // SAFETY: as this function.
        unsafe { to.write(cell, cells) };
    }
}

/// Cells of up to `depth` neighbours in row i in vector i, with zeros for rows from `count` on.
///
/// # Safety
/// Up to `count` rows and `depth` columns of the source must be readable, and the place writable.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
unsafe fn pair_neighbours(to: Place, source: Strided<f32>, (count, depth): (usize, usize)) {
    let upper = upper_halves();
    let masks = [lanes(depth), lanes(depth.saturating_sub(LANES))];
    for row in 0..SIDE {
        let half = |half: usize| {
            let mask = if row < count { masks[half] } else { 0 };
            // SAFETY: as this function.
            unsafe { load(source.at(row, half * LANES), mask) }
        };
        let (mut cells, second) = (split(half(0)), split(half(1)));
        for (cells, second) in cells.iter_mut().zip(second) {
            *cells = _mm512_permutex2var_epi16(*cells, upper, second);
        }
        // SAFETY: as this function.
        unsafe { to.write(row, cells) };
    }
}

/// Columns of the source as rows, with zeros for rows from `rows` and columns from `columns` on.
///
/// # Safety
/// Up to `rows` rows and `columns` columns of the source must be readable.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn turned<const ROWS: usize, const COLUMNS: usize>(
    source: Strided<f32>,
    (rows, columns): (usize, usize),
) -> MaybeUninit<[[f32; ROWS]; COLUMNS]> {
    let edge;
    let source = if rows < ROWS || columns < COLUMNS {
        // SAFETY: as this function.
        edge = unsafe { padded::<ROWS, COLUMNS>(source, (rows, columns)) };
        dense(&edge)
    } else {
        source
    };
    let mut turned = MaybeUninit::<[[f32; ROWS]; COLUMNS]>::uninit();
    let start = turned.as_mut_ptr().cast::<f32>();
    for row in (0..ROWS).step_by(SIDE) {
        for column in (0..COLUMNS).step_by(SIDE) {
            let from = (source.at(row, column), source.row * size_of::<f32>());
            let to = (start.wrapping_add(column * ROWS + row), ROWS);
            // SAFETY: a block of the source, and of what it is turned to.
            unsafe { transpose::block(from, to) };
        }
    }
    turned
}

/// As many rows and columns of the source as there are, and zeros: at edges.
///
/// # Safety
/// Up to `rows` rows and `columns` columns of the source must be readable.
#[cold]
unsafe fn padded<const ROWS: usize, const COLUMNS: usize>(
    source: Strided<f32>,
    (rows, columns): (usize, usize),
) -> [[f32; COLUMNS]; ROWS] {
    let mut padded = [[0.0; COLUMNS]; ROWS];
    for (index, row) in padded.iter_mut().enumerate().take(rows) {
        for (column, element) in row.iter_mut().enumerate().take(columns) {
            // SAFETY: as this function.
            *element = unsafe { *source.at(index, column) };
        }
    }
    padded
}

/// Rows as an operand.
fn dense<const COLUMNS: usize>(rows: &[[f32; COLUMNS]]) -> Strided<f32> {
    Strided::dense(rows.as_flattened(), COLUMNS)
}

/// The lowest `count` lanes.
fn lanes(count: usize) -> u16 {
    if count < LANES { (1 << count) - 1 } else { u16::MAX }
}

/// The elements of some lanes, and zeros.
///
/// # Safety
/// The elements of these lanes must be readable.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn load(start: *const f32, mask: u16) -> __m512i {
    // SAFETY: as this function.
    unsafe { _mm512_maskz_loadu_epi32(mask, start.cast()) }
}

/// Parts in the upper halves of each lane, over zeros: the nearest bf16, that of what is left, and
/// the rest, which has 8 bits. One part of NaN is NaN.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn split(values: __m512i) -> [__m512i; PARTS] {
    let round = |values| {
        let half = _mm512_add_epi32(values, _mm512_set1_epi32(0x8000));
        _mm512_and_si512(half, _mm512_set1_epi32(0xffff_0000_u32.cast_signed()))
    };
    let less = |values, part| {
        let difference = _mm512_sub_ps(_mm512_castsi512_ps(values), _mm512_castsi512_ps(part));
        _mm512_castps_si512(difference)
    };
    let first = round(values);
    let rest = less(values, first);
    let second = round(rest);
    [first, second, less(rest, second)]
}

/// Indices of the upper halves of two vectors' lanes.
#[target_feature(enable = "avx512f")]
#[inline]
fn upper_halves() -> __m512i {
    let mut indices = [0_i16; RUN];
    for (index, half) in indices.iter_mut().zip(0..) {
        *index = 2 * half + 1;
    }
    // SAFETY: a vector is as long and has no invalid values.
    unsafe { std::mem::transmute(indices) }
}
