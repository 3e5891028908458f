//! Allocators, and the ledger of the purposes of their memory.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::cuda::{self, Cuda};
use crate::host::HostMemory;
use crate::{Device, DeviceBuffer, Element};

/// Hands out zeroed buffers and records what they are for; or only records it.
///
/// A handle: clones, and those [for another purpose](Self::for_purpose), share one ledger.
#[derive(Debug, Clone)]
pub struct Allocator {
    purpose: &'static str,
    memory: Memory,
    ledger: Arc<Mutex<Ledger>>,
}

/// Place of new buffers.
#[derive(Debug, Clone)]
enum Memory {
    Host,
    Cuda(Cuda),
    /// Nowhere.
    Counting,
}

#[derive(Debug, Default)]
struct Ledger {
    items: Vec<Item>,
    /// The first allocation that a device refused.
    failure: Option<cuda::Error>,
}

/// One line of the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Purpose of the memory.
    pub purpose: &'static str,
    /// Bytes that were handed out for it.
    pub bytes: u64,
}

impl Allocator {
    /// Allocates in the host's memory.
    pub fn host() -> Self {
        Self::new(Memory::Host)
    }

    /// Allocates in the memory of a device. After a failure buffers have no memory: check
    /// [`Self::outcome`] when all have been made.
    pub fn cuda(device: &Cuda) -> Self {
        Self::new(Memory::Cuda(device.clone()))
    }

    /// Allocates nothing: buffers have a length and no memory. For plans.
    pub fn counting() -> Self {
        Self::new(Memory::Counting)
    }

    fn new(memory: Memory) -> Self {
        Self { purpose: "other", memory, ledger: Arc::default() }
    }

    /// The device in whose memory buffers are; the host for those of a plan.
    pub fn device(&self) -> Device {
        match &self.memory {
            Memory::Cuda(device) => Device::Cuda(device.clone()),
            Memory::Host | Memory::Counting => Device::Host,
        }
    }

    /// Returns whether buffers have no memory.
    pub fn is_counting(&self) -> bool {
        matches!(self.memory, Memory::Counting)
    }

    /// Checks that all buffers that a device was asked for have memory.
    ///
    /// # Errors
    /// The first allocation that failed.
    pub fn outcome(&self) -> Result<(), cuda::Error> {
        self.lock().failure.take().map_or(Ok(()), Err)
    }

    /// Returns this allocator, recording under another purpose.
    #[must_use]
    pub fn for_purpose(&self, purpose: &'static str) -> Self {
        Self { purpose, ..self.clone() }
    }

    /// A buffer of `len` zeros that starts at a cache line. Pages of large buffers are the system's
    /// zero page until they are written.
    ///
    /// Running out of the host's memory ends the process, as for every collection: plans are for
    /// knowing before. For a device's see [`Self::outcome`].
    pub fn zeros<E: Element>(&self, len: usize) -> DeviceBuffer<E> {
        let bytes = (len as u64).saturating_mul(size_of::<E>() as u64);
        self.record(bytes);
        match &self.memory {
            Memory::Host => DeviceBuffer::on_host(HostMemory::zeroed(len * size_of::<E>()), len),
            Memory::Cuda(device) => match device.zeroed(len * size_of::<E>()) {
                Ok(memory) => DeviceBuffer::on_cuda(memory, len),
                Err(error) => {
                    self.lock().failure.get_or_insert(error);
                    DeviceBuffer::counted(len)
                }
            },
            Memory::Counting => DeviceBuffer::counted(len),
        }
    }

    /// Records memory that something else allocates, such as a library.
    pub fn record(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let items = &mut self.lock().items;
        match items.iter_mut().find(|item| item.purpose == self.purpose) {
            Some(item) => item.bytes = item.bytes.saturating_add(bytes),
            None => items.push(Item { purpose: self.purpose, bytes }),
        }
    }

    /// Memory that was handed out so far, by purpose, in the order of first use.
    pub fn items(&self) -> Vec<Item> {
        self.lock().items.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that were handed out so far. A sum above 64 bits fits nowhere, and saturates.
    pub fn total_bytes(&self) -> u64 {
        self.items().iter().fold(0, |total: u64, item| total.saturating_add(item.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counting_records_what_allocating_does() {
        let build = |allocator: &Allocator| {
            let gradients = allocator.for_purpose("gradients");
            let weights = allocator.for_purpose("weights").zeros::<half::bf16>(7);
            (gradients.zeros::<f32>(100), weights, gradients.zeros::<f64>(2))
        };
        let (host, counting) = (Allocator::host(), Allocator::counting());
        let (built, counted) = (build(&host), build(&counting));
        let expected =
            [Item { purpose: "weights", bytes: 14 }, Item { purpose: "gradients", bytes: 416 }];
        assert_eq!(host.items(), expected);
        assert_eq!(counting.items(), expected);
        assert_eq!(counting.total_bytes(), 430);
        assert_eq!((built.0.len(), counted.0.len()), (100, 100));
    }

    #[test]
    fn sizes_beyond_64_bits_do_not_wrap() {
        let counting = Allocator::counting();
        counting.record(u64::MAX - 5);
        counting.zeros::<f64>(usize::MAX);
        assert_eq!(counting.total_bytes(), u64::MAX);
    }

    #[test]
    fn nothing_is_no_item() {
        let counting = Allocator::counting();
        counting.zeros::<f32>(0);
        assert_eq!(counting.items(), []);
    }
}
