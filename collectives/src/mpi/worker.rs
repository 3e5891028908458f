//! The communication thread: the only one that calls MPI.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Instant;

use super::flight::{Failure, Flight};
use super::pause::{Pause, Rest};
use super::shared::Shared;
use super::world::World;
use crate::slots::Job;
use crate::{Error, OUTSTANDING_MAX};

/// What the opening thread learns.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) rank: usize,
    pub(super) size: usize,
}

/// The thread's whole life.
pub(super) fn run(
    shared: &Arc<Shared>,
    chunk_elements_max: usize,
    ready: &SyncSender<Result<Facts, Error>>,
) {
    let _leaving = Leaving(shared);
    let world = match World::enter() {
        Ok(world) => world,
        Err(error) => return drop(ready.send(Err(error))),
    };
    let facts = Facts { rank: world.rank, size: world.size };
    if ready.send(Ok(facts)).is_err() {
        return; // who opened gave up meanwhile
    }
    let flight = Flight::new(world, chunk_elements_max);
    let mut worker = Worker { shared, flight, pause: Pause::new() };
    let end = worker.serve();
    shared.lock().unfinished = !worker.flight.is_empty();
    match end {
        Ok(Some(deadline)) => finalise(shared, world, deadline),
        Ok(None) => {} // dead: MPI is never entered again
        Err((slot, error)) => worker.fail(slot, error),
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
    pause: Pause,
}

impl Worker<'_> {
    /// Starts and completes operations. Ends with a deadline when an orderly end is asked for,
    /// with nothing when the backend is dead, or with what failed.
    fn serve(&mut self) -> Result<Option<Instant>, Failure> {
        let mut batch = Vec::with_capacity(OUTSTANDING_MAX);
        let mut rest = Rest::Yield;
        loop {
            if let Some(end) = self.receive(&mut batch, rest) {
                return Ok(end);
            }
            let mut progress = !batch.is_empty();
            let shared = self.shared;
            for (slot, job) in batch.drain(..) {
                // The call before may have outlasted the grace, and the callers have gone.
                if shared.is_dead() {
                    return Ok(None);
                }
                self.flight.start(slot, job)?;
            }
            let over = |slot, timing| {
                shared.lock().slots.finish(slot, Ok(timing));
                progress = true;
            };
            self.flight.poll(|| shared.is_dead(), over)?;
            if progress {
                shared.wake_waiters();
                self.pause.reset();
            }
            rest = self.pause.rest();
            if rest == Rest::Yield {
                std::thread::yield_now();
            }
        }
    }

    /// Takes what was submitted, or sleeps: without limit when nothing is in the air, else for the
    /// pause at most. `Some` is the end, with a deadline if it is an orderly one.
    fn receive(&self, batch: &mut Vec<(u32, Job)>, rest: Rest) -> Option<Option<Instant>> {
        let mut state = self.shared.lock();
        let mut slept = false;
        loop {
            if state.dead.is_some() {
                return Some(None);
            }
            let idle = self.flight.is_empty();
            if state.queue.is_empty() && idle && state.closing.is_some() {
                return Some(state.closing);
            }
            let at_most = match rest {
                _ if !state.queue.is_empty() || slept => break,
                _ if idle => None,
                Rest::Yield => break,
                Rest::Sleep(pause) => Some(pause),
            };
            state = self.shared.await_work(state, at_most);
            slept = !idle;
        }
        while let Some(slot) = state.queue.pop_front() {
            batch.push((slot, state.slots.job(slot)));
        }
        None
    }

    /// One operation fails with its own error; all others learn that the backend is dead.
    fn fail(&self, slot: u32, error: Error) {
        let mut state = self.shared.lock();
        state.die(|| error.to_string());
        state.slots.finish(slot, Err(error));
    }
}
