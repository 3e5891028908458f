//! What becomes of finished sums: stored wide, or finished with an epilogue and narrowed.

#![allow(unsafe_code)]

use super::product::PANEL;
use crate::ops::{Element, gelu, simd};

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
    /// Multiplies with a matrix, element by element.
    Multiply(*const E),
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
}

impl<E: Element> Narrow<E> {
    fn offset(self, row: usize, column: usize) -> Self {
        let distance = row * self.row + column;
        let then = match self.then {
            Then::Store => Then::Store,
            Then::Add(other) => Then::Add(other.wrapping_add(distance)),
            Then::Multiply(other) => Then::Multiply(other.wrapping_add(distance)),
            Then::Gelu(activation) => Then::Gelu(activation.wrapping_add(distance)),
        };
        let bias = self.bias.map(|bias| bias.wrapping_add(column));
        Self { start: self.start.wrapping_add(distance), bias, then, ..self }
    }

    /// Finishes a tile of `width` columns: sums from `sums` on, rows `stride` apart, which may be
    /// changed.
    ///
    /// # Safety
    /// The sums and this output must be the caller's alone, the epilogue's operands readable.
    pub(super) unsafe fn finish(
        self,
        sums: *mut E::Wide,
        stride: usize,
        (rows, width): (usize, usize),
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
                        if width == PANEL {
                            output.finish_row(std::slice::from_raw_parts_mut(sums, PANEL));
                        } else {
                            output.finish_row(std::slice::from_raw_parts_mut(sums, width));
                        }
                    }
                }
            },
        );
    }

    /// # Safety
    /// As [`Self::finish`], for one row.
    #[inline(always)]
    unsafe fn finish_row(self, sums: &mut [E::Wide]) {
        let width = sums.len();
        // SAFETY: a row of an operand or of the output, by the caller's contract.
        let (read, write) = unsafe {
            (
                |start| std::slice::from_raw_parts::<E>(start, width),
                |start| std::slice::from_raw_parts_mut::<E>(start, width),
            )
        };
        if let Some(bias) = self.bias {
            for (sum, bias) in sums.iter_mut().zip(read(bias)) {
                *sum += bias.widen();
            }
        }
        match self.then {
            Then::Add(other) => {
                for (sum, other) in sums.iter_mut().zip(read(other)) {
                    *sum += other.widen();
                }
            }
            Then::Multiply(other) => {
                for (sum, other) in sums.iter_mut().zip(read(other)) {
                    *sum *= other.widen();
                }
            }
            Then::Store | Then::Gelu(_) => {}
        }
        let stored = write(self.start);
        for (stored, &sum) in stored.iter_mut().zip(&*sums) {
            *stored = E::narrow(sum);
        }
        if let Then::Gelu(activation) = self.then {
            for (activation, stored) in write(activation).iter_mut().zip(stored) {
                let x = stored.widen();
                *activation = E::narrow(x * gelu::gate(x));
            }
        }
    }
}
