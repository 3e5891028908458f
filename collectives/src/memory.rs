//! Typed memory that is lent to a backend.
#![allow(unsafe_code)]

#[cfg(feature = "mpi")]
use std::ops::Range;
use std::ptr::NonNull;

use crate::Dtype;

mod sealed {
    pub trait Sealed {}
}

/// A type that buffers can have: plain bits, every pattern valid.
pub trait Element: Copy + Default + Send + Sync + sealed::Sealed + 'static {
    /// Its name at run time.
    const DTYPE: Dtype;
}

macro_rules! element {
    ($type:ty, $dtype:ident) => {
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const DTYPE: Dtype = Dtype::$dtype;
        }
    };
}
element!(u8, U8);
element!(half::bf16, Bf16);
element!(f32, F32);
element!(f64, F64);

/// A buffer without its lifetime: a pointer, a length and an element type.
///
/// Making one is harmless; lending it to [`Collective::submit`](crate::Collective::submit) is
/// where its validity is promised.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    pointer: NonNull<u8>,
    len: usize,
    dtype: Dtype,
}

// SAFETY: it is an address; whoever dereferences it relies on the promise made at `submit`.
unsafe impl Send for Memory {}

impl Memory {
    /// The memory of a slice.
    pub fn of<E: Element>(buffer: &mut [E]) -> Self {
        let len = buffer.len();
        Self { pointer: NonNull::from(buffer).cast(), len, dtype: E::DTYPE }
    }

    /// No memory, for a barrier.
    pub fn empty() -> Self {
        Self::of::<u8>(&mut [])
    }

    /// Some of the elements.
    #[cfg(feature = "mpi")]
    pub(crate) fn slice(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {self:?}");
        // SAFETY: inside the buffer or at its end.
        let pointer = unsafe { self.pointer.add(range.start * self.dtype.bytes()) };
        Self { pointer, len: range.len(), ..self }
    }

    /// Address of the first element.
    pub fn pointer(self) -> NonNull<u8> {
        self.pointer
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
