//! Division of a thread's part of C into blocks for its caches, and the buffers that these need.

use std::ops::Range;

use super::extent::Extent;
use super::grid::Part;
use crate::ops::Element;
use crate::ops::matmul::packing::{GATHER_ROWS, gathered_row_steps};
use crate::ops::matmul::tile::Kernel;

/// Longest block of k, in steps, where A is packed.
const LEFT_BLOCK_STEPS: usize = 384;
/// Most packed elements of a block of B: 576 KiB in f32 and bf16.
const RIGHT_BLOCK_ELEMENTS: usize = 384 * 384;
/// Most sums that are buffered until the next block of k: of 384 columns and half of 1,024 rows, in
/// whole tiles, so that two threads pack the head's table once for 1,024 tokens.
const BUFFERED_SUMS: usize = 516 * 384;

/// Storage of sums over a range of k until those over the rest of k are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PartialSums {
    /// In C itself, or no partial sums.
    InOutput,
    /// In a buffer for one tile high of rows: a block has all of k, in several slices.
    PerRowPanel,
    /// In a buffer for all rows of a block: further blocks of k follow.
    PerBlock,
}

/// Buffer sizes of a thread, in packed elements and in sums.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct BufferSizes {
    /// Buffer for packed rows of A.
    pub(super) left: usize,
    /// Buffer for panels of B.
    pub(super) right: usize,
    /// Buffer for partial sums.
    pub(super) sums: usize,
}

impl BufferSizes {
    pub(super) fn max(self, other: Self) -> Self {
        Self {
            left: self.left.max(other.left),
            right: self.right.max(other.right),
            sums: self.sums.max(other.sums),
        }
    }
}

/// The block sizes for one thread's part of C.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Blocking {
    /// Elements of k in a block (kc in the literature).
    k: usize,
    /// Columns of a block (nc).
    columns: usize,
    /// Rows of a block (mc).
    rows: usize,
    /// Elements of k in a slice, which is multiplied at once.
    k_slice: usize,
    partial_sums: PartialSums,
    pub(super) buffers: BufferSizes,
}

/// Length of even runs, multiples of `unit`, that divide `len` into as few as runs of up to `most`
/// would. Less than one unit counts as one.
fn even(len: usize, most: usize, unit: usize) -> usize {
    let runs = len.div_ceil((most / unit * unit).max(unit));
    len.div_ceil(runs).next_multiple_of(unit)
}

impl Blocking {
    /// Computes the blocking of a part of `rows` x `columns`, neither of them 0.
    ///
    /// Blocks of k depend only on k, so that every element of C is summed in the same order on any
    /// number of threads. Where A is packed they are shorter, so that there are fewer blocks of
    /// columns: A is packed again for each.
    pub(super) fn new<E: Element>(
        extent: &Extent,
        rows: usize,
        columns: usize,
        kernel: &Kernel<E::Wide>,
    ) -> Self {
        let k = extent.shape.k;
        let packs_left = extent.packs_left::<E>(kernel);
        let most = kernel.block_steps.min(if packs_left { LEFT_BLOCK_STEPS } else { usize::MAX });
        let block_steps = even_steps(kernel.steps(k), most, kernel.step_group);
        let slice_steps = even_steps(block_steps, kernel.slice_steps, kernel.step_group);
        let block_k = block_steps * kernel.k_group;
        let k_slice = slice_steps * kernel.k_group;

        let partial_sums = match extent.output_is_narrow || kernel.buffers_sums {
            true if k > block_k => PartialSums::PerBlock,
            true if k > k_slice => PartialSums::PerRowPanel,
            _ => PartialSums::InOutput,
        };
        let block_columns =
            even(columns, RIGHT_BLOCK_ELEMENTS / block_steps, kernel.panel_columns());
        let most = match partial_sums {
            PartialSums::PerBlock => BUFFERED_SUMS / block_columns,
            PartialSums::PerRowPanel | PartialSums::InOutput => rows.next_multiple_of(kernel.rows),
        };
        let block_rows = even(rows, most, kernel.rows);

        let width = block_columns.min(columns);
        let buffered_rows = match partial_sums {
            PartialSums::PerBlock => block_rows,
            PartialSums::PerRowPanel => kernel.rows,
            PartialSums::InOutput => 0,
        };
        let buffers = BufferSizes {
            left: if packs_left { GATHER_ROWS * gathered_row_steps(block_steps) } else { 0 },
            right: block_steps * width.next_multiple_of(kernel.lanes),
            sums: buffered_rows * width.next_multiple_of(kernel.panel_columns()),
        };
        Self {
            k: block_k,
            columns: block_columns,
            rows: block_rows,
            k_slice,
            partial_sums,
            buffers,
        }
    }

    /// The blocks of a thread's part of C, those along k one after the other.
    pub(super) fn blocks(self, part: Part, k: usize) -> impl Iterator<Item = Block> {
        let Part { rows, columns } = part;
        ranges(columns, self.columns).flat_map(move |columns| {
            ranges(rows.clone(), self.rows).flat_map(move |rows| {
                let columns = columns.clone();
                ranges(0..k, self.k).map(move |k| Block {
                    rows: rows.clone(),
                    columns: columns.clone(),
                    k,
                    k_slice: self.k_slice,
                    partial_sums: self.partial_sums,
                })
            })
        })
    }
}

/// Divides steps along k evenly, in whole groups, so that only the last block configures registers
/// anew.
fn even_steps(steps: usize, most: usize, group: usize) -> usize {
    steps.div_ceil(steps.div_ceil(most)).next_multiple_of(group)
}

/// A range, cut into ranges of up to `len`.
pub(super) fn ranges(range: Range<usize>, len: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(len).map(move |start| start..end.min(start + len))
}

/// Ranges of rows and columns of C, and of k.
#[derive(Debug, Clone)]
pub(super) struct Block {
    pub(super) rows: Range<usize>,
    pub(super) columns: Range<usize>,
    pub(super) k: Range<usize>,
    k_slice: usize,
    pub(super) partial_sums: PartialSums,
}

impl Block {
    /// The slices of k, one after the other.
    pub(super) fn slices(&self) -> impl Iterator<Item = Self> {
        ranges(self.k.clone(), self.k_slice).map(|k| Self { k, ..self.clone() })
    }

    /// Returns whether partial sums are kept in a buffer.
    pub(super) fn buffers_sums(&self) -> bool {
        self.partial_sums != PartialSums::InOutput
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::super::extent::ProductShape;
    use super::*;
    use crate::ops::matmul::kernels;

    fn blocks_depend_on_k_alone<E: Element>(kernel: &Kernel<E::Wide>, k: usize, is_narrow: bool) {
        for left_has_contiguous_rows in [true, false] {
            let extent = Extent {
                shape: ProductShape { m: 300, n: 300, k },
                left_has_contiguous_rows,
                output_is_narrow: is_narrow,
            };
            let what = format!("{kernel:?}, k = {k}");
            let blocking = Blocking::new::<E>(&extent, 300, 300, kernel);
            let of_small_part = Blocking::new::<E>(&extent, 1, 7, kernel);
            assert_eq!((of_small_part.k, of_small_part.k_slice), (blocking.k, blocking.k_slice));
            let unit = kernel.k_group * kernel.step_group;
            assert!(blocking.k.is_multiple_of(unit), "{what}");
            assert!(blocking.k <= kernel.block_steps * kernel.k_group, "{what}");
            assert!(blocking.k_slice.is_multiple_of(unit), "{what}");
            assert!(blocking.k_slice <= kernel.slice_steps * kernel.k_group, "{what}");
            assert!(blocking.k_slice <= blocking.k && blocking.columns > 0, "{what}");
            let is_buffered = k > blocking.k_slice && (is_narrow || kernel.buffers_sums);
            assert_eq!(blocking.buffers.sums > 0, is_buffered, "{what}");
        }
    }

    #[test]
    fn blocks_of_k_are_whole_registers_and_depend_on_k_alone() {
        for k in [1, 31, 385, 700, 769, 777, 1541, 17665] {
            for is_narrow in [true, false] {
                for kernel in kernels::pairs() {
                    blocks_depend_on_k_alone::<bf16>(kernel, k, is_narrow);
                }
                for kernel in kernels::singles() {
                    blocks_depend_on_k_alone::<f32>(kernel, k, is_narrow);
                }
            }
        }
    }
}
