//! Epilogue of a tile of finished sums: stored wide, or finished by post-ops and narrowed.

#![allow(unsafe_code)]

use crate::ops::matmul::tile::Target;
use crate::ops::simd::{self, LANES};
use crate::ops::{Element, Float, gelu};

/// Destination of a product's sums. All matrices here have rows of contiguous elements.
#[derive(Debug, Clone, Copy)]
pub(in crate::ops) enum Output<E: Element> {
    /// Stored as they are.
    Wide(Target<E::Wide>),
    /// Narrowed, after an epilogue.
    Narrow(NarrowOutput<E>),
}

/// A matrix of elements, and what is done to sums before they are stored there.
#[derive(Debug, Clone, Copy)]
pub(in crate::ops) struct NarrowOutput<E> {
    /// First element.
    pub(in crate::ops) start: *mut E,
    /// Distance of rows in elements, here and in the matrices of the post-op.
    pub(in crate::ops) row_stride: usize,
    /// One element per column to be added first.
    pub(in crate::ops) bias: Option<*const E>,
    /// Operation after that.
    pub(in crate::ops) post_op: PostOp<E>,
}

/// The second half of an epilogue, with the first element of its matrix.
#[derive(Debug, Clone, Copy)]
pub(in crate::ops) enum PostOp<E> {
    /// Nothing.
    None,
    /// Adds a matrix.
    Add(*const E),
    /// Multiplies by GELU's derivative at a matrix, element by element, and replaces the elements
    /// of that matrix by their GELU.
    GeluBackward(*mut E),
    /// Writes GELU of what is stored to a second matrix.
    Gelu(*mut E),
}

/// A tile of finished sums.
#[derive(Debug, Clone, Copy)]
pub(super) struct TileSums<W> {
    /// First sum.
    pub(super) start: *const W,
    /// Distance of rows, in sums.
    pub(super) row_stride: usize,
    pub(super) rows: usize,
    pub(super) columns: usize,
}

// SAFETY: only addresses; the caller that dereferences them is responsible for the accesses.
unsafe impl<E: Element> Send for Output<E> {}
// SAFETY: as above.
unsafe impl<E: Element> Sync for Output<E> {}

impl<E: Element> Output<E> {
    /// Elements without an epilogue: an element that is its own wide type needs no narrowing.
    pub(in crate::ops) fn plain(start: *mut E, row_stride: usize) -> Self {
        if size_of::<E>() == size_of::<E::Wide>() {
            return Self::Wide(Target { start: start.cast(), row_stride, accumulate: false });
        }
        Self::Narrow(NarrowOutput { start, row_stride, bias: None, post_op: PostOp::None })
    }

    /// Returns the output from an element on.
    pub(super) fn offset(self, row: usize, column: usize) -> Self {
        match self {
            Self::Wide(target) => {
                let start = target.start.wrapping_add(row * target.row_stride + column);
                Self::Wide(Target { start, ..target })
            }
            Self::Narrow(narrow) => Self::Narrow(narrow.offset(row, column)),
        }
    }

    /// Returns the output with wide sums added to the elements that are there.
    pub(super) fn adding(self) -> Self {
        match self {
            Self::Wide(target) => Self::Wide(Target { accumulate: true, ..target }),
            narrow @ Self::Narrow(_) => narrow,
        }
    }

    /// Finishes a tile.
    ///
    /// # Safety
    /// The sums must be readable, as the epilogue's operands; this output, with every matrix that
    /// the epilogue writes, must be the caller's alone.
    pub(super) unsafe fn finish(self, tile: TileSums<E::Wide>) {
        // SAFETY: as this function.
        unsafe {
            match self {
                Self::Wide(target) => store(target, tile),
                Self::Narrow(narrow) => narrow.finish(tile),
            }
        }
    }
}

/// Writes or adds a tile as it is.
///
/// # Safety
/// See [`Output::finish`].
unsafe fn store<W: Float>(target: Target<W>, tile: TileSums<W>) {
    simd::vectorize(
        #[inline(always)]
        || {
            for row in 0..tile.rows {
                // SAFETY: a row of the tile and of C, by the caller's contract.
                let (to, from) = unsafe {
                    let to = target.start.wrapping_add(row * target.row_stride);
                    let from = tile.start.wrapping_add(row * tile.row_stride);
                    let from = std::slice::from_raw_parts(from, tile.columns);
                    (std::slice::from_raw_parts_mut(to, tile.columns), from)
                };
                for (to, &from) in to.iter_mut().zip(from) {
                    *to = if target.accumulate { *to + from } else { from };
                }
            }
        },
    );
}

impl<E: Element> NarrowOutput<E> {
    fn offset(self, row: usize, column: usize) -> Self {
        let distance = row * self.row_stride + column;
        let post_op = match self.post_op {
            PostOp::None => PostOp::None,
            PostOp::Add(other) => PostOp::Add(other.wrapping_add(distance)),
            PostOp::GeluBackward(other) => PostOp::GeluBackward(other.wrapping_add(distance)),
            PostOp::Gelu(activation) => PostOp::Gelu(activation.wrapping_add(distance)),
        };
        let bias = self.bias.map(|bias| bias.wrapping_add(column));
        Self { start: self.start.wrapping_add(distance), bias, post_op, ..self }
    }

    /// # Safety
    /// See [`Output::finish`].
    unsafe fn finish(self, tile: TileSums<E::Wide>) {
        simd::vectorize(
            #[inline(always)]
            || {
                let whole_vectors = tile.columns / LANES * LANES;
                for row in 0..tile.rows {
                    let sums = tile.start.wrapping_add(row * tile.row_stride);
                    // SAFETY: a row of the tile and of the output, by the caller's contract.
                    unsafe {
                        for column in (0..whole_vectors).step_by(LANES) {
                            let sums = sums.wrapping_add(column);
                            self.offset(row, column).finish_columns::<LANES>(sums);
                        }
                        for column in whole_vectors..tile.columns {
                            self.offset(row, column).finish_columns::<1>(sums.wrapping_add(column));
                        }
                    }
                }
            },
        );
    }

    /// Finishes a few columns of a row in registers: the compiler does not know that none of these
    /// matrices overlap.
    ///
    /// # Safety
    /// See [`Output::finish`], for N columns of one row.
    #[inline(always)]
    unsafe fn finish_columns<const N: usize>(self, sums: *const E::Wide) {
        // SAFETY: as this function.
        let read = |start: *const E| unsafe { start.cast::<[E; N]>().read_unaligned() };
        let write = |start: *mut E, values: [E; N]| {
            // SAFETY: as this function.
            unsafe { start.cast::<[E; N]>().write_unaligned(values) };
        };
        // SAFETY: as this function.
        let mut sums = unsafe { sums.cast::<[E::Wide; N]>().read_unaligned() };
        if let Some(bias) = self.bias {
            let bias = read(bias);
            for lane in 0..N {
                sums[lane] += bias[lane].widen();
            }
        }
        match self.post_op {
            PostOp::Add(other) => {
                let other = read(other);
                for lane in 0..N {
                    sums[lane] += other[lane].widen();
                }
            }
            PostOp::GeluBackward(other) => {
                let mut values = read(other);
                for lane in 0..N {
                    let (value, slope) = gelu::with_slope(values[lane].widen());
                    sums[lane] *= slope;
                    values[lane] = E::narrow(value);
                }
                write(other, values);
            }
            PostOp::None | PostOp::Gelu(_) => {}
        }
        let mut stored = [E::ZERO; N];
        for lane in 0..N {
            stored[lane] = E::narrow(sums[lane]);
        }
        write(self.start, stored);
        if let PostOp::Gelu(activation) = self.post_op {
            for element in &mut stored {
                let x = element.widen();
                *element = E::narrow(x * gelu::gate(x));
            }
            write(activation, stored);
        }
    }
}
