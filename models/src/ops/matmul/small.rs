//! Small products of operands that are packed already: no blocking, no threads, no epilogue.

#![allow(unsafe_code)]

use super::kernel::{Kernel, Left, Target};
use crate::ops::Float;

/// A product whose operands fit the first two caches.
#[derive(Debug, Clone, Copy)]
pub(in crate::ops) struct Small<W> {
    /// Rows and columns of the target, and cells along k, as the kernel counts them.
    pub(in crate::ops) shape: (usize, usize, usize),
    /// The left operand in cells.
    pub(in crate::ops) left: Left<W>,
    /// The right operand as [`super::pack::right`] makes it.
    pub(in crate::ops) right: *const W,
    /// Where sums go; each row has room for whole vectors.
    pub(in crate::ops) target: Target<W>,
}

impl<W: Float> Small<W> {
    /// Multiplies.
    ///
    /// # Safety
    /// Operands must be readable and the target writable over the shape, the latter the caller's
    /// alone.
    pub(in crate::ops) unsafe fn run(&self, kernel: &Kernel<W>) {
        let (rows, columns, steps) = self.shape;
        for (index, column) in (0..columns).step_by(kernel.panel()).enumerate() {
            let vectors = kernel.panel().min(columns - column).div_ceil(kernel.lanes);
            let right = self.right.wrapping_add(index * kernel.panel() * steps);
            for row in (0..rows).step_by(kernel.rows) {
                let shape = (kernel.rows.min(rows - row), vectors, steps);
                let start = self.target.start.wrapping_add(row * self.target.row + column);
                let target = Target { start, ..self.target };
                let start = self.left.start.wrapping_byte_add(row * self.left.row_bytes);
                let left = Left { start, ..self.left };
                // SAFETY: a part of this product.
                unsafe { kernel.multiply(target, shape, left, right) };
            }
        }
    }
}
