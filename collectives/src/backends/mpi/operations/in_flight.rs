//! The operations that MPI is carrying out, each as calls of MPI or as chunks of an exchange.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use mpi::ffi::MPI_Comm;

use super::exchange::{Exchange, FailedCall, Purpose};
use super::grid::{Axis, Entering, KINDS, Lines, Passed, Stages, axes, kind_of};
use super::stage_plan::StagePlan;
use crate::backends::mpi::library::calls::{Call, ErrorCode, Message};
use crate::backends::mpi::library::requests::{FailedRequest, RequestError, Requests};
use crate::backends::mpi::setup::world::{Group, World};
use crate::core::group::{GridPlan, Membership, WORLD};
use crate::core::outstanding::Job;
use crate::stages::partition::Partition;
use crate::stages::stage::{Stage, StageKind};
use crate::{Channel, Error, Interval, OUTSTANDING_MAX, Operation, Timing};

/// An operation that failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) slot: u32,
    pub(crate) error: Box<Error>,
}

/// All operations that MPI is carrying out. Lives on the communication thread.
#[derive(Debug)]
pub(crate) struct InFlight {
    world: World,
    message_elements_max: usize,
    requests: Requests<Purpose>,
    /// The world and its groups, by index.
    groups: Vec<Place>,
    exchanges: Vec<Exchange>,
    /// The exchange with the ranks of other nodes, where those of a node share memory.
    across_nodes: Option<AcrossNodes>,
    /// Running operations by slot.
    running: Box<[Option<Running>]>,
}

/// This rank's place in the world or in a group.
#[derive(Debug)]
struct Place {
    membership: Membership,
    /// Number of each channel's exchange.
    exchanges: [usize; 2],
    /// Position of each member's part in a buffer of equal parts.
    positions: Arc<[usize]>,
    grid: Option<Grid>,
}

/// The dimensions of a group that is a grid.
#[derive(Debug)]
struct Grid {
    lines: Lines,
    /// By channel, for each kind of operation.
    stages: [[Stages; 3]; 2],
}

#[derive(Debug)]
struct AcrossNodes {
    exchange: usize,
    communicator: MPI_Comm,
}

/// A rank whose message an operation waits for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MissingSender {
    /// Slot of the operation.
    pub(crate) slot: u32,
    /// Group and channel of the operation, which have one order.
    pub(crate) group: u16,
    pub(crate) channel: Channel,
    /// Rank in the world.
    pub(crate) rank: usize,
}

#[derive(Debug, Clone, Copy)]
struct Running {
    job: Job,
    started: Instant,
    /// Requests, or chunks of an exchange, that are not complete.
    left: usize,
    /// Kind of an operation that has stages over the dimensions of a grid, of which this is one.
    staged: Option<StageKind>,
    /// Time of its stage over the outer dimension, once that has begun.
    outer: Option<Interval>,
}

impl Running {
    /// Begins an operation with so many requests or chunks, and no stages.
    fn new(job: Job, started: Instant, left: usize) -> Self {
        Self { job, started, left, staged: None, outer: None }
    }

    /// Begins a stage in this direction, whose chunks are so many.
    fn enter_stage(&mut self, axis: Axis, left: usize) {
        self.left = left;
        let now = Instant::now();
        match (axis, &mut self.outer) {
            (Axis::Outer, outer) => *outer = Some(Interval { started: now, ended: now }),
            (Axis::Inner, Some(outer)) => outer.ended = now,
            (Axis::Inner, None) => {}
        }
    }

    /// The timing of an operation that has passed its last stage.
    fn staged_timing(&self) -> Timing {
        let timing = self.job.timing_since(self.started);
        let last = self.staged.and_then(|kind| axes(kind).last());
        let ends_outside = last == Some(&Axis::Outer);
        let ended = |outer: Interval| if ends_outside { timing.ended } else { outer.ended };
        let outer = self.outer.map(|outer| Interval { ended: ended(outer), ..outer });
        Timing { outer, ..timing }
    }
}

impl InFlight {
    pub(crate) fn new(
        world: World,
        across_nodes: Option<Group>,
        message_elements_max: usize,
    ) -> Self {
        let mut in_flight = Self {
            world,
            message_elements_max,
            requests: Requests::new(),
            groups: Vec::new(),
            exchanges: Vec::new(),
            across_nodes: None,
            running: vec![None; OUTSTANDING_MAX].into(),
        };
        in_flight.add_group(Membership::of_world(world.rank, world.size));
        in_flight.across_nodes = across_nodes.map(|group| {
            let communicator = group.communicator;
            AcrossNodes { exchange: in_flight.add_exchange(group), communicator }
        });
        in_flight
    }

    /// Adds a group, whose index is the number of those before. Allocates.
    pub(crate) fn add_group(&mut self, membership: Membership) {
        debug_assert_eq!(membership.group as usize, self.groups.len(), "added in order");
        let exchanges = [Channel::Data, Channel::Control]
            .map(|channel| self.add_exchange(self.world.group(&membership, channel)));
        let positions = (0..membership.size()).collect();
        let grid = membership.grid.clone().map(|grid| self.add_grid(&membership, &grid));
        self.groups.push(Place { membership, exchanges, positions, grid });
    }

    fn add_grid(&mut self, membership: &Membership, grid: &GridPlan) -> Grid {
        let lines = Lines::new(membership, grid);
        let stages = [Channel::Data, Channel::Control].map(|channel| {
            // After the tags of the group's own exchange, a block for each stage.
            let mut block = 1;
            KINDS.map(|kind| {
                let axes = axes(kind).iter().enumerate();
                let exchanges = axes.map(|(stage, &axis)| {
                    let line = self.world.group(lines.along(axis), channel);
                    let named = line.named.filter(|_| stage == 0);
                    let group = Group { exchange_block: block, named, ..line };
                    block += 1;
                    self.add_exchange(group)
                });
                let exchanges: Vec<usize> = exchanges.collect();
                Stages::new(exchanges.into_iter())
            })
        });
        Grid { lines, stages }
    }

    fn add_exchange(&mut self, group: Group) -> usize {
        let number = self.exchanges.len();
        self.requests.add_room(Exchange::requests_max(&group));
        self.exchanges.push(Exchange::new(number, group, self.message_elements_max));
        number
    }

    /// Number of groups, of which the world is one.
    pub(crate) fn groups(&self) -> usize {
        self.groups.len()
    }

    fn place(&self, job: Job) -> &Place {
        &self.groups[job.group as usize]
    }

    /// The ranks that operations in flight wait for, as far as that is known.
    pub(crate) fn missing_senders(&self) -> impl Iterator<Item = MissingSender> {
        let missing = |Purpose { slot, sender, .. }| {
            let Job { group, channel, .. } = self.running[slot as usize]?.job;
            Some(MissingSender { slot, group, channel, rank: sender? })
        };
        self.requests.purposes().filter_map(missing)
    }

    pub(crate) fn is_empty(&self) -> bool {
        let has_stages = |grid: &Grid| !grid.stages.as_flattened().iter().all(Stages::is_empty);
        let mut grids = self.groups.iter().filter_map(|place| place.grid.as_ref());
        !self.has_requests()
            && self.exchanges.iter().all(Exchange::is_empty)
            && !grids.any(has_stages)
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
        if let Some(entering) = self.enter_grid(slot, job) {
            let started = Instant::now();
            let staged = kind_of(job.operation);
            let running = Running { staged, ..Running::new(job, started, 0) };
            self.running[slot as usize] = Some(running);
            self.enter_stage(entering, job);
            return Ok(true);
        }
        match self.stage(job) {
            Some(stage) => {
                let exchange = self.place(job).exchanges[job.channel as usize];
                Ok(self.start_stage(slot, job, stage, exchange))
            }
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
        let Some(AcrossNodes { exchange, communicator }) = self.across_nodes else {
            return Ok(false);
        };
        if let Some(stage) = plan.exchanged_sum() {
            return Ok(self.start_stage(slot, job, stage, exchange));
        }
        self.start_calls(slot, job, |in_flight| {
            plan.exchanged_calls(|call, range| match range.is_empty() {
                true => Ok(()),
                false => in_flight.start_messages(slot, job, call, range, communicator),
            })
        })
    }

    fn start_stage(&mut self, slot: u32, job: Job, stage: Stage, exchange: usize) -> bool {
        let started = Instant::now();
        let left = self.exchanges[exchange].submit(slot, stage);
        self.running[slot as usize] = (left > 0).then_some(Running::new(job, started, left));
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
        start(self).map_err(|code| self.failed_call(FailedCall { slot, code }, job))?;
        let left = self.requests.len() - before;
        self.running[slot as usize] = (left > 0).then_some(Running::new(job, started, left));
        Ok(left > 0)
    }

    /// The stage of an operation that is one: a sum, or any collective operation of a group. Those
    /// of all ranks that are no sums are MPI's, whose messages do not grow with the world.
    fn stage(&self, job: Job) -> Option<Stage> {
        let buffer = job.buffer;
        let len = buffer.len();
        let Place { positions, .. } = self.place(job);
        let parts =
            || Partition::Placed { positions: positions.clone(), len: len / positions.len() };
        let (kind, partition) = match job.operation {
            Operation::AllReduceSum => (StageKind::AllReduce, Partition::Even { len }),
            Operation::ReduceScatterSum => (StageKind::ReduceScatter, parts()),
            _ if job.group == WORLD => return None,
            Operation::AllGather | Operation::Barrier => (StageKind::AllGather, parts()),
            Operation::Broadcast { root: owner } => {
                (StageKind::AllGather, Partition::Whole { owner, len })
            }
            Operation::Send { .. } | Operation::Receive { .. } | Operation::Messages => {
                return None;
            }
        };
        Some(Stage { kind, buffer, partition })
    }

    /// Starts an operation as calls of MPI.
    fn start_whole(&mut self, slot: u32, job: Job) -> Result<(), ErrorCode> {
        let len = job.buffer.len();
        let world = self.world.size;
        let part = |owner: usize| owner * (len / world)..(owner + 1) * (len / world);
        let is_one_message = len <= self.message_elements_max;
        let group = self.exchanges[self.place(job).exchanges[job.channel as usize]].group();
        let communicator = group.communicator;
        let send = |to: usize, tag| Call::Send { to: group.ranks[to], tag: group.tag(tag) };
        let receive =
            |from: usize, tag| Call::Receive { from: group.ranks[from], tag: group.tag(tag) };
        let point_to_point = match job.operation {
            Operation::Send { to, tag } => Some(send(to, tag)),
            Operation::Receive { from, tag } => Some(receive(from, tag)),
            _ => None,
        };
        let mut start = |call, range| self.start_messages(slot, job, call, range, communicator);
        if let Some(call) = point_to_point {
            return start(call, 0..len);
        }
        match job.operation {
            Operation::Broadcast { root } => start(Call::Broadcast { root }, 0..len),
            Operation::Barrier => start(Call::Barrier, 0..0),
            Operation::AllGather if is_one_message => start(Call::AllGather, part(0)),
            // A message with elements of all parts is not contiguous: one part after another.
            Operation::AllGather => {
                (0..world).try_for_each(|root| start(Call::Broadcast { root }, part(root)))
            }
            _ => Ok(()), // stages
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
            let purpose = Purpose { slot, chunk: None, sender: None };
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
                let job = self.job(failed.slot);
                self.failed_call(failed, job)
            })?;
        }
        has_progressed |= self.advance_grids(complete);
        Ok(has_progressed)
    }

    /// Enters an operation into the first stage over a grid, if it has stages.
    fn enter_grid(&mut self, slot: u32, job: Job) -> Option<Entering> {
        let grid = self.groups[job.group as usize].grid.as_mut()?;
        let kind = kind_of(job.operation)?;
        Some(grid.stages[job.channel as usize][kind as usize].start(slot))
    }

    /// Submits a stage to its exchange.
    fn enter_stage(&mut self, Entering { slot, stage, exchange }: Entering, job: Job) {
        let Some(grid) = &self.groups[job.group as usize].grid else { return };
        let Some(kind) = kind_of(job.operation) else { return };
        let axis = axes(kind)[stage];
        let stage = grid.lines.stage(kind, stage, job);
        let left = self.exchanges[exchange].submit(slot, stage);
        if let Some(running) = &mut self.running[slot as usize] {
            running.enter_stage(axis, left);
        }
    }

    /// Moves operations that have passed a stage over a grid to the next one, and reports those
    /// that have passed the last. Returns whether there were any.
    fn advance_grids(&mut self, mut complete: impl FnMut(u32, Timing)) -> bool {
        let mut has_progressed = false;
        while let Some(passed) = self.pass_stage() {
            has_progressed = true;
            match passed {
                Passed::Entering(entering) => self.enter_stage(entering, self.job(entering.slot)),
                Passed::Complete(slot) => {
                    if let Some(running) = self.running[slot as usize].take() {
                        complete(slot, running.staged_timing());
                    }
                }
            }
        }
        has_progressed
    }

    fn pass_stage(&mut self) -> Option<Passed> {
        let Self { groups, running, .. } = self;
        let has_passed = |slot: u32| running[slot as usize].is_some_and(|run| run.left == 0);
        let grids = groups.iter_mut().filter_map(|place| place.grid.as_mut());
        let mut stages = grids.flat_map(|grid| grid.stages.as_flattened_mut());
        stages.find_map(|stages| stages.pass(has_passed))
    }

    fn failed_call(&self, FailedCall { slot, code }: FailedCall, job: Job) -> Failure {
        let error = code.error_of(job.operation, &self.place(job).membership);
        Failure { slot, error: Box::new(error) }
    }

    fn failed_request(&self, failed: FailedRequest<Purpose>) -> Failure {
        let slot = failed.purpose.slot;
        let job = self.job(slot);
        match failed.error {
            RequestError::Failed(code) => self.failed_call(FailedCall { slot, code }, job),
            RequestError::WrongLength { expected, found } => {
                let text = format!("expected a message of {expected} elements, found {found}");
                let error = self.place(job).membership.mismatch(job.operation, text);
                Failure { slot, error: Box::new(error) }
            }
        }
    }

    fn job(&self, slot: u32) -> Job {
        let running = self.running[slot as usize];
        running.unwrap_or_else(|| unreachable!("slot {slot} is not running")).job
    }
}

/// One request or chunk of an operation is complete: reports the operation when it was the last.
fn count_down(running: &mut [Option<Running>], slot: u32, complete: &mut impl FnMut(u32, Timing)) {
    let entry = &mut running[slot as usize];
    let Some(operation) = entry else { return };
    operation.left -= 1;
    let is_complete = |operation: &mut Running| operation.left == 0 && operation.staged.is_none();
    if let Some(Running { job, started, .. }) = entry.take_if(is_complete) {
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
