//! Parameters of the suite for a backend, and the data that it uses.

use std::time::{Duration, Instant};

use device::Allocator;

use crate::{Collective, Element, Error, Incoming};

/// Parameters of a backend for the suite.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// The backend's limit of one message in elements: some buffers are longer.
    pub message_elements_max: usize,
    /// Timeout of every operation.
    pub timeout: Duration,
    /// The node of each rank, by any numbers, where ranks of a node share memory. Empty: all are on
    /// one node, or each is alone.
    pub nodes: &'static [usize],
    /// All sums are by node, in whatever memory and on whatever channel.
    pub sums_by_node: bool,
    /// All operations of a rank on the data channel have one order, also those of different groups.
    /// It must be the same on all ranks, and a message is matched by it and not by its tag.
    pub has_one_order: bool,
}

impl Terms {
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.timeout
    }

    /// Lengths to test: none, one, an uneven one, exactly one message, and several messages and a
    /// rest.
    pub(super) fn lens(&self) -> [usize; 5] {
        let message = self.message_elements_max;
        [0, 1, 7, message, 3 * message + 17]
    }
}

/// The value of a result that must be a success.
pub(super) fn expect_ok<T>(collective: &dyn Collective, what: &str, result: Result<T, Error>) -> T {
    result.unwrap_or_else(|error| {
        panic!("{what} on rank {} ({}): {error}", collective.rank(), collective.backend())
    })
}

/// Value of rank `rank` at `index`: small integers, so that sums are exact.
pub(super) fn value(rank: usize, index: usize) -> u8 {
    ((index * 7 + rank * 3) % 31) as u8
}

/// A rank's elements.
pub(super) fn filled<E: From<u8>>(rank: usize, len: usize) -> Vec<E> {
    (0..len).map(|index| E::from(value(rank, index))).collect()
}

/// A copy of these elements, for operations in flight.
pub(super) fn incoming<'world, E: Element>(
    collective: &'world dyn Collective,
    elements: &[E],
) -> Incoming<'world, E> {
    let buffer = Allocator::host().zeros(elements.len());
    Incoming::new(collective, buffer.filled(|to| to.copy_from_slice(elements)))
}

/// The exact sum over all ranks at an index.
pub(super) fn exact_sum(world: usize, index: usize) -> f64 {
    (0..world).map(|rank| f64::from(value(rank, index))).sum()
}
