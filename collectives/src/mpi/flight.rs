//! The operations that MPI is working on, each some calls of it or pieces of an exchange.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use mpi::ffi::MPI_Comm;

use super::calls::{self, Call, Code, Piece};
use super::exchange::Exchange;
use super::plan::Plan;
use super::requests::{Errand, Of, Requests, Trouble};
use super::world::{Group, World};
use crate::node::{Kind, Parts, Task};
use crate::slots::Job;
use crate::{Channel, Error, OUTSTANDING_MAX, Operation, Timing};

/// A failed operation: its slot and its error.
pub(super) type Failure = (u32, Error);

/// All operations in the air. Lives on the communication thread.
#[derive(Debug)]
pub(super) struct Flight {
    world: World,
    chunk_elements_max: usize,
    requests: Requests,
    /// By channel.
    exchanges: [Exchange; 2],
    /// All ranks in their order.
    ranks: Arc<[usize]>,
    /// By slot.
    running: Box<[Option<Running>]>,
}

#[derive(Debug, Clone, Copy)]
struct Running {
    job: Job,
    started: Instant,
    /// Requests, or pieces of an exchange, that are not over.
    left: usize,
}

impl Flight {
    pub(super) fn new(world: World, chunk_elements_max: usize) -> Self {
        let all = |communicator| Group { communicator, member: world.rank, members: world.size };
        let groups = [world.across.unwrap_or(all(world.data)), all(world.control)];
        let channels = [Channel::Data, Channel::Control];
        let exchange =
            |index: usize| Exchange::new(channels[index], groups[index], chunk_elements_max);
        Self {
            world,
            chunk_elements_max,
            requests: Requests::new(groups.iter().map(Exchange::requests_max).sum()),
            exchanges: [0, 1].map(exchange),
            ranks: (0..world.size).collect(),
            running: vec![None; OUTSTANDING_MAX].into(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.has_requests() && self.exchanges.iter().all(Exchange::is_empty)
    }

    /// Whether MPI has anything that it may still write or read.
    pub(super) fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Takes an operation; `false` if there is nothing to do.
    ///
    /// MPI gets all chunks at once, because it wants the collective calls of a communicator in the
    /// same order on all ranks, and a window that moves with completions would follow each rank's
    /// own timing.
    pub(super) fn start(&mut self, slot: u32, job: Job) -> Result<bool, Failure> {
        match self.sum(job) {
            Some(task) => Ok(self.start_sum(slot, job, task)),
            None => self.start_calls(slot, job, |flight| flight.start_whole(slot, job)),
        }
    }

    /// Takes what an operation does between nodes; `false` if that is nothing.
    pub(super) fn start_across(&mut self, slot: u32, plan: Plan<'_>) -> Result<bool, Failure> {
        let job = plan.job;
        if let Some(task) = plan.sum_across() {
            return Ok(self.start_sum(slot, job, task));
        }
        self.start_calls(slot, job, |flight| {
            let Some(Group { communicator, .. }) = flight.world.across else { return Ok(()) };
            plan.across(|call, range| match range.is_empty() {
                true => Ok(()),
                false => flight.chunks(slot, job, call, range, communicator),
            })
        })
    }

    fn start_sum(&mut self, slot: u32, job: Job, task: Task) -> bool {
        let started = Instant::now();
        let left = self.exchanges[job.channel as usize].start(slot, task);
        self.running[slot as usize] = (left > 0).then_some(Running { job, started, left });
        left > 0
    }

    fn start_calls(
        &mut self,
        slot: u32,
        job: Job,
        start: impl FnOnce(&mut Self) -> Result<(), Code>,
    ) -> Result<bool, Failure> {
        let (started, before) = (Instant::now(), self.requests.len());
        start(self).map_err(|code| (slot, code.of(job.operation, self.world.rank)))?;
        let left = self.requests.len() - before;
        self.running[slot as usize] = (left > 0).then_some(Running { job, started, left });
        Ok(left > 0)
    }

    /// What all ranks add up, without any nodes.
    fn sum(&self, job: Job) -> Option<Task> {
        let len = job.memory.len();
        let (kind, parts) = match job.operation {
            Operation::AllReduceSum => (Kind::ReduceAndGather, Parts::Even { len }),
            Operation::ReduceScatterSum => {
                let (places, len) = (self.ranks.clone(), len / self.world.size);
                (Kind::Reduce, Parts::Placed { places, len })
            }
            _ => return None,
        };
        Some(Task { memory: job.memory, parts, kind })
    }

    fn start_whole(&mut self, slot: u32, job: Job) -> Result<(), Code> {
        let (world, len) = (self.world.size, job.memory.len());
        let part = |owner: usize| owner * (len / world)..(owner + 1) * (len / world);
        let whole = len <= self.chunk_elements_max;
        let communicator = match job.channel {
            Channel::Data => self.world.data,
            Channel::Control => self.world.control,
        };
        let mut chunks = |call, range| self.chunks(slot, job, call, range, communicator);
        match job.operation {
            Operation::Broadcast { root } => chunks(Call::Broadcast { root }, 0..len),
            Operation::Barrier => chunks(Call::Barrier, 0..0),
            Operation::Send { to, tag } => chunks(Call::Send { to, tag }, 0..len),
            Operation::Receive { from, tag } => chunks(Call::Receive { from, tag }, 0..len),
            Operation::AllGather if whole => chunks(Call::AllGather, part(0)),
            // Beyond the limit a chunk of all parts is not contiguous: one part after another.
            Operation::AllGather => {
                (0..world).try_for_each(|root| chunks(Call::Broadcast { root }, part(root)))
            }
            Operation::AllReduceSum | Operation::ReduceScatterSum => Ok(()), // not calls
        }
    }

    /// Cuts a range into chunks of the limit and a shorter one, and starts each. No elements are
    /// one empty chunk.
    ///
    /// A message always ends with its shorter chunk, empty where the length is a multiple of the
    /// limit: else a message that is too long by whole chunks would leave them to the next receive.
    fn chunks(
        &mut self,
        slot: u32,
        job: Job,
        call: Call,
        range: Range<usize>,
        communicator: MPI_Comm,
    ) -> Result<(), Code> {
        let chunk = self.chunk_elements_max;
        let chunks = match call {
            Call::Send { .. } | Call::Receive { .. } => range.len() / chunk + 1,
            _ => range.len().div_ceil(chunk).max(1),
        };
        for index in 0..chunks {
            let start = range.start + index * chunk;
            let piece = piece(job, start, chunk.min(range.end - start));
            // SAFETY: `submit` promised that the memory is valid and ours until the end.
            let request = unsafe { calls::start(call, piece, communicator) }?;
            let is_received = matches!(call, Call::Receive { .. });
            let expected = is_received.then_some((piece.count, job.memory.dtype()));
            self.requests.push(request, Errand { slot, of: Of::Operation, expected });
        }
        Ok(())
    }

    /// Lets MPI work, goes on with what that allows, and tells what is over; says whether anything
    /// was done. Touches no memory when `is_dead` says so after MPI was called, because the call
    /// may have outlasted the patience of the memory's owners.
    ///
    /// # Safety
    /// The memory of all operations that were started and are not over is valid and lent.
    pub(super) unsafe fn poll(
        &mut self,
        is_dead: impl Fn() -> bool,
        mut over: impl FnMut(u32, Timing),
    ) -> Result<bool, Failure> {
        if self.is_empty() {
            return Ok(false);
        }
        self.requests.test().map_err(|(slot, trouble)| self.failure(slot, trouble))?;
        if is_dead() {
            return Ok(false);
        }
        let Self { requests, exchanges, running, .. } = self;
        let mut moved = requests.take(|Errand { slot, of, .. }| match of {
            Of::Operation => count_down(running, slot, &mut over),
            Of::Piece(channel, place) => exchanges[channel as usize].landed(place),
        });
        for exchange in exchanges {
            let done = |slot| count_down(running, slot, &mut over);
            // SAFETY: the caller's promise.
            let advanced = unsafe { exchange.advance(requests, &is_dead, done) };
            let rank = self.world.rank;
            moved |=
                advanced.map_err(|(slot, code)| (slot, code.of(operation(running, slot), rank)))?;
        }
        Ok(moved)
    }

    fn failure(&self, slot: u32, trouble: Trouble) -> Failure {
        let (operation, rank) = (operation(&self.running, slot), self.world.rank);
        match trouble {
            Trouble::Failed(code) => (slot, code.of(operation, rank)),
            Trouble::Short { expected, found } => {
                let text = format!("expected a message of {expected} elements, found {found}");
                (slot, Error::Mismatch { operation, rank, text })
            }
        }
    }
}

/// One part of an operation is over: tells when it was the last.
fn count_down(running: &mut [Option<Running>], slot: u32, over: &mut impl FnMut(u32, Timing)) {
    let entry = &mut running[slot as usize];
    let Some(run) = entry else { return };
    run.left -= 1;
    if let Some(Running { job, started, .. }) = entry.take_if(|run| run.left == 0) {
        over(slot, job.done(started));
    }
}

fn operation(running: &[Option<Running>], slot: u32) -> Operation {
    running[slot as usize].map_or(Operation::Barrier, |running| running.job.operation)
}

fn piece(job: Job, start: usize, count: usize) -> Piece {
    /// Stands for no memory: Rust's address of no bytes is 1, which is Open MPI's MPI_IN_PLACE.
    static NOTHING: u64 = 0;
    let memory = job.memory;
    let pointer = if memory.is_empty() {
        std::ptr::from_ref(&NOTHING).cast::<u8>().cast_mut()
    } else {
        // SAFETY: `start` lies inside the memory or at its end.
        unsafe { memory.pointer().as_ptr().add(start * memory.dtype().bytes()) }
    };
    Piece::new(pointer, count, memory.dtype())
}
