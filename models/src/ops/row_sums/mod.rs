//! Sums over rows, computed together with other work on them, so that every row is read once.
//!
//! Each group of rows has partial sums of its own, which are added in their order: the bits depend
//! on the number of rows and not on that of threads.

pub(crate) mod cuda;

use device::{Allocator, DeviceBuffer};
use rayon::prelude::*;

use super::{COLUMN_CHUNK, Float, simd};

/// Rows that one task sums.
pub(super) const GROUP_ROWS: usize = 32;

/// Partial sums of every group of rows.
#[derive(Debug)]
pub struct RowSums<T: Float> {
    partial: DeviceBuffer<T>,
}

impl<T: Float> RowSums<T> {
    /// Allocates sums for up to `rows` rows, each with `numbers` numbers to sum.
    pub fn new(allocator: &Allocator, rows: usize, numbers: usize) -> Self {
        Self { partial: allocator.zeros(elements(rows, numbers)) }
    }

    /// The partial sums of `rows` rows, group by group; they hold values of an earlier use.
    ///
    /// # Panics
    /// Panics if it was made for fewer.
    pub(super) fn partial(&mut self, rows: usize, numbers: usize) -> &mut [T] {
        let needed = elements(rows, numbers);
        let len = self.partial.len();
        assert!(needed <= len, "{needed} partial sums, made for {len}");
        &mut self.partial.host_mut()[..needed]
    }
}

/// Elements of all groups.
fn elements(rows: usize, numbers: usize) -> usize {
    rows.div_ceil(GROUP_ROWS) * numbers
}

/// Adds the groups' partial sums, `numbers` each, from the `first` number on to `totals`.
pub(super) fn add_partial<T: Float>(totals: &mut [T], partial: &[T], numbers: usize, first: usize) {
    totals.par_chunks_mut(COLUMN_CHUNK).enumerate().for_each(|(chunk, totals)| {
        simd::vectorize(
            #[inline(always)]
            || {
                let mut sums = [T::ZERO; COLUMN_CHUNK];
                let start = first + chunk * COLUMN_CHUNK;
                for group in partial.chunks_exact(numbers) {
                    let group = &group[start..][..totals.len()];
                    for (sum, &value) in sums.iter_mut().zip(group) {
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
