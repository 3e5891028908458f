//! A buffer with operations in flight on some of its ranges while others are used.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;
use std::time::Instant;

use device::{DeviceBuffer, Place, View, ViewMut};

use super::collective::{Collective, OUTSTANDING_MAX, Ticket};
use super::dtype::Element;
use super::error::Error;
use super::group::Membership;
use super::message::Message;
use super::operation::{Channel, Operation, Timing};
use super::raw_buffer::RawBuffer;

/// A buffer and the operations that are in flight on ranges of it. They may outlive the function
/// that started them, because this owns what they write to. After construction nothing is
/// allocated.
///
/// While an operation on a range is in flight, the range can be neither read nor written; all
/// others can. After a failed operation no range can.
///
/// Dropping this waits for all operations, at most [`Collective::timeout`] for all of them together
/// and a second more where the backend dies; the next operation then reports that it is dead. After
/// a failure that leaves the memory [at risk](Collective::memory_at_risk) it is leaked. In a panic
/// the backend is abandoned. Forgetting this only leaks.
pub struct Incoming<'world, E: Element> {
    collective: &'world dyn Collective,
    /// Keeps the memory. In the host's memory it is never borrowed: it lends slices of everything,
    /// and these must not exist while the backend writes to some of it.
    buffer: ManuallyDrop<DeviceBuffer<E>>,
    /// Its first element, where that is in the host's memory.
    host: Option<NonNull<E>>,
    /// Operations in flight, in the order of their starts; no two ranges overlap.
    in_flight: VecDeque<InFlight>,
    has_failed: bool,
}

struct InFlight {
    range: Range<usize>,
    /// The same for all messages of a group.
    ticket: Ticket,
}

// SAFETY: it owns its elements like a `DeviceBuffer`, which is `Send`; the backend is `Sync`.
unsafe impl<E: Element> Send for Incoming<'_, E> {}
// SAFETY: shared references read elements that nobody writes; the backend is `Sync`.
unsafe impl<E: Element> Sync for Incoming<'_, E> {}

impl<'world, E: Element> Incoming<'world, E> {
    /// A buffer without operations. One that has no memory, because it is
    /// [of a plan](device::Allocator::counting), has no elements to access.
    pub fn new(collective: &'world dyn Collective, mut buffer: DeviceBuffer<E>) -> Self {
        let is_on_host = buffer.place() == Some(Place::Host);
        let host = is_on_host.then(|| NonNull::from(buffer.host_mut()).cast());
        Self {
            collective,
            buffer: ManuallyDrop::new(buffer),
            host,
            in_flight: VecDeque::with_capacity(OUTSTANDING_MAX),
            has_failed: false,
        }
    }

    /// Length in elements.
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Returns whether an operation on any of these elements is in flight.
    pub fn is_in_flight(&self, range: &Range<usize>) -> bool {
        self.position(range).is_some()
    }

    /// Starts an operation on a range, on the data channel; does not block.
    ///
    /// # Errors
    /// Those of [`Collective::submit`]; [`Error::Full`] also when [`OUTSTANDING_MAX`] operations
    /// are in flight here.
    ///
    /// # Panics
    /// Like [`get`](Self::get).
    pub fn start(&mut self, operation: Operation, range: Range<usize>) -> Result<(), Error> {
        let collective = self.collective;
        self.require_room(operation, 1)?;
        let buffer = RawBuffer::of(self.get_mut(range.clone()));
        // SAFETY: the memory lives until `drop` has waited for the ticket, which is kept from here
        // on, and for ever if waiting did not help. Until then `get` and `get_mut` lend nothing of
        // the range, and nothing else accesses the memory.
        let ticket = unsafe { collective.submit(Channel::Data, operation, buffer) }?;
        self.in_flight.push_back(InFlight { range, ticket });
        Ok(())
    }

    /// Starts messages together, at least one, each on a range of its own, on the data channel. It
    /// does not block. Waiting for one of them waits for all.
    ///
    /// # Errors
    /// Those of [`Collective::submit_group`]; [`Error::Full`] as of [`start`](Self::start).
    ///
    /// # Panics
    /// Like [`get`](Self::get), and if two ranges overlap.
    pub fn start_group<const N: usize>(
        &mut self,
        messages: [(Operation, Range<usize>); N],
    ) -> Result<(), Error> {
        const { assert!(N > 0, "nobody would wait for a group without messages") };
        let collective = self.collective;
        self.require_room(Operation::Messages, N)?;
        for (index, (_, range)) in messages.iter().enumerate() {
            let mut others = messages[..index].iter();
            let overlapping = others.find(|(_, other)| overlap(range, other));
            assert!(overlapping.is_none(), "two messages on {range:?}");
        }
        let started = messages.each_ref().map(|(operation, range)| Message {
            operation: *operation,
            buffer: RawBuffer::of(self.get_mut(range.clone())),
        });
        // SAFETY: as in `start`; the ranges do not overlap.
        let ticket = unsafe { collective.submit_group(Channel::Data, &started) }?;
        self.in_flight.extend(messages.map(|(_, range)| {
            let Ticket { slot, generation } = ticket;
            InFlight { range, ticket: Ticket { slot, generation } }
        }));
        Ok(())
    }

    fn require_room(&self, operation: Operation, ranges: usize) -> Result<(), Error> {
        if self.in_flight.len() + ranges <= OUTSTANDING_MAX {
            return Ok(());
        }
        let rank = Membership::of(self.collective).world_rank();
        Err(Error::Full { operation, rank, capacity: OUTSTANDING_MAX })
    }

    /// Waits for every operation that overlaps a range, in the order of their starts, and passes
    /// the timing of each to `report`. Free where there is none. In the memory of a device it
    /// blocks for earlier operations at most: computation that the device is given after this
    /// waits, and [`Collective::settle`] reports the timing.
    ///
    /// # Errors
    /// Those of [`Collective::join`]; [`Error::Dead`] after an earlier failure.
    pub fn wait(
        &mut self,
        range: &Range<usize>,
        deadline: Instant,
        mut report: impl FnMut(Timing),
    ) -> Result<(), Error> {
        if self.has_failed {
            return Err(Error::Dead {
                backend: self.collective.backend(),
                rank: Membership::of(self.collective).world_rank(),
                reason: "an operation on the same buffer failed".into(),
            });
        }
        while let Some(first) = self.position(range).and_then(|at| self.in_flight.remove(at)) {
            self.in_flight.retain(|other| other.ticket != first.ticket);
            let outcome = self.collective.join(first.ticket, deadline);
            self.has_failed = outcome.is_err();
            outcome?.into_iter().for_each(&mut report);
        }
        Ok(())
    }

    /// The elements of a range.
    ///
    /// # Panics
    /// Panics if the range does not lie inside the buffer, if an operation on it is in flight,
    /// after a failure, and in a plan, where there is no memory.
    pub fn get(&self, range: Range<usize>) -> View<'_, E> {
        self.require_accessible(&range);
        let Some(start) = self.host else { return self.buffer.view().slice(range) };
        // SAFETY: inside the buffer, which lives as long as this; its elements are written by no
        // operation, and by nobody else while this is borrowed.
        unsafe { slice::from_raw_parts(start.add(range.start).as_ptr(), range.len()) }.into()
    }

    /// The elements of a range, to be written.
    ///
    /// # Panics
    /// Like [`get`](Self::get).
    pub fn get_mut(&mut self, range: Range<usize>) -> ViewMut<'_, E> {
        self.require_accessible(&range);
        let Some(start) = self.host else { return self.buffer.view_mut().slice(range) };
        // SAFETY: as in `get`; no operation reads them either, and this is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(start.add(range.start).as_ptr(), range.len()) }.into()
    }

    /// Panics unless a range may be accessed.
    fn require_accessible(&self, range: &Range<usize>) {
        let len = self.len();
        assert!(range.start <= range.end && range.end <= len, "{range:?} of {len} elements");
        assert!(!self.is_in_flight(range), "an operation on some of {range:?} is in flight");
        assert!(!self.has_failed, "an operation on the buffer failed: it is not to be used");
    }

    /// The first operation that overlaps a range.
    fn position(&self, range: &Range<usize>) -> Option<usize> {
        self.in_flight.iter().position(|operation| overlap(range, &operation.range))
    }
}

fn overlap(range: &Range<usize>, other: &Range<usize>) -> bool {
    range.start < other.end && other.start < range.end
}

impl<E: Element> Drop for Incoming<'_, E> {
    fn drop(&mut self) {
        if !self.in_flight.is_empty() && std::thread::panicking() {
            self.collective.abandon("a panic while operations were in flight");
        }
        let deadline = Instant::now() + self.collective.timeout();
        while let Some(operation) = self.in_flight.pop_front() {
            self.in_flight.retain(|other| other.ticket != operation.ticket);
            // An error kills the backend, which reports it at the next operation.
            let _ = self.collective.wait(operation.ticket, deadline);
        }
        if !self.collective.memory_at_risk() {
            // SAFETY: it is dropped nowhere else, and no operation touches it any more.
            unsafe { ManuallyDrop::drop(&mut self.buffer) };
        }
    }
}

impl<E: Element> fmt::Debug for Incoming<'_, E> {
    /// Without the elements, which operations may be writing.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = formatter.debug_struct("Incoming");
        text.field("len", &self.len()).field("in_flight", &self.in_flight.len());
        text.finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
