//! Operations on shared buffers: stages within the node, an exchange between nodes, and stages
//! within the node again.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::in_flight::{Failure, InFlight};
use super::stage_plan::StagePlan;
use crate::backends::mpi::setup::topology::Topology;
use crate::core::outstanding::Job;
use crate::shm::counters::Sequence;
use crate::shm::node::{Location, Node};
use crate::shm::stage_runner::{StageRunner, Step};
use crate::stages::stage::Stage;
use crate::{Error, OUTSTANDING_MAX, Timing};

/// All operations on shared buffers. Lives on the communication thread.
///
/// The stages before and those after the exchange have a queue each, in which operations keep their
/// order, and a runner each: so the former never wait for what MPI has not completed, and no rank
/// needs to know when that is on another.
#[derive(Debug)]
pub(crate) struct Hierarchy {
    topology: Topology,
    rank: usize,
    before_exchange: StageQueue,
    after_exchange: StageQueue,
    /// Running operations by slot.
    running: Box<[Option<Running>]>,
}

#[derive(Debug)]
struct StageQueue {
    runner: StageRunner,
    slots: VecDeque<u32>,
}

#[derive(Debug, Clone)]
struct Running {
    job: Job,
    location: Location,
    started: Option<Instant>,
    /// Stages begun in the queue that it is in.
    stages: usize,
    /// MPI has not completed its exchange.
    is_exchanging: bool,
}

impl Hierarchy {
    pub(crate) fn new(topology: Topology, rank: usize, node: &Arc<Node>) -> Self {
        let queue = |sequence| StageQueue {
            runner: StageRunner::new(node.clone(), sequence),
            slots: VecDeque::with_capacity(OUTSTANDING_MAX),
        };
        Self {
            topology,
            rank,
            before_exchange: queue(Sequence::BeforeExchange),
            after_exchange: queue(Sequence::AfterExchange),
            running: vec![None; OUTSTANDING_MAX].into(),
        }
    }

    /// Starts an operation that [`StagePlan::applies_to`] and whose buffer is shared.
    pub(crate) fn start(&mut self, slot: u32, job: Job, location: Location) {
        let running = Running { job, location, started: None, stages: 0, is_exchanging: false };
        self.running[slot as usize] = Some(running);
        self.before_exchange.slots.push_back(slot);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.before_exchange.slots.is_empty() && self.after_exchange.slots.is_empty()
    }

    /// Returns whether progress is possible without waiting for another rank.
    pub(crate) fn can_progress(&self) -> bool {
        let has_exchanged = |slot: &u32| {
            self.running[*slot as usize].as_ref().is_some_and(|run| !run.is_exchanging)
        };
        let is_ready = |queue: &StageQueue| queue.runner.is_idle() || queue.runner.can_progress();
        let before = &self.before_exchange;
        let after = &self.after_exchange;
        (!before.slots.is_empty() && is_ready(before))
            || (after.slots.front().is_some_and(has_exchanged) && is_ready(after))
    }

    /// Returns whether other ranks of the node may write to the buffer of an incomplete operation.
    pub(crate) fn is_exposed(&self) -> bool {
        self.before_exchange.runner.is_exposed() || self.after_exchange.runner.is_exposed()
    }

    /// MPI has completed an operation's exchange; `false` when the operation is not from here.
    pub(crate) fn exchange_complete(&mut self, slot: u32) -> bool {
        let Some(running) = &mut self.running[slot as usize] else { return false };
        running.is_exchanging = false;
        true
    }

    /// Does one step in each queue, as far as that is possible. Returns whether anything was done,
    /// and reports what is complete.
    ///
    /// # Safety
    /// The buffers of all operations that were started and are not complete are valid and lent.
    pub(crate) unsafe fn advance(
        &mut self,
        in_flight: &mut InFlight,
        complete: impl FnMut(u32, Timing),
    ) -> Result<bool, Failure> {
        // SAFETY: the caller's promise.
        unsafe { Ok(self.advance_before(in_flight)? | self.advance_after(complete)?) }
    }

    unsafe fn advance_before(&mut self, in_flight: &mut InFlight) -> Result<bool, Failure> {
        let Some(&slot) = self.before_exchange.slots.front() else { return Ok(false) };
        let running = operation(&mut self.running, slot);
        let plan = StagePlan { topology: &self.topology, job: running.job };
        running.started.get_or_insert_with(Instant::now);
        let queue = &mut self.before_exchange;
        // SAFETY: the caller's promise.
        let step = unsafe { queue.step(running, self.rank, |index| plan.before_exchange(index)) };
        if let Some(step) = step.map_err(|error| Failure { slot, error: Box::new(error) })? {
            return Ok(step != Step::Blocked);
        }
        running.stages = 0;
        running.is_exchanging = in_flight.start_exchange(slot, plan)?;
        queue.slots.pop_front();
        self.after_exchange.slots.push_back(slot);
        Ok(true)
    }

    unsafe fn advance_after(
        &mut self,
        mut complete: impl FnMut(u32, Timing),
    ) -> Result<bool, Failure> {
        let Some(&slot) = self.after_exchange.slots.front() else { return Ok(false) };
        let running = operation(&mut self.running, slot);
        if running.is_exchanging {
            return Ok(false);
        }
        let plan = StagePlan { topology: &self.topology, job: running.job };
        let queue = &mut self.after_exchange;
        // SAFETY: the caller's promise.
        let step = unsafe { queue.step(running, self.rank, |index| plan.after_exchange(index)) };
        if let Some(step) = step.map_err(|error| Failure { slot, error: Box::new(error) })? {
            return Ok(step != Step::Blocked);
        }
        let timing = running.job.timing_since(running.started.unwrap_or(running.job.submitted));
        queue.slots.pop_front();
        self.running[slot as usize] = None;
        complete(slot, timing);
        Ok(true)
    }
}

impl StageQueue {
    /// Continues the first operation's stages; `None` when they are complete.
    unsafe fn step(
        &mut self,
        running: &mut Running,
        rank: usize,
        stage: impl Fn(usize) -> Option<Stage>,
    ) -> Result<Option<Step>, Error> {
        if self.runner.is_idle() {
            let Some(stage) = stage(running.stages) else { return Ok(None) };
            self.runner.begin(stage, running.location.clone());
            running.stages += 1;
        }
        // SAFETY: the caller's promise.
        let step = unsafe { self.runner.step() };
        step.map(Some).map_err(|mismatch| {
            let operation = running.job.operation;
            let text = format!(
                "ranks disagree: rank {} passed another range of the node's shared buffers",
                mismatch.rank
            );
            Error::Mismatch { operation, group: None, rank, text }
        })
    }
}

/// The operation of a slot that is in a queue.
fn operation(running: &mut [Option<Running>], slot: u32) -> &mut Running {
    running[slot as usize].as_mut().unwrap_or_else(|| unreachable!("slot {slot} is not queued"))
}
