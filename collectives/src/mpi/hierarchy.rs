//! Operations on their way through this rank's node, across nodes, and back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::flight::{Failure, Flight};
use super::layout::Layout;
use super::plan::Plan;
use crate::node::{Lane, Node, Step, Task};
use crate::slots::Job;
use crate::{OUTSTANDING_MAX, Timing};

/// All operations that the shared memory carries. Lives on the communication thread.
///
/// Each way is first come, first served, and has a lane of its own: what goes up never waits for
/// what MPI has not brought back, and no rank needs to know when that is on another.
#[derive(Debug)]
pub(super) struct Hierarchy {
    layout: Layout,
    up: Way,
    down: Way,
    /// By slot.
    running: Box<[Option<Running>]>,
}

#[derive(Debug)]
struct Way {
    lane: Lane,
    queue: VecDeque<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Running {
    job: Job,
    started: Option<Instant>,
    /// Tasks begun on the way that it is on.
    tasks: usize,
    /// MPI has requests of it.
    is_across: bool,
}

impl Hierarchy {
    pub(super) fn new(layout: Layout, node: &Arc<Node>, piece_elements_max: usize) -> Self {
        let way = |lane| Way { lane, queue: VecDeque::with_capacity(OUTSTANDING_MAX) };
        let up = way(Lane::for_all(node.clone(), piece_elements_max));
        let down = way(Lane::for_gathers(node.clone(), piece_elements_max));
        Self { layout, up, down, running: vec![None; OUTSTANDING_MAX].into() }
    }

    /// Takes an operation that [`Plan::is_for`].
    pub(super) fn start(&mut self, slot: u32, job: Job) {
        let running = Running { job, started: None, tasks: 0, is_across: false };
        self.running[slot as usize] = Some(running);
        self.up.queue.push_back(slot);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.up.queue.is_empty() && self.down.queue.is_empty()
    }

    /// Whether there is something to do without anybody else.
    pub(super) fn can_go_on(&self) -> bool {
        let is_home = |slot: &u32| self.running[*slot as usize].is_some_and(|run| !run.is_across);
        let can = |way: &Way| way.lane.is_idle() || way.lane.can_go_on();
        (!self.up.queue.is_empty() && can(&self.up))
            || (self.down.queue.front().is_some_and(is_home) && can(&self.down))
    }

    /// Whether ranks of the node may write to a buffer of an operation that is not over.
    pub(super) fn is_exposed(&self) -> bool {
        self.up.lane.is_exposed() || self.down.lane.is_exposed()
    }

    /// MPI has finished an operation's requests; `false` when the operation is not from here.
    pub(super) fn came_back(&mut self, slot: u32) -> bool {
        let Some(running) = &mut self.running[slot as usize] else { return false };
        running.is_across = false;
        true
    }

    /// Does one round each way, as far as that is possible. Says whether anything was done, and
    /// tells what is over.
    ///
    /// # Safety
    /// The memory of all operations that were started and are not over is valid and lent.
    pub(super) unsafe fn advance(
        &mut self,
        flight: &mut Flight,
        over: impl FnMut(u32, Timing),
    ) -> Result<bool, Failure> {
        // SAFETY: the caller's promise.
        unsafe { Ok(self.advance_up(flight)? | self.advance_down(over)) }
    }

    unsafe fn advance_up(&mut self, flight: &mut Flight) -> Result<bool, Failure> {
        let Some(&slot) = self.up.queue.front() else { return Ok(false) };
        let Some(run) = &mut self.running[slot as usize] else { unreachable!("slot {slot}") };
        let plan = Plan { layout: &self.layout, job: run.job };
        run.started.get_or_insert_with(Instant::now);
        // SAFETY: the caller's promise.
        if let Some(moved) = unsafe { self.up.step(&mut run.tasks, |index| plan.up(index)) } {
            return Ok(moved);
        }
        run.tasks = 0;
        run.is_across = flight.start_across(slot, plan)?;
        self.up.queue.pop_front();
        self.down.queue.push_back(slot);
        Ok(true)
    }

    unsafe fn advance_down(&mut self, mut over: impl FnMut(u32, Timing)) -> bool {
        let Some(&slot) = self.down.queue.front() else { return false };
        let Some(run) = &mut self.running[slot as usize] else { unreachable!("slot {slot}") };
        if run.is_across {
            return false;
        }
        let plan = Plan { layout: &self.layout, job: run.job };
        // SAFETY: the caller's promise.
        if let Some(moved) = unsafe { self.down.step(&mut run.tasks, |index| plan.down(index)) } {
            return moved;
        }
        let timing = run.job.done(run.started.unwrap_or(run.job.submitted));
        self.running[slot as usize] = None;
        self.down.queue.pop_front();
        over(slot, timing);
        true
    }
}

impl Way {
    /// Goes on with the first operation's tasks; `None` when they are done, else whether anything
    /// happened.
    unsafe fn step(
        &mut self,
        begun: &mut usize,
        task: impl Fn(usize) -> Option<Task>,
    ) -> Option<bool> {
        if self.lane.is_idle() {
            self.lane.begin(task(*begun)?);
            *begun += 1;
        }
        // SAFETY: the caller's promise.
        Some(unsafe { self.lane.step() } != Step::Blocked)
    }
}
