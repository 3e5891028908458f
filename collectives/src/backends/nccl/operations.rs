//! Operations submitted to the device, and the events that show their progress. Events are created
//! when more operations are in flight than ever before, and then reused.

use std::collections::VecDeque;
use std::time::Instant;

use device::cuda::{Cuda, Error, Event, Stream};

use super::device_clock::Moment;
use crate::core::outstanding::Job;
use crate::{OUTSTANDING_MAX, Position, Settled, Ticket, Timing};

/// Set in the slots of this table's tickets: tickets without it belong to the host's backend.
const ON_DEVICE: u32 = 1 << 31;

/// Most operations queued ahead on the communication stream. It takes about a thousand entries, of
/// which each operation needs four; then the host blocks, without a deadline.
const STARTED_MAX: usize = 128;

/// The operations in flight, and those that were joined and not settled.
#[derive(Debug)]
pub(super) struct Operations {
    device: Cuda,
    entries: Vec<Entry>,
    free: Vec<usize>,
    /// Indices of joined entries, in the order of joining.
    joined: Vec<usize>,
    /// Started operations, in the order of their starts; some may be over.
    started: VecDeque<Started>,
}

/// A use of an entry.
#[derive(Debug)]
struct Started {
    slot: usize,
    generation: u32,
}

/// Entry of one operation, or a free entry.
#[derive(Debug)]
pub(super) struct Entry {
    /// Counts the uses of this entry; a ticket of an earlier use is a programmer's error.
    generation: u32,
    job: Option<Job>,
    /// On the compute stream: the buffer may be used.
    ready: Event,
    /// On the communication stream.
    start: Event,
    end: Event,
    /// On the compute stream: it waits from here on.
    wait_start: Event,
}

impl Operations {
    pub(super) fn new(device: &Cuda) -> Self {
        Self {
            device: device.clone(),
            entries: Vec::with_capacity(OUTSTANDING_MAX),
            free: Vec::with_capacity(OUTSTANDING_MAX),
            joined: Vec::with_capacity(OUTSTANDING_MAX),
            started: VecDeque::with_capacity(STARTED_MAX + 1),
        }
    }

    /// Returns whether a ticket is for an operation on a device.
    pub(super) fn has_issued(ticket: &Ticket) -> bool {
        ticket.slot & ON_DEVICE != 0
    }

    /// A place for an operation; `None` where no more fit.
    pub(super) fn insert(&mut self, job: Job) -> Result<Option<Ticket>, Error> {
        if self.free.is_empty() {
            if self.entries.len() == OUTSTANDING_MAX {
                return Ok(None);
            }
            self.free.push(self.entries.len());
            self.entries.push(Entry::new(&self.device)?);
        }
        let index = self.free.pop().unwrap_or_else(|| unreachable!("one was just added"));
        let entry = &mut self.entries[index];
        entry.job = Some(job);
        self.started.push_back(Started { slot: index, generation: entry.generation });
        Ok(Some(Ticket { slot: index as u32 | ON_DEVICE, generation: entry.generation }))
    }

    /// The operation of a ticket.
    pub(super) fn of(&self, ticket: &Ticket) -> &Entry {
        let entry = &self.entries[index_of(ticket)];
        let is_ours = entry.generation == ticket.generation && entry.job.is_some();
        assert!(is_ours, "a ticket of another backend: {ticket:?}");
        entry
    }

    /// The place of the operation may be used again.
    pub(super) fn release(&mut self, ticket: &Ticket) {
        self.free_entry(index_of(ticket));
    }

    /// Keeps an operation for [`Self::settled`].
    pub(super) fn add_joined(&mut self, ticket: &Ticket) {
        self.joined.push(index_of(ticket));
    }

    /// Number of operations that were joined and not settled.
    pub(super) fn joined_len(&self) -> usize {
        self.joined.len()
    }

    /// The entry of one of those that were joined.
    pub(super) fn joined_slot(&self, index: usize) -> usize {
        self.joined[index]
    }

    /// Joined operation by index.
    pub(super) fn joined(&self, index: usize) -> &Entry {
        &self.entries[self.joined[index]]
    }

    /// An entry.
    pub(super) fn entry(&self, slot: usize) -> &Entry {
        &self.entries[slot]
    }

    /// The entry of the first operation that has to be over before one more is started.
    pub(super) fn oldest_blocking(&mut self) -> Option<usize> {
        while self.started.len() >= STARTED_MAX {
            let Started { slot, generation } = self.started.front()?;
            if self.entries[*slot].generation == *generation {
                return Some(*slot);
            }
            self.started.pop_front();
        }
        None
    }

    /// The operation of this entry is over, if it still is the first of those that were started.
    pub(super) fn forget(&mut self, slot: usize) {
        if self.started.front().is_some_and(|first| first.slot == slot) {
            self.started.pop_front();
        }
    }

    /// Position of an operation among the joined operations of its kind.
    pub(super) fn position(&self, index: usize) -> Position {
        let kind = |index| self.joined(index).job().operation;
        let same = |range: std::ops::Range<usize>| {
            range.filter(|&other| kind(other) == kind(index)).count() as u32
        };
        Position { number: same(0..index) + 1, of: same(0..self.joined.len()) }
    }

    /// Reports all joined operations, which are over, and forgets them.
    pub(super) fn settle(
        &mut self,
        now: &Moment<'_>,
        report: &mut dyn FnMut(Settled),
    ) -> Result<(), Error> {
        for index in 0..self.joined.len() {
            report(self.joined(index).settled(now)?);
        }
        while let Some(index) = self.joined.pop() {
            self.free_entry(index);
        }
        Ok(())
    }

    fn free_entry(&mut self, index: usize) {
        let entry = &mut self.entries[index];
        entry.job = None;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(index);
    }
}

fn index_of(ticket: &Ticket) -> usize {
    (ticket.slot & !ON_DEVICE) as usize
}

impl Entry {
    fn new(device: &Cuda) -> Result<Self, Error> {
        let event = || Event::new(device);
        Ok(Self {
            generation: 0,
            job: None,
            ready: event()?,
            start: event()?,
            end: event()?,
            wait_start: event()?,
        })
    }

    pub(super) fn job(&self) -> Job {
        self.job.unwrap_or_else(|| unreachable!("an operation without a job"))
    }

    /// Lets the stream `own` start the operation once the compute stream has reached this point.
    pub(super) fn order_start(&self, compute: &Stream, own: &Stream) -> Result<(), Error> {
        self.ready.record(compute)?;
        self.ready.join(own)?;
        self.start.record(own)
    }

    /// Records the end of the operation behind the work that its stream was given so far.
    pub(super) fn record_end(&self, own: &Stream) -> Result<(), Error> {
        self.end.record(own)
    }

    /// Lets the compute stream wait for the end.
    pub(super) fn join(&self, compute: &Stream) -> Result<(), Error> {
        self.wait_start.record(compute)?;
        self.end.join(compute)
    }

    pub(super) fn is_over(&self) -> Result<bool, Error> {
        self.end.is_complete()
    }

    /// Returns whether the compute stream has reached the point from which the buffer may be used.
    pub(super) fn is_ready(&self) -> Result<bool, Error> {
        self.ready.is_complete()
    }

    /// Returns whether the compute stream has reached the point at which it waits.
    pub(super) fn is_waited_for(&self) -> Result<bool, Error> {
        self.wait_start.is_complete()
    }

    /// Start, end and size of an operation that is over.
    pub(super) fn timing(&self, now: &Moment<'_>) -> Result<Timing, Error> {
        let [started, ended] = [&self.start, &self.end].map(|event| now.instant_of(event));
        let bytes = self.job().buffer.bytes();
        Ok(Timing { started: started?, ended: ended?, bytes, outer: None })
    }

    fn settled(&self, now: &Moment<'_>) -> Result<Settled, Error> {
        let wait_start: Instant = now.instant_of(&self.wait_start)?;
        Ok(Settled { operation: self.job().operation, timing: self.timing(now)?, wait_start })
    }
}
