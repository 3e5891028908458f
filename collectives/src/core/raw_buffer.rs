//! The address of a caller's buffer, without its lifetime.
#![allow(unsafe_code)]

#[cfg(feature = "mpi")]
use std::ops::Range;
use std::ptr::NonNull;

use super::dtype::{Dtype, Element};

/// Address, length and element type of a buffer that a caller lends to a backend.
///
/// Making one is harmless. Its validity is promised where it is given to
/// [`Collective::submit`](crate::Collective::submit).
#[derive(Debug, Clone, Copy)]
pub struct RawBuffer {
    start: NonNull<u8>,
    len: usize,
    dtype: Dtype,
}

// SAFETY: it is an address; whoever dereferences it relies on the promise made at `submit`.
unsafe impl Send for RawBuffer {}

impl RawBuffer {
    /// The address of a slice.
    pub fn of<E: Element>(buffer: &mut [E]) -> Self {
        let len = buffer.len();
        Self { start: NonNull::from(buffer).cast(), len, dtype: E::DTYPE }
    }

    /// No elements, for a barrier.
    pub fn empty() -> Self {
        Self::of::<u8>(&mut [])
    }

    /// A range of the elements.
    ///
    /// # Panics
    /// When the range does not lie inside.
    #[cfg(feature = "mpi")]
    pub(crate) fn slice(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {self:?}");
        // SAFETY: inside the buffer or at its end.
        let start = unsafe { self.start.add(range.start * self.dtype.bytes()) };
        Self { start, len: range.len(), ..self }
    }

    /// Address of the first element.
    pub fn start(self) -> NonNull<u8> {
        self.start
    }

    /// Length in elements.
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Element type.
    pub fn dtype(self) -> Dtype {
        self.dtype
    }

    /// Size in bytes.
    pub fn bytes(self) -> usize {
        self.len * self.dtype.bytes()
    }
}
