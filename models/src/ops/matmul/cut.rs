//! How a product is cut into cells for threads and into blocks for caches, and the room that the
//! blocks take.

use std::ops::Range;

use super::gather::{WIDEST, room_steps};
use super::kernel::Kernel;
use super::pack::room_len;
use crate::ops::Element;

/// Longest run of k, in cells, of rows that are gathered.
const GATHERED: usize = 384;
/// Most cells of B that are packed at once: 576 KiB in f32 and bf16.
const RIGHT: usize = 384 * 384;
/// Most sums that wait for the next block of k: of 384 columns and half of 1,024 rows, in whole
/// tiles, so that two threads pack a table once for so many tokens.
const SUMS: usize = 516 * 384;

/// Most columns of a block of elements in parts, and rows of such sums of them: as many of each,
/// since both operands are split anew for every block.
const SQUARE: usize = 512;

/// A product as far as the room that it takes depends on it.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    /// m, n and k.
    pub(in crate::ops) shape: (usize, usize, usize),
    /// Whether k is contiguous in A.
    pub(in crate::ops) left_is_rows: bool,
    /// Whether B comes in panels.
    pub(in crate::ops) right_is_packed: bool,
    /// Whether sums are rounded once they are whole, so that they wait for it.
    pub(in crate::ops) is_narrow: bool,
}

impl Extent {
    /// Whether A is copied before it is read.
    pub(super) fn gathers<E: Element>(&self, kernel: &Kernel<E::Wide>) -> bool {
        !(self.left_is_rows && kernel.reads_rows::<E>(self.shape.2))
    }

    /// The cut of C into so many cells.
    pub(super) fn grid<E: Element>(&self, kernel: &Kernel<E::Wide>, parts: usize) -> Grid {
        let (m, n, _) = self.shape;
        Grid::choose((m, n), (kernel.rows, kernel.panel()), parts, !self.gathers::<E>(kernel))
    }
}

/// Where sums over a part of k wait for the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waiting {
    /// Nowhere: there are none, or C takes what is added.
    Nowhere,
    /// Where one strip of rows has room: a block has all of k.
    InStrip,
    /// Where all rows of a block have room: other blocks along k follow.
    InBlock,
}

/// How one cell of C is cut into blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    /// The elements of k, the columns and the rows of a block.
    pub(super) depth: usize,
    pub(super) columns: usize,
    pub(super) rows: usize,
    /// The run of k that is multiplied at once.
    pub(super) run: usize,
    pub(super) waiting: Waiting,
    /// What its blocks take.
    pub(super) cells: RoomCells,
}

/// Cells of each room.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct RoomCells {
    /// For rows of A that are gathered.
    pub(super) left: usize,
    /// For panels of B.
    pub(super) right: usize,
    /// For sums that wait for more of k.
    pub(super) sums: usize,
}

impl RoomCells {
    fn max(self, other: Self) -> Self {
        Self {
            left: self.left.max(other.left),
            right: self.right.max(other.right),
            sums: self.sums.max(other.sums),
        }
    }

    pub(super) fn bytes<W>(self) -> usize {
        let rooms = [self.left, self.right, self.sums].into_iter().filter(|&cells| cells > 0);
        rooms.map(room_len::<W>).sum::<usize>() * size_of::<W>()
    }
}

/// The least multiple of `unit` that cuts a length into as few runs as the largest up to `most`,
/// which counts as one unit where it is less.
fn even(len: usize, most: usize, unit: usize) -> usize {
    let runs = len.div_ceil((most / unit * unit).max(unit));
    len.div_ceil(runs).next_multiple_of(unit)
}

impl Cut {
    /// Of a cell with so many rows and columns, neither of them 0.
    ///
    /// Gathering A anew for each block of columns asks for fewer of those.
    pub(super) fn new<E: Element>(
        extent: &Extent,
        (rows, columns): (usize, usize),
        kernel: &Kernel<E::Wide>,
    ) -> Self {
        let k = extent.shape.2;
        let gathers = extent.gathers::<E>(kernel);
        let steps = k.div_ceil(kernel.group);
        let most = if gathers { kernel.depth.min(GATHERED) } else { kernel.depth };
        // Whole registers: only the last block shapes them anew.
        let steps = steps.div_ceil(steps.div_ceil(most)).next_multiple_of(kernel.row_cells);
        let depth = steps * kernel.group;
        let run = steps.div_ceil(steps.div_ceil(kernel.run)).next_multiple_of(kernel.row_cells);
        let run = run * kernel.group;
        let steps = kernel.steps(depth);
        let most = if kernel.takes_parts() { SQUARE } else { RIGHT / steps };
        let width = even(columns, most, kernel.panel());
        let waiting = match extent.is_narrow || kernel.sums_wait {
            true if k > depth => Waiting::InBlock,
            true if k > run => Waiting::InStrip,
            _ => Waiting::Nowhere,
        };
        let most = match waiting {
            Waiting::InBlock if kernel.takes_parts() => SQUARE,
            Waiting::InBlock => SUMS / width,
            Waiting::InStrip | Waiting::Nowhere => rows.next_multiple_of(kernel.rows),
        };
        let height = even(rows, most, kernel.rows);
        let waiting_rows = match waiting {
            Waiting::InBlock => height,
            Waiting::InStrip => kernel.rows,
            Waiting::Nowhere => 0,
        };
        let width_here = width.min(columns);
        let unless = |is: bool, cells| if is { 0 } else { cells };
        // Where packing overlaps products, the next strip and block are packed meanwhile.
        let (gathered, blocks) = if kernel.takes_parts() {
            (2 * kernel.rows * steps, 2)
        } else {
            (WIDEST * room_steps(steps), 1)
        };
        let right = blocks * steps * width_here.next_multiple_of(kernel.lanes());
        let cells = RoomCells {
            left: unless(!gathers, gathered),
            right: unless(extent.right_is_packed, right),
            sums: waiting_rows * width_here.next_multiple_of(kernel.panel()),
        };
        Self { depth, columns: width, rows: height, run, waiting, cells }
    }
}

/// The rooms that each of `parts` threads needs for all of some products.
pub(super) fn rooms<E: Element>(
    extents: &[Extent],
    kernel: &Kernel<E::Wide>,
    parts: usize,
) -> impl Iterator<Item = RoomCells> {
    let of = move |part, extent: &Extent| {
        let (m, n, _) = extent.shape;
        let (rows, columns) = extent.grid::<E>(kernel, parts).cell(part, (m, n));
        if rows.is_empty() || columns.is_empty() {
            return RoomCells::default();
        }
        Cut::new::<E>(extent, (rows.len(), columns.len()), kernel).cells
    };
    (0..parts).map(move |part| {
        extents.iter().map(|extent| of(part, extent)).fold(RoomCells::default(), RoomCells::max)
    })
}

/// C cut into rows x columns cells of whole tiles.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grid {
    rows: usize,
    columns: usize,
    cell_rows: usize,
    cell_columns: usize,
}

impl Grid {
    /// The cut into `parts` cells whose largest cell takes the least time: one multiplication per
    /// element of C, and with AVX-512 about 32 times that to pack an element of B. For one of A it
    /// is a quarter of that where A is read as it is, and more than that where it is gathered.
    fn choose((m, n): (usize, usize), tile: (usize, usize), parts: usize, in_place: bool) -> Self {
        let left = if in_place { 8 } else { 48 };
        let cut = |rows: usize| {
            let columns = parts / rows;
            let cell_rows = m.div_ceil(tile.0).div_ceil(rows) * tile.0;
            let cell_columns = n.div_ceil(tile.1).div_ceil(columns) * tile.1;
            Self { rows, columns, cell_rows, cell_columns }
        };
        let cost = |grid: &Self| {
            grid.cell_rows * grid.cell_columns + 32 * grid.cell_columns + left * grid.cell_rows
        };
        let cuts = (1..=parts).filter(|rows| parts.is_multiple_of(*rows)).map(cut);
        cuts.min_by_key(cost).unwrap_or_else(|| cut(1))
    }

    /// Rows and columns of a cell.
    pub(super) fn cell(&self, part: usize, (m, n): (usize, usize)) -> (Range<usize>, Range<usize>) {
        let row = part / self.columns * self.cell_rows;
        let column = part % self.columns * self.cell_columns;
        debug_assert!(part < self.rows * self.columns);
        (
            row.min(m)..(row + self.cell_rows).min(m),
            column.min(n)..(column + self.cell_columns).min(n),
        )
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::ops::matmul::detect;
    use crate::ops::matmul::{Epilogue, PackedWeight, Shape, Sums, Weight, Workspace};
    use crate::ops::matmul::{backward_input, backward_weight, forward};

    /// Bytes after all products of a layer.
    fn taken<E: Element>(shape: Shape, threads: usize, is_packed: bool) -> usize {
        let Shape { rows, inputs, outputs } = shape;
        let [mut x, mut y] = [inputs, outputs].map(|columns| vec![E::ZERO; rows * columns]);
        let weight = vec![E::ZERO; outputs * inputs];
        let mut panels = is_packed.then(|| PackedWeight::new(outputs, inputs));
        let mut workspace = Workspace::new(threads);
        let operand = Weight { rows: &weight, packed: panels.as_mut() };
        forward(&mut y, &x, operand, (None, Epilogue::Store), shape, &mut workspace);
        let operand = Weight { rows: &weight, packed: panels.as_mut() };
        backward_input(&mut x, &y, operand, None, shape, &mut workspace);
        let mut dweight = vec![E::Wide::default(); outputs * inputs];
        backward_weight(&mut dweight, &y, &x, Sums::Write, shape, &mut workspace);
        workspace.bytes()
    }

    fn all_is_planned<E: Element>() {
        let shapes = [(1, 5, 3), (70, 129, 400), (512, 128, 384), (97, 1700, 67), (777, 67, 35)];
        for (rows, inputs, outputs) in shapes {
            let shape = Shape { rows, inputs, outputs };
            for threads in [1, 2, 3, 8] {
                let [packed, plain] = [true, false].map(|is_packed| {
                    let planned =
                        Workspace::<E>::planned_bytes(threads, &shape.products(is_packed));
                    let taken = taken::<E>(shape, threads, is_packed);
                    assert_eq!(planned, taken, "{shape:?}, {threads} threads, {is_packed}");
                    planned
                });
                assert!(packed <= plain, "{shape:?}, {threads} threads");
            }
        }
    }

    #[test]
    fn products_take_the_room_that_is_planned() {
        all_is_planned::<f32>();
        all_is_planned::<bf16>();
    }

    #[test]
    fn blocks_of_k_are_whole_registers_and_depend_on_k_alone() {
        fn holds<E: Element>(kernel: &Kernel<E::Wide>, k: usize, is_narrow: bool) {
            let extent = |left_is_rows| Extent {
                shape: (300, 300, k),
                left_is_rows,
                right_is_packed: false,
                is_narrow,
            };
            for extent in [extent(true), extent(false)] {
                let cut = |cell| Cut::new::<E>(&extent, cell, kernel);
                let Cut { depth, run, columns, cells, .. } = cut((300, 300));
                let what = format!("{kernel:?}, k = {k}");
                assert!(depth.is_multiple_of(kernel.group * kernel.row_cells), "{what}");
                assert!(depth <= kernel.depth * kernel.group && columns > 0, "{what}");
                assert_eq!((cut((1, 7)).depth, cut((1, 7)).run), (depth, run), "{what}");
                assert!(run.is_multiple_of(kernel.group * kernel.row_cells), "{what}");
                assert!(run <= kernel.run * kernel.group && run <= depth, "{what}");
                let waits = k > run && (is_narrow || kernel.sums_wait);
                assert_eq!(cells.sums > 0, waits, "{what}");
            }
        }
        for k in [1, 31, 385, 700, 769, 777, 1541, 17665] {
            for kernel in detect::pairs() {
                holds::<bf16>(kernel, k, true);
                holds::<bf16>(kernel, k, false);
            }
            let kernels = detect::parts().iter().chain(detect::singles());
            for kernel in kernels {
                holds::<f32>(kernel, k, true);
                holds::<f32>(kernel, k, false);
            }
        }
    }

    #[test]
    fn room_is_neither_more_than_a_small_product_needs_nor_more_than_the_caches_hold() {
        let bytes = |rows, inputs, threads| {
            let shape = Shape { rows, inputs, outputs: inputs };
            Workspace::<f32>::planned_bytes(threads, &shape.products(false))
        };
        assert!(bytes(64, 64, 8) < 8 * (64 << 10), "{}", bytes(64, 64, 8));
        // Processors with AMX have 2 MiB of second cache; others' rooms are for 1 MiB.
        let most = if f32::kernel().takes_parts() { 2 << 20 } else { 3 << 19 };
        assert!(bytes(1 << 14, 1 << 12, 2) < 2 * most, "{}", bytes(1 << 14, 1 << 12, 2));
    }
}
