//! The communication thread: the only one that calls MPI, and that works in the node's memory.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Instant;

use super::flight::{Failure, Flight};
use super::hierarchy::Hierarchy;
use super::join::{self, Carrier};
use super::options::MpiOptions;
use super::pause::{Pause, Rest};
use super::plan::Plan;
use super::shared::{NAME, Shared};
use super::world::World;
use crate::slots::Job;
use crate::{Error, OUTSTANDING_MAX, Timing};

/// What the opening thread learns.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) warning: Option<String>,
}

/// The thread's whole life.
pub(super) fn run(
    shared: &Arc<Shared>,
    options: &MpiOptions,
    ready: &SyncSender<Result<Facts, Error>>,
) {
    let _leaving = Leaving(shared);
    let (world, hierarchy, warning) = match enter(shared, options) {
        Ok(entered) => entered,
        Err(error) => return drop(ready.send(Err(error))),
    };
    let facts = Facts { rank: world.rank, size: world.size, warning };
    if ready.send(Ok(facts)).is_err() {
        return; // who opened gave up meanwhile
    }
    let flight = Flight::new(world, options.chunk_elements_max);
    let mut worker = Worker { shared, flight, hierarchy, landed: Vec::new(), pause: Pause::new() };
    worker.landed.reserve(OUTSTANDING_MAX);
    let end = worker.serve();
    let is_exposed = worker.hierarchy.as_ref().is_some_and(Hierarchy::is_exposed);
    shared.lock().unfinished = worker.flight.has_requests() || is_exposed;
    match end {
        Ok(Some(deadline)) => finalise(shared, world, deadline),
        Ok(None) => {} // dead: MPI is never entered again
        Err((slot, error)) => worker.fail(slot, error),
    }
}

type Entered = (World, Option<Hierarchy>, Option<String>);

/// Enters MPI and the node's memory.
fn enter(shared: &Shared, options: &MpiOptions) -> Result<Entered, Error> {
    let mut world = World::enter()?;
    let carrier = join::join(world, options).map_err(|code| {
        let text = format!("the ranks of the nodes did not meet: {}", code.text());
        Error::Start { backend: NAME, text }
    })?;
    match carrier {
        Carrier::Mpi => Ok((world, None, None)),
        Carrier::MpiForWant(reason) => {
            let text = format!("MPI carries what memory shared by a node could: {reason}");
            Ok((world, None, Some(text)))
        }
        Carrier::Memory(around) => {
            world.across = Some(around.across);
            let node = shared.settle_in(Arc::new(around.node));
            let chunk = options.chunk_elements_max;
            let hierarchy = Hierarchy::new(around.layout, node, chunk);
            Ok((world, Some(hierarchy), None))
        }
    }
}

/// Says that MPI was left for good, however this thread ends.
struct Leaving<'a>(&'a Shared);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.die(|| "the communication thread ended".to_owned());
        state.left = true;
        drop(state);
        self.0.wake_waiters();
    }
}

fn finalise(shared: &Shared, world: World, deadline: Instant) {
    let outcome = world.leave(deadline);
    let mut state = shared.lock();
    match outcome {
        Ok(true) => state.finalised = true,
        Ok(false) => state.die(|| "a peer did not come to the end".to_owned()),
        Err(code) => state.die(|| format!("MPI could not end: {}", code.text())),
    }
}

struct Worker<'a> {
    shared: &'a Shared,
    flight: Flight,
    hierarchy: Option<Hierarchy>,
    /// What MPI has finished, in the order of finding it so.
    landed: Vec<(u32, Timing)>,
    pause: Pause,
}

impl Worker<'_> {
    /// Starts and completes operations. Ends with a deadline when an orderly end is asked for,
    /// with nothing when the backend is dead, or with what failed.
    fn serve(&mut self) -> Result<Option<Instant>, Failure> {
        let mut batch = Vec::with_capacity(OUTSTANDING_MAX);
        loop {
            if let Some(end) = self.receive(&mut batch) {
                return Ok(end);
            }
            let mut progress = !batch.is_empty();
            for (slot, job) in batch.drain(..) {
                // The call before may have outlasted the grace, and the callers have gone.
                if self.shared.is_dead() {
                    return Ok(None);
                }
                self.start(slot, job)?;
            }
            progress |= self.land()?;
            if self.shared.is_dead() {
                return Ok(None);
            }
            progress |= self.advance()?;
            self.rest(progress);
        }
    }

    /// Takes what was submitted. `Some` is the end, with a deadline if it is an orderly one.
    fn receive(&self, batch: &mut Vec<(u32, Job)>) -> Option<Option<Instant>> {
        let mut state = self.shared.lock();
        if state.dead.is_some() {
            return Some(None);
        }
        if state.queue.is_empty() && self.is_idle() && state.closing.is_some() {
            return Some(state.closing);
        }
        while let Some(slot) = state.queue.pop_front() {
            batch.push((slot, state.slots.job(slot)));
        }
        None
    }

    fn start(&mut self, slot: u32, job: Job) -> Result<(), Failure> {
        if let (None, Some(node)) = (job.operation.peer(), self.shared.node()) {
            node.come(job.channel);
        }
        match &mut self.hierarchy {
            Some(hierarchy) if Plan::is_for(job) => {
                hierarchy.start(slot, job);
                Ok(())
            }
            _ => {
                let started = Instant::now();
                if !self.flight.start(slot, job)? {
                    self.shared.finish(slot, job.done(started));
                }
                Ok(())
            }
        }
    }

    /// Lets MPI work, and takes what it has finished. Says whether anything was done.
    fn land(&mut self) -> Result<bool, Failure> {
        let Self { shared, flight, hierarchy, landed, .. } = self;
        landed.clear();
        let over = |slot, timing| landed.push((slot, timing));
        // SAFETY: `submit` promised that the memory is valid and ours until the operation is over
        // or given up; who gives up waits for this thread to leave, or is told that the memory is
        // at risk.
        let moved = unsafe { flight.poll(|| shared.is_dead(), over)? };
        for &(slot, timing) in landed.iter() {
            if !hierarchy.as_mut().is_some_and(|hierarchy| hierarchy.came_back(slot)) {
                shared.finish(slot, timing);
            }
        }
        Ok(moved)
    }

    /// Works in the node's memory. Says whether anything was done.
    fn advance(&mut self) -> Result<bool, Failure> {
        let Self { shared, flight, hierarchy, .. } = self;
        let Some(hierarchy) = hierarchy else { return Ok(false) };
        // SAFETY: `submit` promised that the memory is valid and ours until the operation is over
        // or given up, which the caller has just looked for; who gives up waits for this thread to
        // leave, or is told that the memory is at risk.
        unsafe { hierarchy.advance(flight, |slot, timing| shared.finish(slot, timing)) }
    }

    /// After work none; else lets others run, or sleeps until there is something to do.
    fn rest(&mut self, progress: bool) {
        if progress {
            return self.pause.reset();
        }
        // Whoever submits or works in the node's memory rings; MPI has to be asked.
        let at_most = match self.pause.rest() {
            _ if self.is_idle() => None,
            Rest::Yield if !self.flight.is_empty() => return std::thread::yield_now(),
            _ if self.flight.is_empty() => None,
            Rest::Yield => return std::thread::yield_now(),
            Rest::Sleep(pause) => Some(pause),
        };
        self.shared.bell().sleep_unless(at_most, || {
            let state = self.shared.lock();
            let asked = !state.queue.is_empty() || state.closing.is_some() || state.dead.is_some();
            asked || self.hierarchy.as_ref().is_some_and(Hierarchy::can_go_on)
        });
    }

    fn is_idle(&self) -> bool {
        self.flight.is_empty() && self.hierarchy.as_ref().is_none_or(Hierarchy::is_empty)
    }

    /// One operation fails with its own error; all others learn that the backend is dead.
    fn fail(&self, slot: u32, error: Error) {
        let mut state = self.shared.lock();
        state.die(|| error.to_string());
        state.slots.finish(slot, Err(error));
    }
}
