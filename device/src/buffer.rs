//! Buffers that own their memory.
#![allow(unsafe_code)] // slices of owned memory

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use crate::cuda::CudaMemory;
use crate::host::HostMemory;
use crate::{Element, Place, View, ViewMut};

/// Owner that keeps foreign memory valid, such as a mapping of a file.
pub type Keeper = Arc<dyn Any + Send + Sync>;

/// `len` elements in one place, zeros at first. Starts at a cache line, on CUDA at 256 bytes.
pub struct DeviceBuffer<E: Element> {
    memory: Memory,
    len: usize,
    element: PhantomData<E>,
}

enum Memory {
    /// Memory of this process alone.
    Host(HostMemory),
    /// Memory made and kept by another owner.
    External { start: NonNull<u8>, _keeper: Keeper },
    /// Memory of a CUDA device. Shared only with keepers.
    Cuda(Arc<CudaMemory>),
    /// No memory: only its size was counted.
    Counted,
}

// SAFETY: it is owned memory like a `Vec<E>`; what a keeper keeps was promised to be.
unsafe impl<E: Element> Send for DeviceBuffer<E> {}
// SAFETY: as above; nothing is changed through a shared reference.
unsafe impl<E: Element> Sync for DeviceBuffer<E> {}

impl<E: Element> DeviceBuffer<E> {
    pub(crate) fn on_host(memory: HostMemory, len: usize) -> Self {
        Self { memory: Memory::Host(memory), len, element: PhantomData }
    }

    pub(crate) fn on_cuda(memory: CudaMemory, len: usize) -> Self {
        Self { memory: Memory::Cuda(Arc::new(memory)), len, element: PhantomData }
    }

    pub(crate) fn counted(len: usize) -> Self {
        Self { memory: Memory::Counted, len, element: PhantomData }
    }

    /// Buffer over host memory that another owner made and `keeper` keeps.
    ///
    /// # Safety
    /// While the keeper lives, `start` is valid for `len` elements, aligned for them, and used by
    /// nobody else except through what this buffer lends.
    pub unsafe fn from_keeper(start: NonNull<E>, len: usize, keeper: Keeper) -> Self {
        Self {
            memory: Memory::External { start: start.cast(), _keeper: keeper },
            len,
            element: PhantomData,
        }
    }

    /// Length in elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Place of the memory; `None` where only its size was counted.
    pub fn place(&self) -> Option<Place> {
        match &self.memory {
            Memory::Host(_) | Memory::External { .. } => Some(Place::Host),
            Memory::Cuda(memory) => Some(Place::Cuda { ordinal: memory.device().ordinal() }),
            Memory::Counted => None,
        }
    }

    /// Keeps memory of a CUDA device valid after this buffer, for a library that has registered
    /// it; `None` elsewhere.
    pub fn cuda_keeper(&self) -> Option<Keeper> {
        match &self.memory {
            Memory::Cuda(memory) => Some(memory.clone()),
            _ => None,
        }
    }

    /// The elements.
    ///
    /// # Panics
    /// Panics if they are not in the host's memory.
    pub fn host(&self) -> &[E] {
        // SAFETY: owned and initialized memory of this length; every pattern of bits is valid.
        unsafe { slice::from_raw_parts(self.start().as_ptr(), self.len) }
    }

    /// The elements, to be written.
    ///
    /// # Panics
    /// Panics if they are not in the host's memory.
    pub fn host_mut(&mut self) -> &mut [E] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.start().as_ptr(), self.len) }
    }

    /// Runs `fill` on the elements, unless only their size was counted: for constructors that
    /// write constants, which a plan runs as well. Elements of a device are filled on the host and
    /// copied.
    ///
    /// # Panics
    /// Panics if the copy fails.
    #[must_use]
    pub fn filled(mut self, fill: impl FnOnce(&mut [E])) -> Self {
        match &self.memory {
            Memory::Host(_) | Memory::External { .. } => fill(self.host_mut()),
            Memory::Cuda(memory) => {
                let device = memory.device().clone();
                let mut elements = vec![E::default(); self.len];
                fill(&mut elements);
                let written = device.write(self.view_mut(), &elements);
                written.unwrap_or_else(|error| panic!("filling {self:?}: {error}"));
            }
            Memory::Counted => {}
        }
        self
    }

    /// Borrows all elements.
    ///
    /// # Panics
    /// Panics if only their size was counted.
    pub fn view(&self) -> View<'_, E> {
        match &self.memory {
            Memory::Cuda(memory) => View::on_cuda(memory.range(self.len)),
            _ => self.host().into(),
        }
    }

    /// Borrows all elements for writing.
    ///
    /// # Panics
    /// Panics if only their size was counted.
    pub fn view_mut(&mut self) -> ViewMut<'_, E> {
        match &self.memory {
            Memory::Cuda(memory) => ViewMut::on_cuda(memory.range(self.len)),
            _ => self.host_mut().into(),
        }
    }

    fn start(&self) -> NonNull<E> {
        match &self.memory {
            Memory::Host(memory) => memory.start().cast(),
            Memory::External { start, .. } => start.cast(),
            Memory::Cuda(_) => panic!("{self:?} is not in the host's memory"),
            Memory::Counted => panic!("{self:?} is of a plan: it has no memory"),
        }
    }
}

impl<E: Element> fmt::Debug for DeviceBuffer<E> {
    /// Without the elements, which may be many.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = match &self.memory {
            Memory::Host(_) => "host",
            Memory::External { .. } => "host, kept",
            Memory::Cuda(_) => "CUDA",
            Memory::Counted => "counted",
        };
        let element = std::any::type_name::<E>();
        write!(formatter, "DeviceBuffer<{element}>({} elements, {memory})", self.len)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Allocator, DeviceBuffer, LINE_BYTES, Place};

    /// Sizes on either side of that from which blocks are mapped.
    #[test]
    fn buffers_are_zeros_from_a_cache_line_on_and_keep_what_is_written() {
        for len in [0, 1, 17, (1 << 20) - 1, 1 << 20, (3 << 20) + 5] {
            let mut buffer: DeviceBuffer<f32> = Allocator::host().zeros(len);
            assert_eq!((buffer.len(), buffer.place()), (len, Some(Place::Host)));
            assert!(buffer.host().as_ptr().addr().is_multiple_of(LINE_BYTES), "{len}");
            assert!(buffer.host().iter().all(|value| value.to_bits() == 0), "{len}");
            buffer.host_mut().fill(1.5);
            assert!(buffer.host().iter().all(|&value| value == 1.5), "{len}");
        }
    }

    #[test]
    fn kept_memory_is_dropped_with_its_keeper() {
        use std::sync::Arc;
        let mut elements = Box::new([1_u32, 2, 3]);
        let start = std::ptr::NonNull::from(&mut *elements).cast();
        let keeper = Arc::new(());
        // SAFETY: `elements` outlives the buffer and is not used meanwhile.
        let mut buffer = unsafe { DeviceBuffer::<u32>::from_keeper(start, 3, keeper.clone()) };
        buffer.host_mut()[1] = 7;
        assert_eq!((buffer.host(), Arc::strong_count(&keeper)), (&[1, 7, 3][..], 2));
        drop(buffer);
        assert_eq!(Arc::strong_count(&keeper), 1);
        assert_eq!(elements[1], 7);
    }

    #[test]
    fn constructors_fill_what_has_memory() {
        let ones = |allocator: Allocator| allocator.zeros::<f32>(3).filled(|all| all.fill(1.0));
        assert_eq!(ones(Allocator::host()).host(), [1.0; 3]);
        assert_eq!(ones(Allocator::counting()).place(), None);
    }

    #[test]
    #[should_panic(expected = "is of a plan")]
    fn a_plan_s_buffers_have_no_elements() {
        let _ = Allocator::counting().zeros::<f32>(3).host();
    }
}
