//! A backend's table of outstanding operations, of a fixed size.

use std::time::Instant;

use super::collective::{OUTSTANDING_MAX, Ticket};
use super::error::Error;
use super::group::{Membership, WORLD};
use super::operation::{Channel, Operation, Timing};
use super::raw_buffer::RawBuffer;

/// A submitted operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Job {
    /// Index of its group in the backend's table.
    pub(crate) group: u16,
    pub(crate) channel: Channel,
    pub(crate) operation: Operation,
    pub(crate) buffer: RawBuffer,
    pub(crate) submitted: Instant,
}

impl Job {
    /// An operation of all ranks.
    pub(crate) fn new(channel: Channel, operation: Operation, buffer: RawBuffer) -> Self {
        Self { group: WORLD, channel, operation, buffer, submitted: Instant::now() }
    }

    /// The timing of this job, which is complete now.
    pub(crate) fn timing_since(&self, started: Instant) -> Timing {
        Timing { started, ended: Instant::now(), bytes: self.buffer.bytes(), outer: None }
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
            bytes: self.buffer.bytes(),
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
        Some(Ticket { slot, generation: entry.generation })
    }

    pub(crate) fn job(&self, slot: u32) -> Job {
        self.entries[slot as usize].job.unwrap_or_else(|| unreachable!("slot {slot} is free"))
    }

    pub(crate) fn complete(&mut self, slot: u32, outcome: Result<Timing, Error>) {
        self.entries[slot as usize].outcome = Some(outcome);
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

    /// Frees the entry whether or not its job is complete.
    pub(crate) fn release(&mut self, ticket: &Ticket) {
        let entry = &mut self.entries[ticket.slot as usize];
        entry.job = None;
        entry.outcome = None;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(ticket.slot);
    }

    /// Number of jobs that are entered.
    #[cfg(feature = "mpi")]
    pub(crate) fn len(&self) -> usize {
        OUTSTANDING_MAX - self.free.len()
    }
}
