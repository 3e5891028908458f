//! The blocked product of operands that are split into parts: beside the tiles of a strip of rows,
//! the next strip's rows are packed, and a share of the next block's right operand.

#![allow(unsafe_code)]

use super::beside::Beside;
use super::cut::RoomCells;
use super::kernel::{Kernel, Left};
use super::pack::of_singles;
use super::product::{Block, Product, Right};
use super::stepwise::Packing;
use super::strided::Strided;
use super::workspace::{Packs, Rooms};
use crate::ops::Element;

/// The first row of a strip, and the block that it is of.
type Strip<'a> = (&'a Block, usize);

/// The strip behind another, the first of the next block behind a block's last.
fn following<'a>(
    (block, row): Strip<'a>,
    next: Option<&'a Block>,
    rows: usize,
) -> Option<Strip<'a>> {
    let row = row + rows;
    if row < block.rows.end { Some((block, row)) } else { next.map(|next| (next, next.rows.start)) }
}

impl<E: Element> Product<E> {
    /// Multiplies blocks one after the other, in rooms for two strips of A and two blocks of B.
    ///
    /// # Safety
    /// As [`Self::run`]; before C is read, [`crate::ops::simd::fence`] must follow.
    pub(super) unsafe fn run_overlapped(
        &self,
        blocks: impl Iterator<Item = Block>,
        cells: RoomCells,
        packs: &mut Packs<E>,
    ) {
        let kernel = packs.kernel;
        let Rooms { left, right, sums } = packs.rooms();
        let (mut left, mut next_left) = left[..cells.left].split_at_mut(cells.left / 2);
        let (mut right, mut next_right) = right[..cells.right].split_at_mut(cells.right / 2);
        let mut blocks = blocks.peekable();
        if let Some(first) = blocks.peek() {
            // SAFETY: A and B are readable over the shape; nobody reads the rooms yet.
            unsafe {
                self.left_packing((first, first.rows.start), left, kernel).finish();
                self.right_packing(first, right, kernel).finish();
            }
        }
        while let Some(block) = blocks.next() {
            let next = blocks.peek();
            let mut beside = Beside::of_right(
                next.map_or_else(Packing::none, |of| self.right_packing(of, next_right, kernel)),
            );
            let panels = self.panels(&block, right.as_ptr(), kernel);
            let strips = block.rows.len().div_ceil(kernel.rows);
            for (index, row) in block.rows.clone().step_by(kernel.rows).enumerate() {
                let strip = following((&block, row), next, kernel.rows);
                let packing = strip.map_or_else(Packing::none, |strip| {
                    let packing = self.left_packing(strip, next_left, kernel);
                    let ahead = following(strip, next, kernel.rows).unwrap_or(strip);
                    packing.asking_for(self.left_of(ahead).start.cast())
                });
                beside.next_strip(packing, strips - index);
                let cell = size_of::<E::Wide>();
                let row_bytes = kernel.steps(block.depth.len()) * cell;
                let left_here = Left { start: left.as_ptr(), row_bytes, step_bytes: cell };
                let rows = row..block.rows.end.min(row + kernel.rows);
                // SAFETY: as this function; the packed copies stand for the operands, and those
                // that are made meanwhile are others.
                unsafe {
                    self.strip(rows, &block, panels, sums, kernel, |_, target, shape, panel| {
                        if block.waits() {
                            beside.next_sums(target.start.cast());
                        }
                        kernel.multiply_beside(target, shape, left_here, panel, &mut beside);
                    });
                    beside.finish();
                }
                std::mem::swap(&mut left, &mut next_left);
            }
            std::mem::swap(&mut right, &mut next_right);
        }
    }

    /// A from a strip's first row and column on.
    fn left_of(&self, (block, row): Strip<'_>) -> Strided<E> {
        self.left.offset(row, block.depth.start)
    }

    fn left_packing(
        &self,
        strip: Strip<'_>,
        room: &mut [E::Wide],
        kernel: &Kernel<E::Wide>,
    ) -> Packing {
        let (block, row) = strip;
        let (rows, depth) = (kernel.rows.min(block.rows.end - row), block.depth.len());
        let (room, source) = of_singles(room, self.left_of(strip));
        Packing::left(room, source, (rows, depth), kernel.steps(depth))
    }

    fn right_packing(
        &self,
        block: &Block,
        room: &mut [E::Wide],
        kernel: &Kernel<E::Wide>,
    ) -> Packing {
        let Right::Plain(right) = self.right else { return Packing::none() };
        let (depth, columns) = (block.depth.len(), block.columns.len());
        let source = right.offset(block.depth.start, block.columns.start);
        let (room, source) = of_singles(room, source);
        Packing::right(room, source, (depth, columns), (columns, kernel.panel()))
    }
}
