//! Operations submitted to the device, and the events that show their progress. Events are created
//! when more operations are in flight than ever before, and then reused.

use std::collections::VecDeque;
use std::time::Instant;

use device::cuda::{Cuda, Error, Event, Stream};

use super::device_clock::Moment;
use super::route::STAGES_MAX;
use crate::core::outstanding::Job;
use crate::{Interval, OUTSTANDING_MAX, Operation, Position, Settled, Ticket, Timing};

/// Set in the slots of this table's tickets: tickets without it belong to the host's backend.
const ON_DEVICE: u32 = 1 << 31;

/// Most entries queued ahead on the communication stream. It takes about a thousand; then the host
/// blocks, without a deadline.
const STREAM_ENTRIES_MAX: usize = 512;

/// Entries of the stream that an operation of one stage needs: the wait for the compute stream, an
/// event, the operation, an event. Each further stage needs an event and its operation.
const STREAM_ENTRIES_OF_ONE_STAGE: usize = 4;
const STREAM_ENTRIES_OF_A_STAGE: usize = 2;

/// The operations in flight, and those that were joined and not settled.
#[derive(Debug)]
pub(super) struct Operations {
    device: Cuda,
    entries: Vec<Entry>,
    free: Vec<usize>,
    /// Joined operations that are over and have no entry any more, in the order of joining.
    settled: Vec<Settled>,
    /// Indices of the other joined entries, in the order of joining.
    joined: Vec<usize>,
    /// Started operations, in the order of their starts; some may be over.
    started: VecDeque<Started>,
    /// Entries of the stream that these need.
    stream_entries: usize,
}

/// A use of an entry.
#[derive(Debug)]
struct Started {
    slot: usize,
    generation: u32,
    stream_entries: usize,
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
    /// On the communication stream: ends of the stages but the last. Made when first needed.
    stage_ends: Vec<Event>,
    /// Number of them that this use has recorded.
    stages_recorded: usize,
    /// On the compute stream: it waits from here on.
    wait_start: Event,
}

impl Operations {
    pub(super) fn new(device: &Cuda) -> Self {
        Self {
            device: device.clone(),
            entries: Vec::with_capacity(OUTSTANDING_MAX),
            free: Vec::with_capacity(OUTSTANDING_MAX),
            settled: Vec::new(),
            joined: Vec::with_capacity(OUTSTANDING_MAX),
            started: VecDeque::with_capacity(STREAM_ENTRIES_MAX / STREAM_ENTRIES_OF_ONE_STAGE + 1),
            stream_entries: 0,
        }
    }

    /// Returns whether a ticket is for an operation on a device.
    pub(super) fn has_issued(ticket: &Ticket) -> bool {
        ticket.slot & ON_DEVICE != 0
    }

    /// A place for an operation of so many stages; `None` where no more fit.
    pub(super) fn insert(&mut self, job: Job, stages: usize) -> Result<Option<Ticket>, Error> {
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
        entry.stages_recorded = 0;
        let further = stages.saturating_sub(1);
        let stream_entries = STREAM_ENTRIES_OF_ONE_STAGE + further * STREAM_ENTRIES_OF_A_STAGE;
        let generation = entry.generation;
        self.started.push_back(Started { slot: index, generation, stream_entries });
        self.stream_entries += stream_entries;
        Ok(Some(Ticket { slot: index as u32 | ON_DEVICE, generation }))
    }

    /// The operation of a ticket.
    pub(super) fn of(&self, ticket: &Ticket) -> &Entry {
        let entry = &self.entries[index_of(ticket)];
        let is_ours = entry.generation == ticket.generation && entry.job.is_some();
        assert!(is_ours, "a ticket of another backend: {ticket:?}");
        entry
    }

    /// The operation of a ticket, to record its stages.
    pub(super) fn of_mut(&mut self, ticket: &Ticket) -> &mut Entry {
        &mut self.entries[index_of(ticket)]
    }

    /// The place of the operation may be used again.
    pub(super) fn release(&mut self, ticket: &Ticket) {
        self.free_entry(index_of(ticket));
    }

    /// Keeps an operation for [`Self::free_joined`].
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
    fn joined(&self, index: usize) -> &Entry {
        &self.entries[self.joined[index]]
    }

    /// An entry.
    pub(super) fn entry(&self, slot: usize) -> &Entry {
        &self.entries[slot]
    }

    /// The entry of the first operation that has to be over before one more is started.
    pub(super) fn oldest_blocking(&mut self) -> Option<usize> {
        while self.stream_entries >= STREAM_ENTRIES_MAX {
            let Started { slot, generation, .. } = self.started.front()?;
            if self.entries[*slot].generation == *generation {
                return Some(*slot);
            }
            self.pop_started();
        }
        None
    }

    /// The operation of this entry is over, if it still is the first of those that were started.
    pub(super) fn forget(&mut self, slot: usize) {
        if self.started.front().is_some_and(|first| first.slot == slot) {
            self.pop_started();
        }
    }

    fn pop_started(&mut self) {
        let popped = self.started.pop_front();
        self.stream_entries -= popped.map_or(0, |started| started.stream_entries);
    }

    /// The entry of the first operation of the stream that is not over: all others wait for it.
    pub(super) fn oldest_unfinished(&self) -> Option<usize> {
        let is_unfinished = |started: &&Started| {
            let entry = &self.entries[started.slot];
            entry.generation == started.generation && !entry.is_over().unwrap_or(false)
        };
        self.started.iter().find(is_unfinished).map(|started| started.slot)
    }

    /// Position of an operation among the joined operations of its kind and group, whose dimension
    /// is given, if it is joined.
    pub(super) fn position(&self, slot: usize, dimension: &str) -> Option<Position> {
        let index = self.joined.iter().position(|&joined| joined == slot)?;
        let kind = |index| {
            let job = self.joined(index).job();
            (job.operation, job.group)
        };
        let same = |range: std::ops::Range<usize>| {
            range.filter(|&other| kind(other) == kind(index)).count() as u32
        };
        let operation = self.joined(index).job().operation;
        let is_same = |it: &&Settled| it.operation == operation && it.dimension == dimension;
        let before = self.settled.iter().filter(is_same).count() as u32;
        let number = before + same(0..index) + 1;
        Some(Position { number, of: before + same(0..self.joined.len()) })
    }

    /// Returns whether no operation fits unless a joined one that is over leaves its entry.
    pub(super) fn is_full_of_joined(&self) -> bool {
        let is_full = self.free.is_empty() && self.entries.len() == OUTSTANDING_MAX;
        is_full && !self.joined.is_empty()
    }

    /// Frees the entries of joined operations up to the first that is not over, and keeps what is
    /// to be reported, with the dimensions of their groups.
    pub(super) fn free_joined(
        &mut self,
        now: &Moment<'_>,
        dimension_of: impl Fn(Job) -> &'static str,
    ) -> Result<(), Error> {
        let mut freed = 0;
        while let Some(&index) = self.joined.get(freed) {
            let entry = &self.entries[index];
            if !entry.is_over()? {
                break;
            }
            self.settled.push(entry.settled(now, dimension_of(entry.job()))?);
            self.free_entry(index);
            freed += 1;
        }
        self.joined.drain(..freed);
        Ok(())
    }

    /// Operations to be reported, whose entries are free.
    pub(super) fn take_settled(&mut self) -> impl Iterator<Item = Settled> {
        self.settled.drain(..)
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
            stage_ends: Vec::with_capacity(STAGES_MAX - 1),
            stages_recorded: 0,
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

    /// Records the end of a stage, but not of the last, behind the work that the stream was given.
    pub(super) fn record_stage_end(&mut self, device: &Cuda, own: &Stream) -> Result<(), Error> {
        if self.stages_recorded == self.stage_ends.len() {
            self.stage_ends.push(Event::new(device)?);
        }
        self.stage_ends[self.stages_recorded].record(own)?;
        self.stages_recorded += 1;
        Ok(())
    }

    /// Number of stages that are over, in an operation that is not.
    pub(super) fn stages_over(&self) -> usize {
        let recorded = &self.stage_ends[..self.stages_recorded];
        recorded.iter().filter(|end| end.is_complete().unwrap_or(false)).count()
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
        let bytes = self.job().bytes;
        let between = |started: &Event, ended: &Event| -> Result<Interval, Error> {
            Ok(Interval { started: now.instant_of(started)?, ended: now.instant_of(ended)? })
        };
        // The stages of a grid: see `route`.
        let outer = match (self.job().operation, &self.stage_ends[..self.stages_recorded]) {
            (Operation::ReduceScatterSum, [inner]) => Some(between(inner, &self.end)?),
            (Operation::AllGather, [outer]) => Some(between(&self.start, outer)?),
            (Operation::AllReduceSum, [inner, outer, ..]) => Some(between(inner, outer)?),
            _ => None,
        };
        Ok(Timing { started: started?, ended: ended?, bytes, outer })
    }

    fn settled(&self, now: &Moment<'_>, dimension: &'static str) -> Result<Settled, Error> {
        let wait_start: Instant = now.instant_of(&self.wait_start)?;
        let operation = self.job().operation;
        Ok(Settled { operation, dimension, timing: self.timing(now)?, wait_start })
    }
}
