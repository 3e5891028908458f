//! Operands and result of a micro-kernel, by address and strides.

/// Extent of a tile.
#[derive(Debug, Clone, Copy)]
pub(in crate::ops) struct TileShape {
    /// Rows of C.
    pub(in crate::ops) rows: usize,
    /// Vectors along each row of C.
    pub(in crate::ops) vectors: usize,
    /// Steps along k.
    pub(in crate::ops) steps: usize,
}

/// The destination of a tile of sums: whole vectors in each row.
#[derive(Debug, Clone, Copy)]
pub(in crate::ops) struct Target<W> {
    /// First element.
    pub(in crate::ops) start: *mut W,
    /// Distance of rows, in elements.
    pub(in crate::ops) row_stride: usize,
    /// Adds the sums to the elements that are there.
    pub(in crate::ops) accumulate: bool,
}

/// Rows of A in packed elements.
#[derive(Debug, Clone, Copy)]
pub(in crate::ops) struct Left<W> {
    /// The first packed element; need not be aligned.
    pub(in crate::ops) start: *const W,
    /// Distance of rows, in bytes.
    pub(in crate::ops) row_bytes: usize,
    /// Distance of steps, in bytes.
    pub(in crate::ops) step_bytes: usize,
}

impl<W> Left<W> {
    /// Returns the operand from a row and a step on.
    #[inline(always)]
    pub(in crate::ops) fn offset(self, rows: usize, steps: usize) -> Self {
        let bytes = rows * self.row_bytes + steps * self.step_bytes;
        Self { start: self.start.wrapping_byte_add(bytes), ..self }
    }
}
