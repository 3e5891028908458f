//! Who allocates, and the ledger of what it was for.

use std::sync::{Arc, Mutex, PoisonError};

use crate::host::HostMemory;
use crate::{DeviceBuffer, Element};

/// Hands out zeroed buffers and records what they are for; or only records it.
///
/// A handle: clones, and those [for another purpose](Self::for_purpose), share one ledger.
#[derive(Debug, Clone)]
pub struct Allocator {
    purpose: &'static str,
    is_counting: bool,
    ledger: Arc<Mutex<Vec<Item>>>,
}

/// One line of the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// What the memory is for.
    pub purpose: &'static str,
    /// All that was handed out for it.
    pub bytes: u64,
}

impl Allocator {
    /// Allocates in the host's memory.
    pub fn host() -> Self {
        Self::new(false)
    }

    /// Allocates nothing: buffers have a length and no memory. For plans.
    pub fn counting() -> Self {
        Self::new(true)
    }

    fn new(is_counting: bool) -> Self {
        Self { purpose: "other", is_counting, ledger: Arc::default() }
    }

    /// Whether buffers have no memory.
    pub fn is_counting(&self) -> bool {
        self.is_counting
    }

    /// The same allocator, recording under this purpose.
    #[must_use]
    pub fn for_purpose(&self, purpose: &'static str) -> Self {
        Self { purpose, ..self.clone() }
    }

    /// A buffer of `len` zeros that starts at a cache line. Pages of large buffers are the system's
    /// zero page until they are written.
    ///
    /// Running out of memory ends the process, as for every collection: plans are for knowing
    /// before.
    pub fn zeros<E: Element>(&self, len: usize) -> DeviceBuffer<E> {
        let bytes = (len as u64).saturating_mul(size_of::<E>() as u64);
        self.record(bytes);
        if self.is_counting {
            return DeviceBuffer::counted(len);
        }
        DeviceBuffer::on_host(HostMemory::zeroed(len * size_of::<E>()), len)
    }

    /// Records memory that something else allocates, such as a library.
    pub fn record(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        match ledger.iter_mut().find(|item| item.purpose == self.purpose) {
            Some(item) => item.bytes = item.bytes.saturating_add(bytes),
            None => ledger.push(Item { purpose: self.purpose, bytes }),
        }
    }

    /// What was handed out so far by purpose, in the order in which each was first needed.
    pub fn items(&self) -> Vec<Item> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// All that was handed out so far. What exceeds 64 bits fits nowhere, and stays so.
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
