//! Buffers in the memory that a backend reaches best.
#![allow(unsafe_code)]

use std::time::Instant;

use device::{Allocator, Device, DeviceBuffer};

use super::collective::{BackendMemory, Collective};
use super::dtype::Element;
use super::error::Error;
use super::raw_buffer::RawBuffer;

impl dyn Collective + '_ {
    /// A buffer of zeros in the memory that the backend reaches best: operations on ranges of it
    /// are faster than on other memory. A backend without memory of its own leaves it to the
    /// allocator. Memory of a device is always the allocator's, and the backend
    /// [registers](Collective::register) it.
    ///
    /// All ranks call this at the same time with the same length, and pass the same range of the
    /// buffer to an operation. Call it at start-up, not in every step: the backend may keep the
    /// memory for as long as it lives itself.
    ///
    /// With a [counting](Allocator::counting) allocator nothing is communicated, and the buffer has
    /// no memory.
    ///
    /// # Errors
    /// Those of [`Collective::allocate`].
    pub fn buffer<E: Element>(
        &self,
        allocator: &Allocator,
        len: usize,
        deadline: Instant,
    ) -> Result<DeviceBuffer<E>, Error> {
        if allocator.is_counting() {
            return Ok(allocator.zeros(len));
        }
        if matches!(allocator.device(), Device::Cuda(_)) {
            return Ok(self.registered(allocator.zeros(len)));
        }
        let bytes = len * size_of::<E>();
        let Some(BackendMemory { start, keeper }) = self.allocate(bytes, deadline)? else {
            return Ok(allocator.zeros(len));
        };
        allocator.record(bytes as u64);
        // SAFETY: `allocate` promises zeroed bytes at a page boundary that nobody else uses but
        // through operations on this buffer.
        Ok(unsafe { DeviceBuffer::from_keeper(start.cast(), len, keeper) })
    }

    /// Registers a buffer of a device and returns it, unless there was no memory for it.
    fn registered<E: Element>(&self, mut buffer: DeviceBuffer<E>) -> DeviceBuffer<E> {
        if let Some(keeper) = buffer.cuda_keeper()
            && !buffer.is_empty()
        {
            self.register(RawBuffer::of(buffer.view_mut()), keeper);
        }
        buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Single, Threads};

    #[test]
    fn a_backend_without_memory_of_its_own_uses_the_allocator() {
        let group: &dyn Collective = &Single::new();
        let allocator = Allocator::host();
        let mut buffer = group.buffer::<f64>(&allocator, 3, Instant::now()).unwrap();
        buffer.host_mut()[1] = 2.0;
        assert_eq!(buffer.host(), [0.0, 2.0, 0.0]);
        assert_eq!(allocator.total_bytes(), 24);
    }

    /// One rank of two alone: it would wait for the other if it communicated.
    #[test]
    fn a_plan_counts_the_buffer_and_communicates_nothing() {
        let ranks = Threads::group(2);
        let group: &dyn Collective = &ranks[0];
        let plan = Allocator::counting();
        let buffer = group.buffer::<half::bf16>(&plan, 1 << 40, Instant::now()).unwrap();
        assert_eq!((buffer.len(), buffer.place()), (1 << 40, None));
        assert_eq!(plan.total_bytes(), 2 << 40);
    }
}
