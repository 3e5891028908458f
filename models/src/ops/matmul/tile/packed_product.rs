//! A product of operands that are packed already: no blocking, no threads, no epilogue.

#![allow(unsafe_code)]

use super::kernel::Kernel;
use super::operands::{Left, Target, TileShape};
use crate::ops::Float;

/// A product whose operands fit the first two levels of cache.
#[derive(Debug, Clone, Copy)]
pub(in crate::ops) struct PackedProduct<W> {
    /// Rows of the target.
    pub(in crate::ops) rows: usize,
    /// Columns of the target.
    pub(in crate::ops) columns: usize,
    /// Steps along k.
    pub(in crate::ops) steps: usize,
    /// The left operand.
    pub(in crate::ops) left: Left<W>,
    /// The right operand in panels.
    pub(in crate::ops) right: *const W,
    /// Destination of the sums; its rows hold whole vectors.
    pub(in crate::ops) target: Target<W>,
}

impl<W: Float> PackedProduct<W> {
    /// Multiplies, tile by tile.
    ///
    /// # Safety
    /// Operands must be readable and the target writable over the shape, the latter the caller's
    /// alone.
    pub(in crate::ops) unsafe fn run(&self, kernel: &Kernel<W>) {
        for (index, column) in (0..self.columns).step_by(kernel.panel_columns()).enumerate() {
            let width = kernel.panel_columns().min(self.columns - column);
            let vectors = width.div_ceil(kernel.lanes);
            let right = self.right.wrapping_add(index * kernel.panel_columns() * self.steps);
            for row in (0..self.rows).step_by(kernel.rows) {
                let rows = kernel.rows.min(self.rows - row);
                let shape = TileShape { rows, vectors, steps: self.steps };
                let start = self.target.start.wrapping_add(row * self.target.row_stride + column);
                let target = Target { start, ..self.target };
                // SAFETY: a part of this product.
                unsafe { kernel.multiply(target, shape, self.left.offset(row, 0), right) };
            }
        }
    }
}
