//! The communication thread: it alone calls MPI, and works in the memory that the node shares.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use super::handle::{NAME, WorkerHandle};
use crate::backends::mpi::operations::hierarchy::Hierarchy;
use crate::backends::mpi::operations::in_flight::{Failure, InFlight};
use crate::backends::mpi::operations::stage_plan::StagePlan;
use crate::backends::mpi::options::MpiOptions;
use crate::backends::mpi::setup::node::{self, NodeGroups, NodeTransport};
use crate::backends::mpi::setup::world::{Group, World};
use crate::core::group::WORLD;
use crate::core::outstanding::Job;
use crate::{Error, OUTSTANDING_MAX, Timing};

/// Time after the last progress during which MPI is polled without sleeping, for latency.
const EAGER: Duration = Duration::from_micros(50);

/// Sleep between two polls of MPI after that, because ranks share cores with computation. Short,
/// because MPI moves a long message in many fragments, and only while it is called.
const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// The world that was opened.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) warning: Option<String>,
}

/// Opens MPI, carries out operations until the backend is closed or dead, and finalises MPI if it
/// was closed.
pub(crate) fn run(
    handle: &Arc<WorkerHandle>,
    options: &MpiOptions,
    opened: &SyncSender<Result<Opened, Error>>,
) {
    let _leaving = Leaving(handle);
    let Connection { world, across_nodes, hierarchy, warning } = match connect(handle, options) {
        Ok(connection) => connection,
        Err(error) => return drop(opened.send(Err(error))),
    };
    if opened.send(Ok(Opened { rank: world.rank, size: world.size, warning })).is_err() {
        return; // the caller has given up meanwhile
    }
    let mut worker = Worker {
        handle,
        in_flight: InFlight::new(world, across_nodes.clone(), options.message_elements_max),
        hierarchy,
        completed: Vec::with_capacity(OUTSTANDING_MAX),
        last_progress: Instant::now(),
    };
    let end = worker.serve();
    {
        let mut state = handle.lock();
        state.is_unfinished = worker.is_unfinished();
        state.missing_senders = worker.in_flight.missing_senders().collect();
    }
    match end {
        Ok(End::Closed(deadline)) => finalise(handle, world, across_nodes, deadline),
        Ok(End::Dead) => {} // MPI is never called again
        Err(failure) => worker.fail(failure),
    }
}

/// MPI and the node's memory, open.
struct Connection {
    world: World,
    across_nodes: Option<Group>,
    hierarchy: Option<Hierarchy>,
    warning: Option<String>,
}

fn connect(handle: &WorkerHandle, options: &MpiOptions) -> Result<Connection, Error> {
    let start = |text: String| Error::Start { backend: NAME, text };
    let world = World::initialise().map_err(start)?;
    let transport = node::join(world, options).map_err(|code| {
        start(format!("the ranks of a node could not find each other: {}", code.text()))
    })?;
    let mut connection = Connection { world, across_nodes: None, hierarchy: None, warning: None };
    match transport {
        NodeTransport::Mpi => {}
        NodeTransport::Fallback(reason) => {
            let text = format!("shared memory is unavailable, MPI moves all data: {reason}");
            connection.warning = Some(text);
        }
        NodeTransport::Shared(groups) => {
            let NodeGroups { topology, node, across_nodes } = *groups;
            let node = handle.set_node(Arc::new(node));
            connection.hierarchy = Some(Hierarchy::new(topology, world.rank, node));
            connection.across_nodes = Some(across_nodes);
        }
    }
    Ok(connection)
}

/// Records that this thread has left MPI for good, however it ends.
struct Leaving<'a>(&'a WorkerHandle);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.die(|| "the communication thread ended".to_owned());
        state.has_left = true;
        drop(state);
        self.0.wake_callers();
    }
}

fn finalise(handle: &WorkerHandle, world: World, across_nodes: Option<Group>, deadline: Instant) {
    let outcome = world.finalise(across_nodes.map(|group| group.communicator), deadline);
    let mut state = handle.lock();
    match outcome {
        Ok(true) => state.is_finalised = true,
        Ok(false) => state.die(|| "a peer did not close the backend in time".to_owned()),
        Err(code) => state.die(|| format!("MPI could not end: {}", code.text())),
    }
}

struct Worker<'a> {
    handle: &'a WorkerHandle,
    in_flight: InFlight,
    hierarchy: Option<Hierarchy>,
    /// Operations that the last poll of MPI has completed.
    completed: Vec<Completed>,
    last_progress: Instant,
}

struct Submitted {
    slot: u32,
    job: Job,
}

#[derive(Clone, Copy)]
struct Completed {
    slot: u32,
    timing: Timing,
}

/// Reason why no more operations are carried out.
enum End {
    /// The backend is to be closed in order, until this deadline.
    Closed(Instant),
    /// The backend is dead.
    Dead,
}

impl Worker<'_> {
    /// Starts and completes operations until the end.
    fn serve(&mut self) -> Result<End, Failure> {
        let mut submitted = Vec::with_capacity(OUTSTANDING_MAX);
        loop {
            if let Some(end) = self.receive(&mut submitted) {
                return Ok(end);
            }
            let mut has_progressed = !submitted.is_empty();
            for Submitted { slot, job } in submitted.drain(..) {
                // The previous call may have taken longer than the grace, and the callers have
                // gone.
                if self.handle.is_dead() {
                    return Ok(End::Dead);
                }
                self.start(slot, job)?;
            }
            has_progressed |= self.poll_mpi()?;
            if self.handle.is_dead() {
                return Ok(End::Dead);
            }
            has_progressed |= self.advance_stages()?;
            self.rest(has_progressed);
        }
    }

    /// Receives submitted operations, unless it is the end.
    fn receive(&mut self, submitted: &mut Vec<Submitted>) -> Option<End> {
        let mut state = self.handle.lock();
        if state.dead.is_some() {
            return Some(End::Dead);
        }
        if let (Some(deadline), true) = (state.closing, state.queue.is_empty() && self.is_idle()) {
            return Some(End::Closed(deadline));
        }
        // Before the first operation of a new group.
        for membership in state.groups.iter().skip(self.in_flight.groups() - 1) {
            self.in_flight.add_group(membership.clone());
        }
        while let Some(slot) = state.queue.pop_front() {
            submitted.push(Submitted { slot, job: state.outstanding.job(slot) });
        }
        None
    }

    fn start(&mut self, slot: u32, job: Job) -> Result<(), Failure> {
        let node = self.handle.node().filter(|_| job.group == WORLD);
        if let (None, Some(node)) = (job.operation.peer(), node) {
            node.record_start(job.channel);
        }
        let location = node.filter(|_| StagePlan::applies_to(&job));
        let location = location.and_then(|node| node.locate(job.buffer));
        if let (Some(hierarchy), Some(location)) = (&mut self.hierarchy, location) {
            hierarchy.start(slot, job, location);
            return Ok(());
        }
        let started = Instant::now();
        if !self.in_flight.start(slot, job)? {
            self.handle.complete(slot, job.timing_since(started));
        }
        Ok(())
    }

    /// Lets MPI progress, and collects complete operations. Returns whether anything was done.
    fn poll_mpi(&mut self) -> Result<bool, Failure> {
        let Self { handle, in_flight, hierarchy, completed, .. } = self;
        completed.clear();
        let complete = |slot, timing| completed.push(Completed { slot, timing });
        // SAFETY: `submit` promised that the buffer is valid and ours until the operation is
        // complete or given up; a caller that gives up waits for this thread to leave, or learns
        // that the memory is at risk.
        let has_progressed = unsafe { in_flight.poll(|| handle.is_dead(), complete)? };
        for &Completed { slot, timing } in completed.iter() {
            let is_exchange =
                hierarchy.as_mut().is_some_and(|hierarchy| hierarchy.exchange_complete(slot));
            if !is_exchange {
                handle.complete(slot, timing);
            }
        }
        Ok(has_progressed)
    }

    /// Works on operations in shared buffers. Returns whether anything was done.
    fn advance_stages(&mut self) -> Result<bool, Failure> {
        let Self { handle, in_flight, hierarchy, .. } = self;
        let Some(hierarchy) = hierarchy else { return Ok(false) };
        // SAFETY: as in `poll_mpi`; the caller has just checked that the backend is not dead.
        unsafe { hierarchy.advance(in_flight, |slot, timing| handle.complete(slot, timing)) }
    }

    /// Yields the core, or sleeps until there is something to do. Returns at once after progress.
    fn rest(&mut self, has_progressed: bool) {
        if has_progressed {
            self.last_progress = Instant::now();
            return;
        }
        // Callers and the ranks of the node wake this thread; MPI has to be polled.
        let polls = !self.in_flight.is_empty();
        if polls && self.last_progress.elapsed() < EAGER {
            return std::thread::yield_now();
        }
        let timeout = polls.then_some(POLL_INTERVAL);
        self.handle.wakeup().wait_unless(timeout, || {
            let state = self.handle.lock();
            let is_called =
                !state.queue.is_empty() || state.closing.is_some() || state.dead.is_some();
            is_called || self.hierarchy.as_ref().is_some_and(Hierarchy::can_progress)
        });
    }

    fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && self.hierarchy.as_ref().is_none_or(Hierarchy::is_empty)
    }

    /// Returns whether MPI, or other ranks of the node, may still read or write a buffer.
    fn is_unfinished(&self) -> bool {
        let is_exposed = self.hierarchy.as_ref().is_some_and(Hierarchy::is_exposed);
        self.in_flight.has_requests() || is_exposed
    }

    /// Fails one operation with its own error; all others find the backend dead.
    fn fail(&self, Failure { slot, error }: Failure) {
        let mut state = self.handle.lock();
        state.die(|| error.to_string());
        state.outstanding.complete(slot, Err(*error));
    }
}
