//! The operations that MPI is carrying out, each as calls of MPI or as chunks of an exchange.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use mpi::ffi::MPI_Comm;

use super::exchange::{Exchange, FailedCall, Purpose};
use super::stage_plan::StagePlan;
use crate::backends::mpi::library::calls::{Call, ErrorCode, Message};
use crate::backends::mpi::library::requests::{FailedRequest, RequestError, Requests};
use crate::backends::mpi::setup::world::{Group, World};
use crate::core::outstanding::Job;
use crate::stages::partition::Partition;
use crate::stages::stage::{Stage, StageKind};
use crate::{Channel, Error, OUTSTANDING_MAX, Operation, Timing};

/// An operation that failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) slot: u32,
    pub(crate) error: Error,
}

/// All operations that MPI is carrying out. Lives on the communication thread.
#[derive(Debug)]
pub(crate) struct InFlight {
    world: World,
    /// The ranks of other nodes that this one exchanges with, where those of a node share memory.
    across_nodes: Option<Group>,
    message_elements_max: usize,
    requests: Requests<Purpose>,
    /// Exchanges of all ranks by channel, and last the exchange with the ranks of other nodes.
    exchanges: Vec<Exchange>,
    /// All ranks in ascending order.
    ranks: Arc<[usize]>,
    /// Running operations by slot.
    running: Box<[Option<Running>]>,
}

/// The number of the exchange across nodes, after those of the channels.
const ACROSS_NODES: usize = 2;

#[derive(Debug, Clone, Copy)]
struct Running {
    job: Job,
    started: Instant,
    /// Requests, or chunks of an exchange, that are not complete.
    left: usize,
}

impl InFlight {
    pub(crate) fn new(
        world: World,
        across_nodes: Option<Group>,
        message_elements_max: usize,
    ) -> Self {
        let all = |communicator| Group { communicator, member: world.rank, members: world.size };
        let groups: Vec<Group> =
            [all(world.data), all(world.control)].into_iter().chain(across_nodes).collect();
        let requests_max = groups.iter().map(Exchange::requests_max).sum();
        let exchanges = groups.into_iter().enumerate();
        let exchanges =
            exchanges.map(|(number, group)| Exchange::new(number, group, message_elements_max));
        Self {
            world,
            across_nodes,
            message_elements_max,
            requests: Requests::new(requests_max),
            exchanges: exchanges.collect(),
            ranks: (0..world.size).collect(),
            running: vec![None; OUTSTANDING_MAX].into(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.has_requests() && self.exchanges.iter().all(Exchange::is_empty)
    }

    /// Returns whether MPI may still read or write a buffer.
    pub(crate) fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Starts an operation; `false` if there is nothing to do.
    ///
    /// MPI is given all messages at once, because it requires the collective calls of a
    /// communicator in the same order on all ranks, and a window that moves with completions would
    /// depend on each rank's timing.
    pub(crate) fn start(&mut self, slot: u32, job: Job) -> Result<bool, Failure> {
        match self.sum_of_all(job) {
            Some(stage) => Ok(self.start_sum(slot, job, stage, job.channel as usize)),
            None => self.start_calls(slot, job, |in_flight| in_flight.start_whole(slot, job)),
        }
    }

    /// Starts the exchange of an operation between nodes; `false` if it has none.
    pub(crate) fn start_exchange(
        &mut self,
        slot: u32,
        plan: StagePlan<'_>,
    ) -> Result<bool, Failure> {
        let job = plan.job;
        if let Some(stage) = plan.exchanged_sum() {
            return Ok(self.start_sum(slot, job, stage, ACROSS_NODES));
        }
        self.start_calls(slot, job, |in_flight| {
            let Some(Group { communicator, .. }) = in_flight.across_nodes else { return Ok(()) };
            plan.exchanged_calls(|call, range| match range.is_empty() {
                true => Ok(()),
                false => in_flight.start_messages(slot, job, call, range, communicator),
            })
        })
    }

    fn start_sum(&mut self, slot: u32, job: Job, stage: Stage, exchange: usize) -> bool {
        let started = Instant::now();
        let left = self.exchanges[exchange].submit(slot, stage);
        self.running[slot as usize] = (left > 0).then_some(Running { job, started, left });
        left > 0
    }

    fn start_calls(
        &mut self,
        slot: u32,
        job: Job,
        start: impl FnOnce(&mut Self) -> Result<(), ErrorCode>,
    ) -> Result<bool, Failure> {
        let started = Instant::now();
        let before = self.requests.len();
        start(self).map_err(|code| self.failed_call(FailedCall { slot, code }, job.operation))?;
        let left = self.requests.len() - before;
        self.running[slot as usize] = (left > 0).then_some(Running { job, started, left });
        Ok(left > 0)
    }

    /// The sum of all ranks, in one stage.
    fn sum_of_all(&self, job: Job) -> Option<Stage> {
        let len = job.buffer.len();
        let (kind, partition) = match job.operation {
            Operation::AllReduceSum => (StageKind::AllReduce, Partition::Even { len }),
            Operation::ReduceScatterSum => {
                let positions = self.ranks.clone();
                let len = len / self.world.size;
                (StageKind::ReduceScatter, Partition::Placed { positions, len })
            }
            _ => return None,
        };
        Some(Stage { kind, buffer: job.buffer, partition })
    }

    /// Starts an operation that is no sum, over all ranks.
    fn start_whole(&mut self, slot: u32, job: Job) -> Result<(), ErrorCode> {
        let len = job.buffer.len();
        let world = self.world.size;
        let part = |owner: usize| owner * (len / world)..(owner + 1) * (len / world);
        let is_one_message = len <= self.message_elements_max;
        let communicator = match job.channel {
            Channel::Data => self.world.data,
            Channel::Control => self.world.control,
        };
        let mut start = |call, range| self.start_messages(slot, job, call, range, communicator);
        match job.operation {
            Operation::Broadcast { root } => start(Call::Broadcast { root }, 0..len),
            Operation::Barrier => start(Call::Barrier, 0..0),
            Operation::Send { to, tag } => start(Call::Send { to, tag }, 0..len),
            Operation::Receive { from, tag } => start(Call::Receive { from, tag }, 0..len),
            Operation::AllGather if is_one_message => start(Call::AllGather, part(0)),
            // A message with elements of all parts is not contiguous: one part after another.
            Operation::AllGather => {
                (0..world).try_for_each(|root| start(Call::Broadcast { root }, part(root)))
            }
            Operation::AllReduceSum | Operation::ReduceScatterSum => Ok(()), // not calls
        }
    }

    /// Divides a range into messages of the largest size and a shorter one, and starts each. A
    /// range without elements is one empty message.
    ///
    /// A send always ends with its shorter message, empty where the length is a multiple of the
    /// limit: else one that is too long by whole messages would leave them to the next receive.
    fn start_messages(
        &mut self,
        slot: u32,
        job: Job,
        call: Call,
        range: Range<usize>,
        communicator: MPI_Comm,
    ) -> Result<(), ErrorCode> {
        let elements_max = self.message_elements_max;
        let count = match call {
            Call::Send { .. } | Call::Receive { .. } => range.len() / elements_max + 1,
            _ => range.len().div_ceil(elements_max).max(1),
        };
        for index in 0..count {
            let start = range.start + index * elements_max;
            let message = message(job, start, elements_max.min(range.end - start));
            let purpose = Purpose { slot, chunk: None };
            // SAFETY: `submit` promised that the buffer is valid and ours until the end.
            unsafe { self.requests.start(purpose, call, message, communicator) }?;
        }
        Ok(())
    }

    /// Lets MPI progress, continues dependent work, and reports complete operations; returns
    /// whether anything was done. Touches no buffer when `is_dead` after MPI was called, because
    /// the call may have taken longer than the buffers' owners waited.
    ///
    /// # Safety
    /// The buffers of all operations that were started and are not complete are valid and lent.
    pub(crate) unsafe fn poll(
        &mut self,
        is_dead: impl Fn() -> bool,
        mut complete: impl FnMut(u32, Timing),
    ) -> Result<bool, Failure> {
        if self.is_empty() {
            return Ok(false);
        }
        self.requests.test().map_err(|failed| self.failed_request(failed))?;
        if is_dead() {
            return Ok(false);
        }
        let Self { requests, exchanges, running, .. } = self;
        let mut has_progressed = requests.take_complete(|purpose| match purpose.chunk {
            None => count_down(running, purpose.slot, &mut complete),
            Some(chunk) => exchanges[chunk.exchange].message_complete(chunk),
        });
        for number in 0..self.exchanges.len() {
            let Self { requests, exchanges, running, .. } = self;
            let chunk_complete = |slot| count_down(running, slot, &mut complete);
            // SAFETY: the caller's promise.
            let advanced = unsafe { exchanges[number].advance(requests, &is_dead, chunk_complete) };
            has_progressed |= advanced.map_err(|failed| {
                let operation = self.operation(failed.slot);
                self.failed_call(failed, operation)
            })?;
        }
        Ok(has_progressed)
    }

    fn failed_call(&self, failed: FailedCall, operation: Operation) -> Failure {
        let FailedCall { slot, code } = failed;
        Failure { slot, error: code.error_of(operation, self.world.rank) }
    }

    fn failed_request(&self, failed: FailedRequest<Purpose>) -> Failure {
        let slot = failed.purpose.slot;
        let operation = self.operation(slot);
        let rank = self.world.rank;
        let error = match failed.error {
            RequestError::Failed(code) => code.error_of(operation, rank),
            RequestError::WrongLength { expected, found } => {
                let text = format!("expected a message of {expected} elements, found {found}");
                Error::Mismatch { operation, rank, text }
            }
        };
        Failure { slot, error }
    }

    fn operation(&self, slot: u32) -> Operation {
        self.running[slot as usize].map_or(Operation::Barrier, |running| running.job.operation)
    }
}

/// One request or chunk of an operation is complete: reports the operation when it was the last.
fn count_down(running: &mut [Option<Running>], slot: u32, complete: &mut impl FnMut(u32, Timing)) {
    let entry = &mut running[slot as usize];
    let Some(operation) = entry else { return };
    operation.left -= 1;
    if let Some(Running { job, started, .. }) = entry.take_if(|operation| operation.left == 0) {
        complete(slot, job.timing_since(started));
    }
}

fn message(job: Job, start: usize, count: usize) -> Message {
    /// The address of a message without elements: Rust's address of no bytes is 1, which is Open
    /// MPI's MPI_IN_PLACE.
    static NO_ELEMENTS: u64 = 0;
    let buffer = job.buffer;
    let address = if buffer.is_empty() {
        std::ptr::from_ref(&NO_ELEMENTS).cast::<u8>().cast_mut()
    } else {
        // SAFETY: `start` lies inside the buffer or at its end.
        unsafe { buffer.start().as_ptr().add(start * buffer.dtype().bytes()) }
    };
    Message::new(address, count, buffer.dtype())
}
