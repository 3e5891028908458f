//! Several ranks in one process, for tests: the semantics of a network, without one.
#![allow(unsafe_code)]

mod rendezvous;
mod transfer;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::core::outstanding::Job;
use crate::{Channel, Collective, Error, OUTSTANDING_MAX, Operation, RawBuffer, Ticket, Timing};
use rendezvous::Rendezvous;

const NAME: &str = "threads";

/// One rank of a group inside this process.
///
/// The last rank to submit an operation does the work for all, in the order of the ranks, so that
/// sums do not depend on timing. A rank that is dropped leaves the group: operations of other ranks
/// that need it fail at their deadlines.
#[derive(Debug)]
pub struct Threads {
    rank: usize,
    world: usize,
    timeout: Duration,
    group: Arc<Group>,
}

#[derive(Debug)]
struct Group {
    rendezvous: Mutex<Rendezvous>,
    done: Condvar,
}

impl Threads {
    /// Creates a group of `world` ranks, one for each of as many threads.
    ///
    /// # Panics
    /// Panics if `world` is 0.
    pub fn group(world: usize) -> Vec<Self> {
        Self::group_with_timeout(world, Duration::from_secs(60))
    }

    /// Creates a group like [`group`](Self::group), with another [timeout](Collective::timeout).
    ///
    /// # Panics
    /// Panics if `world` is 0.
    pub fn group_with_timeout(world: usize, timeout: Duration) -> Vec<Self> {
        assert!(world > 0, "a group has at least one rank");
        let rendezvous = Mutex::new(Rendezvous::new(world));
        let group = Arc::new(Group { rendezvous, done: Condvar::new() });
        (0..world).map(|rank| Self { rank, world, timeout, group: group.clone() }).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Rendezvous> {
        self.group.rendezvous.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dead(&self, reason: Arc<str>) -> Error {
        Error::Dead { backend: NAME, rank: self.rank, reason }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.lock().leave(self.rank, "it was dropped");
    }
}

// SAFETY: buffers are only touched under the lock and through entries of the rendezvous' queues. An
// entry leaves its queue when its outcome is known, and `wait` returns no earlier than that; a
// rank that gives up removes all of its entries under the same lock. It allocates no memory.
unsafe impl Collective for Threads {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.world
    }

    fn backend(&self) -> &'static str {
        NAME
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    unsafe fn submit(
        &self,
        channel: Channel,
        operation: Operation,
        buffer: RawBuffer,
    ) -> Result<Ticket, Error> {
        operation.require_host(buffer)?;
        operation.validate(buffer, self.rank, self.world)?;
        let mut rendezvous = self.lock();
        if let Some(reason) = rendezvous.left(self.rank) {
            return Err(self.dead(reason));
        }
        let job = Job::new(channel, operation, buffer);
        let full = Error::Full { operation, rank: self.rank, capacity: OUTSTANDING_MAX };
        let ticket = rendezvous.insert(self.rank, job).ok_or(full)?;
        // SAFETY: all entries are valid by the promise that each of their ranks made in its call.
        if unsafe { rendezvous.advance(self.rank, ticket.slot) } {
            self.group.done.notify_all();
        }
        Ok(ticket)
    }

    fn wait(&self, ticket: Ticket, deadline: Instant) -> Result<Timing, Error> {
        let mut rendezvous = self.lock();
        loop {
            if let Some(outcome) = rendezvous.take_outcome(self.rank, &ticket) {
                return outcome;
            }
            if let Some(reason) = rendezvous.left(self.rank) {
                rendezvous.release(self.rank, &ticket);
                return Err(self.dead(reason));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let job = rendezvous.job(self.rank, &ticket);
                let peers = rendezvous.missing(self.rank, ticket.slot);
                let error = job.deadline_error(self.rank, NAME, peers);
                rendezvous.leave(self.rank, &error.to_string());
                rendezvous.release(self.rank, &ticket);
                return Err(error);
            }
            let woken = self.group.done.wait_timeout(rendezvous, left);
            rendezvous = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn abandon(&self, reason: &str) {
        self.lock().leave(self.rank, reason);
        self.group.done.notify_all();
    }
}
