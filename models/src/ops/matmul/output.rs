//! What becomes of finished sums: stored wide, or finished with an epilogue and narrowed.

#![allow(unsafe_code)]

use super::kernel::Target;
use super::product::{HALF_PANEL, PANEL};
use crate::ops::simd::{self, LANES, LINE_BYTES};
use crate::ops::{Element, Float, gelu};

/// Least size of a thread's part of a matrix that is written past the caches: little of it would
/// still be in the second one when it is read. Measured with two threads.
pub(super) const LARGE_BYTES: usize = 1 << 20;

/// Where the sums of a product go. All matrices here have rows of contiguous elements.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Output<E: Element> {
    /// As they are.
    Wide {
        /// First element.
        start: *mut E::Wide,
        /// From one row to the next, in elements.
        row: usize,
        /// Whether they are added to what is there.
        accumulate: bool,
    },
    /// Narrowed, after an epilogue.
    Narrow(Narrow<E>),
}

/// A matrix of elements, and what is done to sums on their way there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Narrow<E> {
    /// First element.
    pub(crate) start: *mut E,
    /// From one row to the next, in elements, here and in the matrices of the epilogue.
    pub(crate) row: usize,
    /// One element per column to be added first.
    pub(crate) bias: Option<*const E>,
    /// What is done then.
    pub(crate) then: Then<E>,
}

/// The second half of an epilogue, with the first element of its matrix.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Then<E> {
    /// Nothing.
    Store,
    /// Adds a matrix.
    Add(*const E),
    /// Multiplies with GELU's derivative at a matrix, element by element, and writes GELU of it in
    /// its place.
    GeluBackward(*mut E),
    /// Writes GELU of what is stored to a second matrix.
    Gelu(*mut E),
}

// SAFETY: only addresses; whoever dereferences them answers for the accesses.
unsafe impl<E: Element> Send for Output<E> {}
// SAFETY: as above.
unsafe impl<E: Element> Sync for Output<E> {}

impl<E: Element> Output<E> {
    /// Elements without an epilogue: an element that is its own wide type needs no narrowing.
    pub(crate) fn plain(start: *mut E, row: usize) -> Self {
        if size_of::<E>() == size_of::<E::Wide>() {
            return Self::Wide { start: start.cast(), row, accumulate: false };
        }
        Self::Narrow(Narrow { start, row, bias: None, then: Then::Store })
    }

    /// The same from an element on.
    pub(super) fn offset(self, row: usize, column: usize) -> Self {
        match self {
            Self::Wide { start, row: stride, accumulate } => {
                let start = start.wrapping_add(row * stride + column);
                Self::Wide { start, row: stride, accumulate }
            }
            Self::Narrow(narrow) => Self::Narrow(narrow.offset(row, column)),
        }
    }

    /// The same where wide sums are added to what is there.
    pub(super) fn adding(self) -> Self {
        match self {
            Self::Wide { start, row, .. } => Self::Wide { start, row, accumulate: true },
            narrow @ Self::Narrow(_) => narrow,
        }
    }

    /// Whether a part of so many elements is large for the caches.
    pub(super) fn is_large(self, elements: usize) -> bool {
        let cell = match self {
            Self::Wide { .. } => size_of::<E::Wide>(),
            Self::Narrow(_) => size_of::<E>(),
        };
        elements * cell >= LARGE_BYTES
    }

    /// Whether a tile of `width` columns is whole cache lines, of each matrix that would be
    /// written past the caches, to which nothing is added.
    pub(super) fn takes_whole_lines(self, width: usize) -> bool {
        let is_whole = |start: usize, row: usize, cell: usize| {
            [start, row * cell, width * cell].iter().all(|of| of.is_multiple_of(LINE_BYTES))
        };
        // A line of f64 is half of what is computed at once.
        width.is_multiple_of(LANES)
            && match self {
                Self::Wide { start, row, accumulate } => {
                    !accumulate && is_whole(start.addr(), row, size_of::<E::Wide>())
                }
                Self::Narrow(Narrow { start, row, then, .. }) => {
                    let second = if let Then::Gelu(second) = then { second } else { start };
                    [start, second].iter().all(|at| is_whole(at.addr(), row, size_of::<E>()))
                }
            }
    }

    /// Asks for what finishing a tile will read, and unless it writes past the caches for its place
    /// in the first matrix of two.
    pub(super) fn prefetch(self, (rows, width): (usize, usize), past: bool) {
        for row in 0..rows {
            match self.offset(row, 0) {
                Self::Wide { start, .. } if !past => simd::prefetch(start, width),
                Self::Wide { .. } => {}
                Self::Narrow(Narrow { start, then, .. }) => {
                    if !past {
                        simd::prefetch(start, width);
                    }
                    match then {
                        Then::Add(other) => simd::prefetch(other, width),
                        Then::GeluBackward(other) => simd::prefetch(other, width),
                        Then::Store | Then::Gelu(_) => {}
                    }
                }
            }
        }
    }

    /// Finishes a tile of `width` columns: sums from `sums` on, rows `stride` apart.
    ///
    /// # Safety
    /// The sums must be readable, as the epilogue's operands; this output, with every matrix that
    /// the epilogue writes, must be the caller's alone.
    /// Where `past` says that results go past the caches, they must be [`Self::takes_whole_lines`],
    /// and [`simd::fence`] must follow before they are read.
    pub(super) unsafe fn finish(
        self,
        (sums, stride): (*const E::Wide, usize),
        (rows, width): (usize, usize),
        past: bool,
    ) {
        // SAFETY: as this function.
        unsafe {
            match self {
                Self::Wide { start, row, accumulate } => {
                    let target = Target { start, row, accumulate };
                    write_tile(target, (sums, stride), (rows, width), past);
                }
                Self::Narrow(narrow) => narrow.finish((sums, stride), (rows, width), past),
            }
        }
    }
}

/// Writes or adds a tile as it is.
///
/// # Safety
/// As [`Output::finish`].
unsafe fn write_tile<W: Float>(
    target: Target<W>,
    (sums, stride): (*const W, usize),
    (rows, width): (usize, usize),
    past: bool,
) {
    simd::vectorize(
        #[inline(always)]
        || {
            for row in 0..rows {
                // SAFETY: a row of the tile and of C, by the caller's contract.
                let (to, from) = unsafe {
                    let to = target.start.wrapping_add(row * target.row);
                    let from = sums.wrapping_add(row * stride);
                    let from = std::slice::from_raw_parts(from, width);
                    (std::slice::from_raw_parts_mut(to, width), from)
                };
                if past {
                    // SAFETY: whole lines, by the caller's contract.
                    unsafe { simd::write_past(to.as_mut_ptr(), from) };
                    continue;
                }
                for (to, &from) in to.iter_mut().zip(from) {
                    *to = if target.accumulate { *to + from } else { from };
                }
            }
        },
    );
}

impl<E: Element> Narrow<E> {
    fn offset(self, row: usize, column: usize) -> Self {
        let distance = row * self.row + column;
        let then = match self.then {
            Then::Store => Then::Store,
            Then::Add(other) => Then::Add(other.wrapping_add(distance)),
            Then::GeluBackward(other) => Then::GeluBackward(other.wrapping_add(distance)),
            Then::Gelu(activation) => Then::Gelu(activation.wrapping_add(distance)),
        };
        let bias = self.bias.map(|bias| bias.wrapping_add(column));
        Self { start: self.start.wrapping_add(distance), bias, then, ..self }
    }

    /// The same of narrow elements.
    ///
    /// # Safety
    /// As [`Output::finish`].
    unsafe fn finish(
        self,
        (sums, stride): (*const E::Wide, usize),
        (rows, width): (usize, usize),
        past: bool,
    ) {
        simd::vectorize(
            #[inline(always)]
            || {
                for row in 0..rows {
                    let sums = sums.wrapping_add(row * stride);
                    let output = self.offset(row, 0);
                    // SAFETY: a row of the tile and of the output, by the caller's contract.
                    unsafe {
                        // A length that the compiler knows makes loops without ends.
                        match width {
                            PANEL => output.finish_row(sums, PANEL, past),
                            HALF_PANEL => output.finish_row(sums, HALF_PANEL, past),
                            _ => output.finish_row(sums, width, past),
                        }
                    }
                }
            },
        );
    }

    /// # Safety
    /// As [`Self::finish`], for one row.
    #[inline(always)]
    unsafe fn finish_row(self, sums: *const E::Wide, width: usize, past: bool) {
        let whole = width / LANES * LANES;
        // SAFETY: within the row.
        unsafe {
            for column in (0..whole).step_by(LANES) {
                self.offset(0, column).finish_run::<LANES>(sums.wrapping_add(column), past);
            }
            for column in whole..width {
                self.offset(0, column).finish_run::<1>(sums.wrapping_add(column), false);
            }
        }
    }

    /// Finishes a few columns of a row in registers: the compiler does not know that none of these
    /// places overlap.
    ///
    /// # Safety
    /// As [`Self::finish`], for N columns of one row.
    #[inline(always)]
    unsafe fn finish_run<const N: usize>(self, sums: *const E::Wide, past: bool) {
        // SAFETY: as this function.
        let read = |start: *const E| unsafe { start.cast::<[E; N]>().read_unaligned() };
        let write = |start: *mut E, values: [E; N]| {
            // SAFETY: as this function.
            unsafe {
                if past {
                    simd::write_past(start, &values);
                } else {
                    start.cast::<[E; N]>().write_unaligned(values);
                }
            }
        };
        // SAFETY: as this function.
        let mut sums = unsafe { sums.cast::<[E::Wide; N]>().read_unaligned() };
        if let Some(bias) = self.bias {
            let bias = read(bias);
            for lane in 0..N {
                sums[lane] += bias[lane].widen();
            }
        }
        match self.then {
            Then::Add(other) => {
                let other = read(other);
                for lane in 0..N {
                    sums[lane] += other[lane].widen();
                }
            }
            Then::GeluBackward(other) => {
                let mut values = read(other);
                for lane in 0..N {
                    let (value, slope) = gelu::with_slope(values[lane].widen());
                    sums[lane] *= slope;
                    values[lane] = E::narrow(value);
                }
                // Not past the caches: it was read just now.
                // SAFETY: as this function.
                unsafe { other.cast::<[E; N]>().write_unaligned(values) };
            }
            Then::Store | Then::Gelu(_) => {}
        }
        let mut stored = [E::ZERO; N];
        for lane in 0..N {
            stored[lane] = E::narrow(sums[lane]);
        }
        write(self.start, stored);
        if let Then::Gelu(activation) = self.then {
            for element in &mut stored {
                let x = element.widen();
                *element = E::narrow(x * gelu::gate(x));
            }
            write(activation, stored);
        }
    }
}
