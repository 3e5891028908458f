//! An operand that is split into parts step by step, a few vectors at each: beside products, whose
//! instructions leave those for vectors idle.
//!
//! Memory is read along its rows, which are those of the operand or its columns, and asked for one
//! strip of the operand ahead: loads that wait for memory make products wait.

#![allow(unsafe_code)]

use std::arch::x86_64::{
    __m512i, _mm_loadu_ps, _mm512_castpd_si512, _mm512_castps_pd, _mm512_castps128_ps512,
    _mm512_insertf32x4, _mm512_maskz_loadu_epi32, _mm512_storeu_si512, _mm512_unpackhi_pd,
    _mm512_unpackhi_ps, _mm512_unpacklo_pd, _mm512_unpacklo_ps,
};
use std::ptr;

use super::split::{Cells, LANES, PARTS, RUN, pairs_of_both, pairs_of_neighbours};
use super::strided::Strided;
use super::transpose::SIDE;
use crate::ops::simd;

/// Columns that are turned at once.
const QUAD: usize = 4;

/// Which cells a step writes, and from what memory.
#[derive(Debug, Clone, Copy)]
enum Form {
    /// Rows of the left operand: of a row of memory, 16 cells.
    LeftAlong,
    /// Columns of the left operand: of 32 rows of memory, 16 cells of each of 4 columns.
    LeftAcross,
    /// Rows of the right operand: of 2 rows of memory, a cell of each of 16 columns.
    RightAcross,
    /// Columns of the right operand: of 16 rows of memory, 2 cells of each.
    RightAlong,
}

/// A block of an operand on its way into a room, with nothing left at first.
#[derive(Debug)]
pub(super) struct Packing {
    form: Form,
    /// By rows of memory.
    source: Strided<f32>,
    /// Rows and columns of memory that there are, and with those that zeros stand for.
    extent: (usize, usize),
    padded: (usize, usize),
    /// The row and column of memory that come next.
    row: usize,
    column: usize,
    room: *mut f32,
    /// Cells from one row of the left operand to the next, or columns of the right one's panels.
    stride: usize,
    /// What is asked for while the operand is read, unless this is null: as far from here as that
    /// is from its start.
    ahead: *const f32,
}

impl Packing {
    /// Of nothing.
    pub(super) fn none() -> Self {
        let source = Strided { start: ptr::null(), row: 0, column: 1 };
        Self::new(Form::LeftAlong, source, ((0, 0), (0, 0)), (ptr::null_mut(), 0))
    }

    /// Of rows x depth of the left operand to rows of cells, `stride` cells apart.
    ///
    /// # Panics
    /// When `room` lacks cells.
    pub(super) fn left(
        room: &mut [f32],
        source: Strided<f32>,
        (rows, depth): (usize, usize),
        stride: usize,
    ) -> Self {
        debug_assert!(source.column == 1 || source.row == 1, "{source:?}");
        let padded_depth = depth.next_multiple_of(RUN);
        assert!(stride >= padded_depth / RUN * PARTS * SIDE, "rows of {stride} cells");
        if source.column == 1 {
            let room = (room[..rows * stride].as_mut_ptr(), stride);
            let extents = ((rows, depth), (rows, padded_depth));
            return Self::new(Form::LeftAlong, source, extents, room);
        }
        let all = rows.next_multiple_of(QUAD);
        let room = (room[..all * stride].as_mut_ptr(), stride);
        let extents = ((depth, rows), (padded_depth, all));
        Self::new(Form::LeftAcross, source.transposed(), extents, room)
    }

    /// Of depth x columns of the right operand, filled up to `all` columns, to panels `panel`
    /// columns wide, the last as wide as its vectors need.
    ///
    /// # Panics
    /// When `room` lacks cells.
    pub(super) fn right(
        room: &mut [f32],
        source: Strided<f32>,
        (depth, columns): (usize, usize),
        (all, panel): (usize, usize),
    ) -> Self {
        debug_assert!(source.column == 1 || source.row == 1, "{source:?}");
        assert!(panel > 0 && panel.is_multiple_of(LANES), "panels of {panel} columns");
        let (all, padded_depth) = (all.next_multiple_of(LANES), depth.next_multiple_of(RUN));
        let room = (room[..all * (padded_depth / RUN) * PARTS * SIDE].as_mut_ptr(), panel);
        if source.column == 1 {
            let extents = ((depth, columns), (padded_depth, all));
            return Self::new(Form::RightAcross, source, extents, room);
        }
        let extents = ((columns, depth), (all, padded_depth));
        Self::new(Form::RightAlong, source.transposed(), extents, room)
    }

    fn new(
        form: Form,
        source: Strided<f32>,
        (extent, padded): ((usize, usize), (usize, usize)),
        (room, stride): (*mut f32, usize),
    ) -> Self {
        Self { form, source, extent, padded, row: 0, column: 0, room, stride, ahead: ptr::null() }
    }

    /// The same, asking meanwhile for what lies as far behind this place as what it reads does
    /// behind its start.
    pub(super) fn asking_for(self, ahead: *const f32) -> Self {
        Self { ahead, ..self }
    }

    /// Rows of memory that all steps read, and that of the next one.
    pub(super) fn rows(&self) -> (usize, usize) {
        (self.padded.0, self.row)
    }

    /// Asks from now on for what is so many rows of memory further on, or for nothing.
    pub(super) fn ask_ahead(&mut self, rows: Option<usize>) {
        self.ahead = rows.map_or(ptr::null(), |rows| self.source.at(rows, 0));
    }

    /// The next step, unless all have been made.
    ///
    /// # Safety
    /// [`super::split::is_available`] must have said so; the operand that this was made of must be
    /// readable, with a stride of 1, and its room still be there and read by nobody else.
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) unsafe fn step(&mut self) {
        if self.row == self.padded.0 {
            return;
        }
        // SAFETY: as this function.
        unsafe {
            match self.form {
                Form::LeftAlong => self.left_along(),
                Form::LeftAcross => self.left_across(),
                Form::RightAcross => self.right_across(),
                Form::RightAlong => self.right_along(),
            }
        }
    }

    /// All steps.
    ///
    /// # Safety
    /// As [`Self::step`].
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) unsafe fn finish(mut self) {
        // SAFETY: as this function.
        unsafe { self.run_to(self.padded.0) };
    }

    /// All steps up to a row of memory, in a loop for each form: then what a step changes is kept
    /// in registers.
    ///
    /// # Safety
    /// As [`Self::step`], up to a row that there is.
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) unsafe fn run_to(&mut self, end: usize) {
        debug_assert!(end <= self.padded.0, "{end} of {:?}", self.padded);
        // SAFETY: as this function.
        unsafe {
            match self.form {
                Form::LeftAlong => {
                    while self.row < end {
                        self.left_along()
                    }
                }
                Form::LeftAcross => {
                    while self.row < end {
                        self.left_across()
                    }
                }
                Form::RightAcross => {
                    while self.row < end {
                        self.right_across()
                    }
                }
                Form::RightAlong => {
                    while self.row < end {
                        self.right_along()
                    }
                }
            }
        }
    }

    /// Goes on behind ROWS x COLUMNS, having asked for as much further ahead: where many steps read
    /// the same lines of memory, each asks for its share of them.
    #[inline(always)]
    fn advance<const ROWS: usize, const COLUMNS: usize>(&mut self) {
        let shares = const { if COLUMNS < LANES { LANES / COLUMNS } else { 1 } };
        let first = self.row + self.column / COLUMNS % shares * (ROWS / shares);
        if !self.ahead.is_null() {
            for row in first..first + ROWS / shares {
                let ahead = Strided { start: self.ahead, ..self.source };
                simd::prefetch(ahead.at(row, self.column), COLUMNS);
            }
        }
        self.column += COLUMNS;
        if self.column == self.padded.1 {
            (self.row, self.column) = (self.row + ROWS, 0);
        }
    }

    /// Elements of a row of memory from a column on, and zeros.
    ///
    /// # Safety
    /// The operand must be readable.
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn load(&self, row: usize, column: usize) -> __m512i {
        let (rows, columns) = self.extent;
        let count = if row < rows { columns.saturating_sub(column) } else { 0 };
        let mask = if count < LANES { (1 << count) - 1 } else { u16::MAX };
        // SAFETY: what there is of the operand.
        unsafe { _mm512_maskz_loadu_epi32(mask, self.source.at(row, column).cast()) }
    }

    /// 4 columns of 16 rows of memory from a row on, each as a vector.
    ///
    /// # Safety
    /// The operand must be readable.
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn turned(&self, row: usize) -> [__m512i; QUAD] {
        let (rows, columns) = self.extent;
        // SAFETY: 16 rows of 4 elements, of the operand or of its edge.
        unsafe {
            if row + SIDE <= rows && self.column + QUAD <= columns {
                turned(self.source.offset(row, self.column))
            } else {
                turned(Strided::dense(self.edge(row).as_flattened(), QUAD))
            }
        }
    }

    /// The same rows where some elements are zeros behind the operand.
    ///
    /// # Safety
    /// The operand must be readable.
    #[cold]
    unsafe fn edge(&self, row: usize) -> [[f32; QUAD]; SIDE] {
        let (rows, columns) = self.extent;
        let mut edge = [[0.0; QUAD]; SIDE];
        for (index, edge) in edge.iter_mut().enumerate().take(rows.saturating_sub(row)) {
            let count = columns.saturating_sub(self.column);
            for (lane, element) in edge.iter_mut().enumerate().take(count) {
                // SAFETY: what there is of the operand.
                *element = unsafe { *self.source.at(row + index, self.column + lane) };
            }
        }
        edge
    }

    /// Writes cells of each part, so many cells apart.
    ///
    /// # Safety
    /// The room must be writable there.
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn write(&self, start: usize, part: usize, cells: Cells) {
        for (index, cells) in cells.into_iter().enumerate() {
            let to = self.room.wrapping_add(start + index * part);
            // SAFETY: as this function.
            unsafe { _mm512_storeu_si512(to.cast(), cells) };
        }
    }

    /// Writes 16 cells of a row of the left operand, from an element of k on.
    ///
    /// # Safety
    /// The room must be writable.
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn write_left(&self, row: usize, k: usize, cells: Cells) {
        // SAFETY: as this function.
        unsafe { self.write(row * self.stride + k / RUN * PARTS * SIDE, SIDE, cells) }
    }

    /// Writes the cell that starts at an element of k, of 16 columns of the right operand.
    ///
    /// # Safety
    /// The room must be writable.
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn write_right(&self, k: usize, column: usize, cells: Cells) {
        let (depth, all) = match self.form {
            Form::RightAlong => (self.padded.1, self.padded.0),
            _ => self.padded,
        };
        let first = column / self.stride * self.stride;
        let width = self.stride.min(all - first);
        let run = first * (depth / RUN) + k / RUN * width;
        let start = run * PARTS * SIDE + k % RUN / 2 * width + column - first;
        // SAFETY: as this function.
        unsafe { self.write(start, SIDE * width, cells) }
    }

    /// # Safety
    /// As [`Self::step`], as for all of these.
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    unsafe fn left_along(&mut self) {
        let (row, k) = (self.row, self.column);
        // SAFETY: as this function.
        unsafe {
            let cells = pairs_of_neighbours(self.load(row, k), self.load(row, k + LANES));
            self.write_left(row, k, cells);
        }
        self.advance::<1, RUN>();
    }

    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    unsafe fn left_across(&mut self) {
        let (k, row) = (self.row, self.column);
        // SAFETY: as this function.
        unsafe {
            let (first, second) = (self.turned(k), self.turned(k + LANES));
            for (index, (first, second)) in first.into_iter().zip(second).enumerate() {
                self.write_left(row + index, k, pairs_of_neighbours(first, second));
            }
        }
        self.advance::<RUN, QUAD>();
    }

    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    unsafe fn right_across(&mut self) {
        let (k, column) = (self.row, self.column);
        // SAFETY: as this function.
        unsafe {
            let cells = pairs_of_both(self.load(k, column), self.load(k + 1, column));
            self.write_right(k, column, cells);
        }
        self.advance::<2, LANES>();
    }

    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    unsafe fn right_along(&mut self) {
        let (column, k) = (self.row, self.column);
        // SAFETY: as this function.
        unsafe {
            let [first, second, third, fourth] = self.turned(column);
            self.write_right(k, column, pairs_of_both(first, second));
            self.write_right(k + 2, column, pairs_of_both(third, fourth));
        }
        self.advance::<LANES, QUAD>();
    }
}

/// 4 columns of 16 rows, each as a vector: rows 4 i to 4 i + 3 in quarter i.
///
/// # Safety
/// The source must be readable over them.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn turned(source: Strided<f32>) -> [__m512i; QUAD] {
    // SAFETY: as this function.
    let row = |row: usize| unsafe { _mm_loadu_ps(source.at(row, 0)) };
    let every_fourth = |first: usize| {
        let rows = _mm512_castps128_ps512(row(first));
        let rows = _mm512_insertf32x4::<1>(rows, row(first + 4));
        let rows = _mm512_insertf32x4::<2>(rows, row(first + 8));
        _mm512_insertf32x4::<3>(rows, row(first + 12))
    };
    let [a, b, c, d] = [every_fourth(0), every_fourth(1), every_fourth(2), every_fourth(3)];
    let pairs = [
        (_mm512_unpacklo_ps(a, b), _mm512_unpacklo_ps(c, d)),
        (_mm512_unpackhi_ps(a, b), _mm512_unpackhi_ps(c, d)),
    ];
    let [(a, b), (c, d)] = pairs.map(|(a, b)| (_mm512_castps_pd(a), _mm512_castps_pd(b)));
    [
        _mm512_castpd_si512(_mm512_unpacklo_pd(a, b)),
        _mm512_castpd_si512(_mm512_unpackhi_pd(a, b)),
        _mm512_castpd_si512(_mm512_unpacklo_pd(c, d)),
        _mm512_castpd_si512(_mm512_unpackhi_pd(c, d)),
    ]
}
