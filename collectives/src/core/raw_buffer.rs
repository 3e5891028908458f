//! The address of a caller's buffer, without its lifetime.
#![allow(unsafe_code)]

use std::num::NonZero;
use std::ops::Range;
use std::ptr::NonNull;

use device::{Place, ViewMut};

use super::dtype::{Dtype, Element};

/// Address, place, length and element type of a buffer that a caller lends to a backend.
///
/// Making one is harmless. Its validity is promised where it is given to
/// [`Collective::submit`](crate::Collective::submit).
#[derive(Debug, Clone, Copy)]
pub struct RawBuffer {
    start: NonNull<u8>,
    place: Place,
    len: usize,
    dtype: Dtype,
}

// SAFETY: it is an address; whoever dereferences it relies on the promise made at `submit`.
unsafe impl Send for RawBuffer {}

impl RawBuffer {
    /// The address of a buffer.
    pub fn of<'a, E: Element>(buffer: impl Into<ViewMut<'a, E>>) -> Self {
        let buffer = buffer.into();
        let len = buffer.len();
        let place = buffer.place();
        let start = match place {
            Place::Host => NonNull::from(buffer.host()).cast(),
            // Of no elements CUDA has no address.
            _ => NonZero::new(buffer.cuda_address() as usize)
                .map_or(NonNull::dangling(), NonNull::without_provenance),
        };
        Self { start, place, len, dtype: E::DTYPE }
    }

    /// No elements, for a barrier.
    pub fn empty() -> Self {
        Self::of::<u8>(ViewMut::default())
    }

    /// A range of the elements.
    ///
    /// # Panics
    /// Panics if the range does not lie inside.
    pub(crate) fn slice(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {self:?}");
        let offset = range.start * self.dtype.bytes();
        let moved = |address: NonZero<usize>| address.checked_add(offset).expect("an address");
        let start = self.start.map_addr(moved);
        Self { start, len: range.len(), ..self }
    }

    /// Place of the elements.
    pub fn place(self) -> Place {
        self.place
    }

    /// Address of the first element, which the host can read only where that is its place.
    pub fn start(self) -> NonNull<u8> {
        self.start
    }

    /// Length in elements.
    pub fn len(self) -> usize {
        self.len
    }

    /// Returns whether there are no elements.
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
