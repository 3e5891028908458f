//! Division of C among threads.

use std::ops::Range;

use super::extent::{Extent, ProductShape};
use crate::ops::matmul::tile::Kernel;
use crate::ops::{Element, Float};

/// Time to pack an element of B, in multiplications with AVX-512.
const RIGHT_COST: usize = 32;
/// Time to pack an element of A.
const PACKED_LEFT_COST: usize = 48;
/// Time to load an element of A that is read in place.
const IN_PLACE_LEFT_COST: usize = 8;

/// A part of C: the rows x columns that one thread computes.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) rows: Range<usize>,
    pub(super) columns: Range<usize>,
}

impl Part {
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty() || self.columns.is_empty()
    }
}

/// C divided into rows x columns parts of whole tiles, one part for each thread.
#[derive(Debug, Clone, Copy)]
pub(super) struct ThreadGrid {
    shape: ProductShape,
    rows: usize,
    columns: usize,
    part_rows: usize,
    part_columns: usize,
}

impl ThreadGrid {
    /// The division among `threads` whose largest part has the least cost.
    pub(super) fn new<E: Element>(
        extent: &Extent,
        kernel: &Kernel<E::Wide>,
        threads: usize,
    ) -> Self {
        let of_rows = |rows| Self::of_rows(extent.shape, kernel, rows, threads / rows);
        let packs_left = extent.packs_left::<E>(kernel);
        let left_cost = if packs_left { PACKED_LEFT_COST } else { IN_PLACE_LEFT_COST };
        let divisions = (1..=threads).filter(|rows| threads.is_multiple_of(*rows)).map(of_rows);
        divisions.min_by_key(|grid| grid.cost(left_cost)).unwrap_or_else(|| of_rows(1))
    }

    fn of_rows<W: Float>(
        shape: ProductShape,
        kernel: &Kernel<W>,
        rows: usize,
        columns: usize,
    ) -> Self {
        let whole_tiles =
            |len: usize, tile: usize, parts| len.div_ceil(tile).div_ceil(parts) * tile;
        Self {
            shape,
            rows,
            columns,
            part_rows: whole_tiles(shape.m, kernel.rows, rows),
            part_columns: whole_tiles(shape.n, kernel.panel_columns(), columns),
        }
    }

    /// Multiplications per step along k of the largest part, and what packing costs.
    fn cost(&self, left_cost: usize) -> usize {
        let Self { part_rows, part_columns, .. } = *self;
        part_rows * part_columns + RIGHT_COST * part_columns + left_cost * part_rows
    }

    /// The part of one thread, empty where there is less to do than there are threads.
    pub(super) fn part(&self, thread: usize) -> Part {
        debug_assert!(thread < self.rows * self.columns, "thread {thread} of {self:?}");
        let ProductShape { m, n, .. } = self.shape;
        let row = thread / self.columns * self.part_rows;
        let column = thread % self.columns * self.part_columns;
        Part {
            rows: row.min(m)..(row + self.part_rows).min(m),
            columns: column.min(n)..(column + self.part_columns).min(n),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::matmul::kernels;

    #[test]
    fn every_element_is_in_one_part() {
        let kernel = kernels::best::<f32>();
        for (m, n) in [(1, 1), (5, 200), (300, 70), (1000, 1000)] {
            let extent = Extent {
                shape: ProductShape { m, n, k: 100 },
                left_has_contiguous_rows: true,
                output_is_narrow: false,
            };
            for threads in [1, 2, 3, 4, 12] {
                let grid = ThreadGrid::new::<f32>(&extent, kernel, threads);
                let mut counts = vec![0; m * n];
                for part in (0..threads).map(|thread| grid.part(thread)) {
                    for row in part.rows {
                        counts[row * n..][part.columns.clone()].iter_mut().for_each(|c| *c += 1);
                    }
                }
                assert!(counts.iter().all(|&count| count == 1), "{m} x {n} on {threads} threads");
            }
        }
    }
}
