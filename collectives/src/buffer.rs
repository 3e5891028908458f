//! Buffers in memory that a backend reaches best.
#![allow(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::time::Instant;

use crate::{Collective, Element, Error};

/// Memory that a backend made: zeros at first, aligned to a page, valid as long as this lives.
pub struct Shared {
    pointer: NonNull<u8>,
    bytes: usize,
    _keeper: Arc<dyn Any + Send + Sync>,
}

// SAFETY: it is owned memory like a `Vec<u8>`; the backend touches it only as part of operations
// that it was lent to.
unsafe impl Send for Shared {}
// SAFETY: as above; nothing can be done through a shared reference.
unsafe impl Sync for Shared {}

impl Shared {
    /// The memory that `keeper` keeps.
    ///
    /// # Safety
    /// It is valid, aligned to a page, all zeros and nobody else's, except for what is done with
    /// buffers that are lent to the backend, as long as the keeper lives.
    #[cfg(any(feature = "mpi", test))]
    pub(crate) unsafe fn new(
        pointer: NonNull<u8>,
        bytes: usize,
        keeper: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self { pointer, bytes, _keeper: keeper }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Shared({} bytes)", self.bytes)
    }
}

/// Elements in memory that a backend reaches best; see `buffer` of `dyn Collective`.
#[derive(Debug)]
pub struct Buffer<E: Element> {
    inner: Inner<E>,
}

#[derive(Debug)]
enum Inner<E> {
    Own(Vec<E>),
    Shared(Shared, usize),
}

impl<E: Element> Buffer<E> {
    /// The first elements of a backend's memory.
    pub(crate) fn shared(memory: Shared, len: usize) -> Self {
        assert!(len * size_of::<E>() <= memory.bytes, "{len} elements in {memory:?}");
        Self { inner: Inner::Shared(memory, len) }
    }
}

impl<E: Element> From<Vec<E>> for Buffer<E> {
    /// Memory of this process alone.
    fn from(elements: Vec<E>) -> Self {
        Self { inner: Inner::Own(elements) }
    }
}

impl<E: Element> Deref for Buffer<E> {
    type Target = [E];

    fn deref(&self) -> &[E] {
        match &self.inner {
            Inner::Own(elements) => elements,
            // SAFETY: as many elements as were asked for; all bits are valid.
            Inner::Shared(shared, len) => unsafe {
                slice::from_raw_parts(shared.pointer.cast().as_ptr(), *len)
            },
        }
    }
}

impl<E: Element> DerefMut for Buffer<E> {
    fn deref_mut(&mut self) -> &mut [E] {
        match &mut self.inner {
            Inner::Own(elements) => elements,
            // SAFETY: as above, and borrowed exclusively.
            Inner::Shared(shared, len) => unsafe {
                slice::from_raw_parts_mut(shared.pointer.cast().as_ptr(), *len)
            },
        }
    }
}

impl dyn Collective + '_ {
    /// A buffer of zeros in memory that the backend reaches best: operations on it, or on slices of
    /// it at the same place on all ranks, are faster than on other memory, and otherwise the same.
    ///
    /// All ranks call this at the same time with the same length, and not often: the backend may
    /// keep the memory for as long as it lives itself.
    ///
    /// # Errors
    /// Those of [`Collective::share`].
    pub fn buffer<E: Element>(&self, len: usize, deadline: Instant) -> Result<Buffer<E>, Error> {
        Ok(match self.share(len * size_of::<E>(), deadline)? {
            Some(shared) => Buffer::shared(shared, len),
            None => vec![E::default(); len].into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Single;

    #[test]
    fn a_backend_without_memory_of_its_own_takes_any() {
        let group: &dyn Collective = &Single::new();
        let mut buffer = group.buffer::<f64>(3, Instant::now()).unwrap();
        buffer[1] = 2.0;
        assert_eq!(buffer[..], [0.0, 2.0, 0.0]);
    }
}
