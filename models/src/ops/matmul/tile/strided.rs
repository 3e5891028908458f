//! Matrices in memory by address and strides.

/// A matrix in memory by its first element and two strides, in elements.
#[derive(Debug, Clone, Copy)]
pub(in crate::ops) struct Strided<T> {
    /// Element (0, 0).
    pub(in crate::ops) start: *const T,
    /// Distance of rows, in elements.
    pub(in crate::ops) row_stride: usize,
    /// Distance of columns, in elements.
    pub(in crate::ops) column_stride: usize,
}

// SAFETY: only an address; the caller that dereferences it is responsible for the access.
#[allow(unsafe_code)]
unsafe impl<T: Sync> Send for Strided<T> {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl<T: Sync> Sync for Strided<T> {}

impl<T: Copy> Strided<T> {
    /// Rows of `columns` elements, one after the other.
    pub(in crate::ops) fn dense(data: &[T], columns: usize) -> Self {
        Self { start: data.as_ptr(), row_stride: columns, column_stride: 1 }
    }

    /// Address of an element.
    #[inline(always)]
    pub(in crate::ops) fn at(self, row: usize, column: usize) -> *const T {
        self.start.wrapping_add(row * self.row_stride + column * self.column_stride)
    }

    /// The matrix that starts at an element of this one.
    #[inline(always)]
    pub(in crate::ops) fn offset(self, row: usize, column: usize) -> Self {
        Self { start: self.at(row, column), ..self }
    }

    /// Columns as rows.
    pub(in crate::ops) fn transposed(self) -> Self {
        Self { row_stride: self.column_stride, column_stride: self.row_stride, ..self }
    }

    /// Returns whether the elements of each row are contiguous.
    pub(in crate::ops) fn has_contiguous_rows(self) -> bool {
        self.column_stride == 1
    }
}
