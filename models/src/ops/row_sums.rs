//! Sums over rows, made beside other work on them, so that every row is read once.
//!
//! Each group of rows sums into a place of its own, and the places are added in their order: the
//! bits depend on the number of rows and not on that of threads.

use rayon::prelude::*;

use super::{COLUMN_CHUNK, Float, simd};

/// Rows that one task sums.
pub(super) const GROUP_ROWS: usize = 32;

/// A place for every group of rows.
#[derive(Debug)]
pub struct RowSums<T> {
    places: Vec<T>,
}

impl<T: Float> RowSums<T> {
    /// For up to so many rows, each with so many numbers to sum.
    pub fn new(rows: usize, numbers: usize) -> Self {
        Self { places: vec![T::ZERO; elements(rows, numbers)] }
    }

    /// Bytes of [`new`](Self::new).
    pub fn planned_bytes(rows: usize, numbers: usize) -> usize {
        elements(rows, numbers) * size_of::<T>()
    }

    /// The places of so many rows, one after the other: what is in them is of an earlier use.
    ///
    /// # Panics
    /// When it was made for less.
    pub(super) fn places(&mut self, rows: usize, numbers: usize) -> &mut [T] {
        let (needed, made) = (elements(rows, numbers), self.places.len());
        assert!(needed <= made, "places for {needed} sums, made for {made}");
        &mut self.places[..needed]
    }
}

/// All places together.
fn elements(rows: usize, numbers: usize) -> usize {
    rows.div_ceil(GROUP_ROWS) * numbers
}

/// Adds what every place holds from `first` on, a place being so many numbers, to `totals`.
pub(super) fn add_places<T: Float>(totals: &mut [T], places: &[T], numbers: usize, first: usize) {
    totals.par_chunks_mut(COLUMN_CHUNK).enumerate().for_each(|(chunk, totals)| {
        simd::vectorize(
            #[inline(always)]
            || {
                let mut sums = [T::ZERO; COLUMN_CHUNK];
                let start = first + chunk * COLUMN_CHUNK;
                for place in places.chunks_exact(numbers) {
                    let place = &place[start..][..totals.len()];
                    for (sum, &value) in sums.iter_mut().zip(place) {
                        *sum += value;
                    }
                }
                for (total, &sum) in totals.iter_mut().zip(&sums) {
                    *total += sum;
                }
            },
        );
    });
}
