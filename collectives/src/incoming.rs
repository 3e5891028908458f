//! A buffer of which ranges are under way while others are used.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;
use std::time::Instant;

use crate::{Buffer, Channel, Collective, Element, Error, Memory, OUTSTANDING_MAX, Operation};
use crate::{Ticket, Timing};

/// A buffer with the operations on ranges of it that are under way. Unlike those of a
/// [`scope`](crate::scope) they may outlive the function that started them: what they write to is
/// owned here. After construction nothing is allocated.
///
/// While an operation on it is under way, a range can be neither read nor written; all others can.
/// After an operation failed nothing can.
///
/// Dropping this waits for all operations as the end of a scope does, and leaves the memory alone
/// for ever if it is [at risk](Collective::memory_at_risk). Forgetting it only leaks.
pub struct Incoming<'world, E: Element> {
    collective: &'world dyn Collective,
    /// Keeps the memory, and is not looked at: it gives slices of everything, and these must not
    /// exist while the backend writes to some of it.
    buffer: ManuallyDrop<Buffer<E>>,
    first: NonNull<E>,
    len: usize,
    /// In the order of their starts; no range lies in another.
    under_way: VecDeque<(Range<usize>, Ticket)>,
    has_failed: bool,
}

// SAFETY: it owns its elements like a `Buffer`, which is `Send`; the backend is `Sync`.
unsafe impl<E: Element> Send for Incoming<'_, E> {}
// SAFETY: shared references read elements that nobody writes; the backend is `Sync`.
unsafe impl<E: Element> Sync for Incoming<'_, E> {}

impl<'world, E: Element> Incoming<'world, E> {
    /// A buffer on which nothing is under way.
    pub fn new(collective: &'world dyn Collective, mut buffer: Buffer<E>) -> Self {
        let elements: &mut [E] = &mut buffer;
        let (first, len) = (NonNull::from(&mut *elements).cast(), elements.len());
        let under_way = VecDeque::with_capacity(OUTSTANDING_MAX);
        let buffer = ManuallyDrop::new(buffer);
        Self { collective, buffer, first, len, under_way, has_failed: false }
    }

    /// Length in elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether an operation on any of these elements is under way.
    pub fn is_under_way(&self, range: &Range<usize>) -> bool {
        self.position(range).is_some()
    }

    /// Starts an operation on a range, on the data channel; does not block.
    ///
    /// # Errors
    /// Those of [`Collective::submit`]; [`Error::Full`] also when [`OUTSTANDING_MAX`] operations
    /// are under way here.
    ///
    /// # Panics
    /// Like [`get`](Self::get).
    pub fn start(&mut self, operation: Operation, range: Range<usize>) -> Result<(), Error> {
        let collective = self.collective;
        if self.under_way.len() == OUTSTANDING_MAX {
            let (rank, capacity) = (collective.rank(), OUTSTANDING_MAX);
            return Err(Error::Full { operation, rank, capacity });
        }
        let memory = Memory::of(self.get_mut(range.clone()));
        // SAFETY: the memory lives until `drop` has waited for the ticket, which is kept from here
        // on, and for ever if waiting did not help. Until then `get` and `get_mut` give nothing of
        // the range, and nothing else looks at the memory.
        let ticket = unsafe { collective.submit(Channel::Data, operation, memory) }?;
        self.under_way.push_back((range, ticket));
        Ok(())
    }

    /// Waits for every operation that touches a range, in the order of their starts, and tells when
    /// each ran. Free where none does.
    ///
    /// # Errors
    /// Those of [`Collective::wait`]; [`Error::Dead`] after an earlier failure.
    pub fn wait(
        &mut self,
        range: &Range<usize>,
        deadline: Instant,
        mut tell: impl FnMut(Timing),
    ) -> Result<(), Error> {
        if self.has_failed {
            let (backend, rank) = (self.collective.backend(), self.collective.rank());
            let reason = "an operation on the same buffer failed".into();
            return Err(Error::Dead { backend, rank, reason });
        }
        while let Some((_, ticket)) = self.position(range).and_then(|at| self.under_way.remove(at))
        {
            let outcome = self.collective.wait(ticket, deadline);
            self.has_failed = outcome.is_err();
            tell(outcome?);
        }
        Ok(())
    }

    /// The elements of a range.
    ///
    /// # Panics
    /// When the range does not lie inside the buffer, when an operation on it is under way, and
    /// after a failure.
    pub fn get(&self, range: Range<usize>) -> &[E] {
        let first = self.checked(&range);
        // SAFETY: inside the buffer, which lives as long as this; its elements are written by no
        // operation, and by nobody else while this is borrowed.
        unsafe { slice::from_raw_parts(first.as_ptr(), range.len()) }
    }

    /// The elements of a range, to be written.
    ///
    /// # Panics
    /// Like [`get`](Self::get).
    pub fn get_mut(&mut self, range: Range<usize>) -> &mut [E] {
        let first = self.checked(&range);
        // SAFETY: as in `get`; no operation reads them either, and this is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(first.as_ptr(), range.len()) }
    }

    /// Where a range begins that may be looked at.
    fn checked(&self, range: &Range<usize>) -> NonNull<E> {
        let len = self.len;
        assert!(range.start <= range.end && range.end <= len, "{range:?} of {len} elements");
        assert!(!self.is_under_way(range), "an operation on some of {range:?} is under way");
        assert!(!self.has_failed, "an operation on the buffer failed: it is not to be used");
        // SAFETY: at most one past the last element.
        unsafe { self.first.add(range.start) }
    }

    /// The first operation that touches a range.
    fn position(&self, range: &Range<usize>) -> Option<usize> {
        let touches = |other: &Range<usize>| range.start < other.end && other.start < range.end;
        self.under_way.iter().position(|(other, _)| touches(other))
    }
}

impl<E: Element> Drop for Incoming<'_, E> {
    fn drop(&mut self) {
        if !self.under_way.is_empty() && std::thread::panicking() {
            self.collective.abandon("a panic while operations were under way");
        }
        let deadline = Instant::now() + self.collective.timeout();
        for (_, ticket) in self.under_way.drain(..) {
            // An error kills the backend, which reports it at the next operation.
            let _ = self.collective.wait(ticket, deadline);
        }
        if !self.collective.memory_at_risk() {
            // SAFETY: it is dropped nowhere else, and no operation touches it any more.
            unsafe { ManuallyDrop::drop(&mut self.buffer) };
        }
    }
}

impl<E: Element> fmt::Debug for Incoming<'_, E> {
    /// Without the elements, some of which may be under way.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = formatter.debug_struct("Incoming");
        text.field("len", &self.len).field("under_way", &self.under_way.len());
        text.finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
