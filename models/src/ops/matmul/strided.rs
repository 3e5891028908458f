//! Matrices in memory by address and strides.

/// A matrix in memory by its first element and two strides, in elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Strided<T> {
    /// Element (0, 0).
    pub(crate) start: *const T,
    /// From one row to the next.
    pub(crate) row: usize,
    /// From one column to the next.
    pub(crate) column: usize,
}

// SAFETY: only an address; whoever dereferences it answers for the access.
#[allow(unsafe_code)]
unsafe impl<T: Sync> Send for Strided<T> {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl<T: Sync> Sync for Strided<T> {}

impl<T: Copy> Strided<T> {
    /// Rows of `columns` elements, one after the other.
    pub(crate) fn dense(data: &[T], columns: usize) -> Self {
        Self { start: data.as_ptr(), row: columns, column: 1 }
    }

    /// Address of an element.
    #[inline(always)]
    pub(crate) fn at(self, row: usize, column: usize) -> *const T {
        self.start.wrapping_add(row * self.row + column * self.column)
    }

    /// The matrix that starts at an element of this one.
    #[inline(always)]
    pub(crate) fn offset(self, row: usize, column: usize) -> Self {
        Self { start: self.at(row, column), ..self }
    }

    /// Columns as rows.
    pub(crate) fn transposed(self) -> Self {
        Self { row: self.column, column: self.row, ..self }
    }
}
