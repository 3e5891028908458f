//! A backend's table of outstanding operations, of a fixed size.

use std::time::Instant;

use super::collective::{OUTSTANDING_MAX, Ticket};
use super::error::Error;
use super::group::{Membership, WORLD};
use super::message::Message;
use super::operation::{Channel, Operation, Timing};
use super::raw_buffer::RawBuffer;

/// A submitted operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Job {
    /// Index of its group in the backend's table.
    pub(crate) group: u16,
    pub(crate) channel: Channel,
    pub(crate) operation: Operation,
    /// Empty where there are several.
    pub(crate) buffer: RawBuffer,
    /// Size of the buffer, or of all of them.
    pub(crate) bytes: usize,
    pub(crate) submitted: Instant,
}

impl Job {
    /// An operation of all ranks.
    pub(crate) fn new(channel: Channel, operation: Operation, buffer: RawBuffer) -> Self {
        let bytes = buffer.bytes();
        Self { group: WORLD, channel, operation, buffer, bytes, submitted: Instant::now() }
    }

    /// Messages of all ranks that are started together.
    pub(crate) fn of_messages(channel: Channel, messages: &[Message]) -> Self {
        let bytes = messages.iter().map(|message| message.buffer.bytes()).sum();
        Self { bytes, ..Self::new(channel, Operation::Messages, RawBuffer::empty()) }
    }

    /// One of these messages.
    pub(crate) fn message(self, Message { operation, buffer }: Message) -> Self {
        Self { operation, buffer, bytes: buffer.bytes(), ..self }
    }

    /// The timing of this job, which is complete now.
    pub(crate) fn timing_since(&self, started: Instant) -> Timing {
        Timing { started, ended: Instant::now(), bytes: self.bytes, outer: None }
    }

    /// The error of this job when its deadline has passed.
    pub(crate) fn deadline_error(
        &self,
        membership: &Membership,
        backend: &'static str,
        peers: Vec<usize>,
    ) -> Error {
        Error::Deadline {
            operation: self.operation.in_world(&membership.plan.ranks),
            group: membership.named(),
            position: None,
            rank: membership.world_rank(),
            waited: self.submitted.elapsed(),
            bytes: self.bytes,
            backend,
            peers,
        }
    }
}

/// [`OUTSTANDING_MAX`] entries, allocated once. A slot is the index of an entry.
#[derive(Debug)]
pub(crate) struct OutstandingTable {
    entries: Box<[Entry]>,
    free: Vec<u32>,
}

#[derive(Debug, Default)]
struct Entry {
    /// Counts the uses of this entry; a ticket of an earlier use is a programmer's error.
    generation: u32,
    job: Option<Job>,
    outcome: Option<Result<Timing, Error>>,
    /// Slot of the group of messages of which this is one.
    part_of: Option<u32>,
    parts: Parts,
}

/// Messages of a group, each of which has an entry of its own until it is complete.
#[derive(Debug, Default)]
struct Parts {
    /// Number of those that are not complete.
    left: usize,
    /// Start of the first.
    started: Option<Instant>,
    /// Error of the first that failed.
    failure: Option<Error>,
}

impl OutstandingTable {
    pub(crate) fn new() -> Self {
        let entries = (0..OUTSTANDING_MAX).map(|_| Entry::default()).collect();
        Self { entries, free: (0..OUTSTANDING_MAX as u32).rev().collect() }
    }

    /// Enters a job; `None` when full.
    pub(crate) fn insert(&mut self, job: Job) -> Option<Ticket> {
        let slot = self.free.pop()?;
        let entry = &mut self.entries[slot as usize];
        entry.job = Some(job);
        entry.part_of = None;
        entry.parts = Parts::default();
        Some(Ticket { slot, generation: entry.generation })
    }

    /// Enters a group of so many messages, each of which [`Self::insert_part`] then enters; `None`
    /// when they do not fit.
    pub(crate) fn insert_group(&mut self, job: Job, messages: usize) -> Option<Ticket> {
        if self.free.len() <= messages {
            return None;
        }
        let ticket = self.insert(job)?;
        let entry = &mut self.entries[ticket.slot as usize];
        entry.parts.left = messages;
        entry.outcome = (messages == 0).then(|| Ok(job.timing_since(job.submitted)));
        Some(ticket)
    }

    /// Enters a message of a group, and returns its slot.
    pub(crate) fn insert_part(&mut self, group: &Ticket, job: Job) -> u32 {
        let part = self.insert(job).unwrap_or_else(|| unreachable!("room was made for it"));
        self.entries[part.slot as usize].part_of = Some(group.slot);
        part.slot
    }

    pub(crate) fn job(&self, slot: u32) -> Job {
        self.entries[slot as usize].job.unwrap_or_else(|| unreachable!("slot {slot} is free"))
    }

    /// Enters the outcome of a job. That of a group of messages follows from theirs, when all of
    /// them are complete.
    pub(crate) fn complete(&mut self, slot: u32, outcome: Result<Timing, Error>) {
        let Some(group) = self.entries[slot as usize].part_of else {
            self.entries[slot as usize].outcome = Some(outcome);
            return;
        };
        self.free_entry(slot);
        let entry = &mut self.entries[group as usize];
        let Parts { left, started, failure } = &mut entry.parts;
        *left -= 1;
        match outcome {
            Ok(timing) => {
                *started = Some(started.map_or(timing.started, |it| it.min(timing.started)))
            }
            Err(error) => drop(failure.get_or_insert(error)),
        }
        if *left > 0 {
            return;
        }
        let timing = entry.job.map(|job| job.timing_since(started.unwrap_or(job.submitted)));
        entry.outcome = failure.take().map(Err).or(timing.map(Ok));
    }

    /// The ranks of the world whose messages of a group are not complete, of these `ranks`.
    pub(crate) fn missing_peers(&self, group: u32, ranks: &[usize]) -> Vec<usize> {
        let parts = self.entries.iter().filter(|entry| entry.part_of == Some(group));
        let peers = parts.filter_map(|entry| entry.job?.operation.peer());
        let mut missing: Vec<usize> = peers.map(|peer| ranks[peer]).collect();
        missing.sort_unstable();
        missing.dedup();
        missing
    }

    /// Removes the outcome and frees the entry, if the job is complete.
    pub(crate) fn take_outcome(&mut self, ticket: &Ticket) -> Option<Result<Timing, Error>> {
        let entry = &mut self.entries[ticket.slot as usize];
        let is_ours = entry.generation == ticket.generation && entry.job.is_some();
        assert!(is_ours, "a ticket of another backend: {ticket:?}");
        let outcome = entry.outcome.take()?;
        self.release(ticket);
        Some(outcome)
    }

    /// Frees the entry whether or not its job is complete; returns the error of the first message
    /// that failed, where it was a group with others that are not complete.
    pub(crate) fn release(&mut self, ticket: &Ticket) -> Option<Error> {
        let failure = self.entries[ticket.slot as usize].parts.failure.take();
        self.free_entry(ticket.slot);
        failure
    }

    fn free_entry(&mut self, slot: u32) {
        let entry = &mut self.entries[slot as usize];
        entry.job = None;
        entry.outcome = None;
        entry.part_of = None;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(slot);
    }

    /// Number of jobs that are entered.
    #[cfg(feature = "mpi")]
    pub(crate) fn len(&self) -> usize {
        OUTSTANDING_MAX - self.free.len()
    }
}
