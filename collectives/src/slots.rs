//! The fixed table of a backend's outstanding operations.

use std::time::Instant;

use crate::{Channel, Error, Memory, OUTSTANDING_MAX, Operation, Ticket, Timing};

/// What was asked of a backend.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Job {
    pub(crate) channel: Channel,
    pub(crate) operation: Operation,
    pub(crate) memory: Memory,
    pub(crate) submitted: Instant,
}

impl Job {
    pub(crate) fn new(channel: Channel, operation: Operation, memory: Memory) -> Self {
        Self { channel, operation, memory, submitted: Instant::now() }
    }

    /// The timing of this job, done now.
    pub(crate) fn done(&self, started: Instant) -> Timing {
        Timing { started, ended: Instant::now(), bytes: self.memory.bytes() }
    }

    /// The error of this job when its deadline is over.
    pub(crate) fn deadline(&self, rank: usize, backend: &'static str, peers: Vec<usize>) -> Error {
        Error::Deadline {
            operation: self.operation,
            rank,
            waited: self.submitted.elapsed(),
            bytes: self.memory.bytes(),
            backend,
            peers,
        }
    }
}

/// [`OUTSTANDING_MAX`] entries, allocated once.
#[derive(Debug)]
pub(crate) struct Slots {
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

impl Slots {
    pub(crate) fn new() -> Self {
        let entries = (0..OUTSTANDING_MAX).map(|_| Entry::default()).collect();
        Self { entries, free: (0..OUTSTANDING_MAX as u32).rev().collect() }
    }

    /// Enters a job; `None` when full.
    pub(crate) fn enter(&mut self, job: Job) -> Option<Ticket> {
        let slot = self.free.pop()?;
        let entry = &mut self.entries[slot as usize];
        entry.job = Some(job);
        Some(Ticket { slot, generation: entry.generation })
    }

    pub(crate) fn job(&self, slot: u32) -> Job {
        self.entries[slot as usize].job.unwrap_or_else(|| unreachable!("slot {slot} is free"))
    }

    pub(crate) fn finish(&mut self, slot: u32, outcome: Result<Timing, Error>) {
        self.entries[slot as usize].outcome = Some(outcome);
    }

    /// Takes the outcome, and frees the entry if there is one.
    pub(crate) fn collect(&mut self, ticket: &Ticket) -> Option<Result<Timing, Error>> {
        let entry = &mut self.entries[ticket.slot as usize];
        let ours = entry.generation == ticket.generation && entry.job.is_some();
        assert!(ours, "a ticket of another backend: {ticket:?}");
        let outcome = entry.outcome.take()?;
        self.release(ticket);
        Some(outcome)
    }

    /// Frees the entry whatever became of it.
    pub(crate) fn release(&mut self, ticket: &Ticket) {
        let entry = &mut self.entries[ticket.slot as usize];
        entry.job = None;
        entry.outcome = None;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(ticket.slot);
    }

    /// How many jobs are entered.
    #[cfg(feature = "mpi")]
    pub(crate) fn outstanding(&self) -> usize {
        OUTSTANDING_MAX - self.free.len()
    }
}
