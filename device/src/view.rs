//! Borrowed ranges of buffers.
#![allow(unsafe_code)] // the words of a view

use std::marker::PhantomData;
use std::ops::Range;

use crate::{Element, Place};

/// Elements in some place, borrowed.
#[derive(Debug, Clone, Copy)]
pub struct View<'a, E: Element> {
    elements: Elements<'a, E>,
}

/// Elements in some place, borrowed to be written.
#[derive(Debug)]
pub struct ViewMut<'a, E: Element> {
    elements: ElementsMut<'a, E>,
}

#[derive(Debug, Clone, Copy)]
enum Elements<'a, E> {
    Host(&'a [E]),
    Cuda(CudaRange, PhantomData<&'a [E]>),
}

#[derive(Debug)]
enum ElementsMut<'a, E> {
    Host(&'a mut [E]),
    Cuda(CudaRange, PhantomData<&'a mut [E]>),
}

/// Elements in the memory of a CUDA device: an address that the host cannot read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CudaRange {
    pub(crate) address: u64,
    /// Length in elements.
    pub(crate) len: usize,
    pub(crate) ordinal: usize,
}

impl CudaRange {
    /// Range of the elements, which have this size.
    fn slice(self, range: &Range<usize>, element_bytes: usize) -> Self {
        let len = self.len;
        assert!(range.start <= range.end && range.end <= len, "{range:?} of {len} elements");
        let address = self.address + (range.start * element_bytes) as u64;
        Self { address, len: range.len(), ..self }
    }
}

impl<'a, E: Element> View<'a, E> {
    pub(crate) fn on_cuda(range: CudaRange) -> Self {
        Self { elements: Elements::Cuda(range, PhantomData) }
    }

    /// Length in elements.
    pub fn len(self) -> usize {
        match self.elements {
            Elements::Host(host) => host.len(),
            Elements::Cuda(range, _) => range.len,
        }
    }

    /// Returns whether there are no elements.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Place of the elements.
    pub fn place(self) -> Place {
        match self.elements {
            Elements::Host(_) => Place::Host,
            Elements::Cuda(range, _) => Place::Cuda { ordinal: range.ordinal },
        }
    }

    /// The elements, which are in the host's memory.
    ///
    /// # Panics
    /// Panics if they are on another device.
    pub fn host(self) -> &'a [E] {
        match self.elements {
            Elements::Host(host) => host,
            Elements::Cuda(range, _) => panic!("{range:?} is not in the host's memory"),
        }
    }

    /// The address of the first element in the memory of a CUDA device.
    ///
    /// # Panics
    /// Panics if the elements are in the host's memory.
    pub fn cuda_address(self) -> u64 {
        match self.elements {
            Elements::Cuda(range, _) => range.address,
            Elements::Host(_) => panic!("elements in the host's memory were given to CUDA"),
        }
    }

    /// Detaches the elements from the lifetime of their owner.
    ///
    /// # Safety
    /// While the result or a copy of it is used, the elements are neither changed nor freed.
    pub unsafe fn without_owner(self) -> View<'static, E> {
        // SAFETY: only the lifetime differs, and the caller answers for that.
        unsafe { std::mem::transmute::<Self, View<'static, E>>(self) }
    }

    /// Range of the elements.
    ///
    /// # Panics
    /// Panics if the range does not lie inside.
    #[must_use]
    pub fn slice(self, range: Range<usize>) -> Self {
        let elements = match self.elements {
            Elements::Host(host) => Elements::Host(&host[range]),
            Elements::Cuda(all, lifetime) => {
                Elements::Cuda(all.slice(&range, size_of::<E>()), lifetime)
            }
        };
        Self { elements }
    }
}

impl<'a, E: Element> ViewMut<'a, E> {
    pub(crate) fn on_cuda(range: CudaRange) -> Self {
        Self { elements: ElementsMut::Cuda(range, PhantomData) }
    }

    /// Length in elements.
    pub fn len(&self) -> usize {
        self.as_view().len()
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Place of the elements.
    pub fn place(&self) -> Place {
        self.as_view().place()
    }

    /// The elements, which are in the host's memory.
    ///
    /// # Panics
    /// Panics if they are on another device.
    pub fn host(self) -> &'a mut [E] {
        match self.elements {
            ElementsMut::Host(host) => host,
            ElementsMut::Cuda(range, _) => panic!("{range:?} is not in the host's memory"),
        }
    }

    /// The address of the first element in the memory of a CUDA device.
    ///
    /// # Panics
    /// Panics if the elements are in the host's memory.
    pub fn cuda_address(&self) -> u64 {
        self.as_view().cuda_address()
    }

    /// Converts to a read-only view of the elements.
    pub fn into_view(self) -> View<'a, E> {
        let elements = match self.elements {
            ElementsMut::Host(host) => Elements::Host(host),
            ElementsMut::Cuda(range, _) => Elements::Cuda(range, PhantomData),
        };
        View { elements }
    }

    /// Borrows a read-only view of the elements.
    pub fn as_view(&self) -> View<'_, E> {
        let elements = match &self.elements {
            ElementsMut::Host(host) => Elements::Host(host),
            ElementsMut::Cuda(range, _) => Elements::Cuda(*range, PhantomData),
        };
        View { elements }
    }

    /// Borrows the elements for a shorter time.
    pub fn reborrow(&mut self) -> ViewMut<'_, E> {
        let elements = match &mut self.elements {
            ElementsMut::Host(host) => ElementsMut::Host(host),
            ElementsMut::Cuda(range, _) => ElementsMut::Cuda(*range, PhantomData),
        };
        ViewMut { elements }
    }

    /// Range of the elements.
    ///
    /// # Panics
    /// Panics if the range does not lie inside.
    #[must_use]
    pub fn slice(self, range: Range<usize>) -> Self {
        let elements = match self.elements {
            ElementsMut::Host(host) => ElementsMut::Host(&mut host[range]),
            ElementsMut::Cuda(all, lifetime) => {
                ElementsMut::Cuda(all.slice(&range, size_of::<E>()), lifetime)
            }
        };
        Self { elements }
    }

    /// The elements before `middle`, and the rest.
    ///
    /// # Panics
    /// Panics if there are fewer.
    #[must_use]
    pub fn split_at(self, middle: usize) -> (Self, Self) {
        match self.elements {
            ElementsMut::Host(host) => {
                let (before, after) = host.split_at_mut(middle);
                (before.into(), after.into())
            }
            ElementsMut::Cuda(all, _) => {
                let part = |range| Self::on_cuda(all.slice(&range, size_of::<E>()));
                (part(0..middle), part(middle..all.len))
            }
        }
    }
}

impl<'a> ViewMut<'a, f64> {
    /// Reinterprets the words as integers: kernels write both kinds of numbers to one buffer, so
    /// that the host reads it once.
    pub fn into_words(self) -> ViewMut<'a, u64> {
        match self.elements {
            ElementsMut::Host(host) => {
                let start = host.as_mut_ptr().cast();
                // SAFETY: both types have 8 bytes and one alignment, every pattern is valid for
                // both, and the borrow continues.
                unsafe { std::slice::from_raw_parts_mut(start, host.len()) }.into()
            }
            ElementsMut::Cuda(range, _) => ViewMut::on_cuda(range),
        }
    }
}

impl<'a> ViewMut<'a, f32> {
    /// Reinterprets the elements as bytes, as they are in files.
    pub fn into_bytes(self) -> ViewMut<'a, u8> {
        match self.elements {
            ElementsMut::Host(host) => {
                let start = host.as_mut_ptr().cast();
                // SAFETY: bytes need no alignment, every pattern is valid for both types, the size
                // is the same, and the borrow continues.
                unsafe { std::slice::from_raw_parts_mut(start, size_of_val(host)) }.into()
            }
            ElementsMut::Cuda(range, _) => {
                ViewMut::on_cuda(CudaRange { len: range.len * size_of::<f32>(), ..range })
            }
        }
    }
}

impl<E: Element> Default for ViewMut<'_, E> {
    fn default() -> Self {
        Self { elements: ElementsMut::Host(&mut []) }
    }
}

impl<'a, E: Element> From<&'a [E]> for View<'a, E> {
    fn from(host: &'a [E]) -> Self {
        Self { elements: Elements::Host(host) }
    }
}

impl<'a, E: Element> From<&'a mut [E]> for ViewMut<'a, E> {
    fn from(host: &'a mut [E]) -> Self {
        Self { elements: ElementsMut::Host(host) }
    }
}

impl<'a, E: Element, const N: usize> From<&'a mut [E; N]> for ViewMut<'a, E> {
    fn from(host: &'a mut [E; N]) -> Self {
        host.as_mut_slice().into()
    }
}

impl<'a, E: Element> From<&'a mut Vec<E>> for ViewMut<'a, E> {
    fn from(host: &'a mut Vec<E>) -> Self {
        host.as_mut_slice().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_ranges_are_those_of_the_buffer() {
        let mut numbers = [0.0_f32, 1.0, 2.0, 3.0, 4.0, 5.0];
        let view: View<'_, f32> = numbers.as_slice().into();
        assert_eq!(view.slice(1..5).slice(1..3).host(), [2.0, 3.0]);
        let mut view: ViewMut<'_, f32> = numbers.as_mut_slice().into();
        view.reborrow().slice(4..6).host().fill(9.0);
        let (before, after) = view.split_at(2);
        assert_eq!((before.len(), after.host()), (2, &mut [2.0, 3.0, 9.0, 9.0][..]));
    }

    const RANGE: CudaRange = CudaRange { address: 1 << 40, len: 6, ordinal: 1 };

    #[test]
    fn ranges_on_a_device_are_addresses() {
        let view: View<'_, f32> = View::on_cuda(RANGE);
        let inner = view.slice(1..5).slice(1..3);
        assert_eq!((inner.cuda_address(), inner.len()), ((1 << 40) + 8, 2));
        assert_eq!(inner.place(), Place::Cuda { ordinal: 1 });
        let (before, after) = ViewMut::<'_, f64>::on_cuda(RANGE).split_at(2);
        assert_eq!((before.len(), after.len()), (2, 4));
        assert_eq!(after.cuda_address(), (1 << 40) + 16);
    }

    #[test]
    #[should_panic(expected = "3..7 of 6 elements")]
    fn a_range_beyond_a_device_s_buffer_is_refused() {
        let _ = View::<'_, f32>::on_cuda(RANGE).slice(3..7);
    }

    #[test]
    #[should_panic(expected = "not in the host's memory")]
    fn the_host_does_not_read_a_device_s_memory() {
        let _ = View::<'_, f32>::on_cuda(RANGE).host();
    }
}
