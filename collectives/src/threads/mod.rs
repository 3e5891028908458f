//! Several ranks in one process, for tests: the semantics of a network, without one.
#![allow(unsafe_code)]

mod meeting;
mod transfer;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::slots::Job;
use crate::{Channel, Collective, Error, Memory, OUTSTANDING_MAX, Operation, Ticket, Timing};
use meeting::Meeting;

pub(crate) const NAME: &str = "threads";

/// One rank of a group inside this process.
///
/// The rank that comes last does the work for all, in rank order, so that sums do not depend on
/// who came when. Dropping a rank is leaving: those who wait for it reach their deadlines.
#[derive(Debug)]
pub struct Threads {
    rank: usize,
    world: usize,
    timeout: Duration,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    meeting: Mutex<Meeting>,
    done: Condvar,
}

impl Threads {
    /// A group of `world` ranks, to be given to one thread each.
    ///
    /// # Panics
    /// When `world` is 0.
    pub fn group(world: usize) -> Vec<Self> {
        Self::group_with_timeout(world, Duration::from_secs(60))
    }

    /// The same with another patience at the end of a scope.
    ///
    /// # Panics
    /// When `world` is 0.
    pub fn group_with_timeout(world: usize, timeout: Duration) -> Vec<Self> {
        assert!(world > 0, "a group has at least one rank");
        let meeting = Mutex::new(Meeting::new(world));
        let shared = Arc::new(Shared { meeting, done: Condvar::new() });
        (0..world).map(|rank| Self { rank, world, timeout, shared: shared.clone() }).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Meeting> {
        self.shared.meeting.lock().unwrap_or_else(PoisonError::into_inner)
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

// SAFETY: memory is only touched under the lock and through entries of the meeting's queues. An
// entry leaves its queue when its outcome is known, and `wait` returns no earlier than that; a
// rank that gives up takes all of its entries away under the same lock.
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
        memory: Memory,
    ) -> Result<Ticket, Error> {
        operation.check(memory.dtype(), memory.len(), self.rank, self.world)?;
        let mut meeting = self.lock();
        if let Some(reason) = meeting.gone(self.rank) {
            return Err(self.dead(reason));
        }
        let job = Job::new(channel, operation, memory);
        let full = Error::Full { operation, rank: self.rank, capacity: OUTSTANDING_MAX };
        let ticket = meeting.enter(self.rank, job).ok_or(full)?;
        // SAFETY: all entries are valid by the promise that each of their ranks made in its call.
        if unsafe { meeting.meet(self.rank, ticket.slot) } {
            self.shared.done.notify_all();
        }
        Ok(ticket)
    }

    fn wait(&self, ticket: Ticket, deadline: Instant) -> Result<Timing, Error> {
        let mut meeting = self.lock();
        loop {
            if let Some(outcome) = meeting.collect(self.rank, &ticket) {
                return outcome;
            }
            if let Some(reason) = meeting.gone(self.rank) {
                meeting.release(self.rank, &ticket);
                return Err(self.dead(reason));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let job = meeting.job(self.rank, &ticket);
                let peers = meeting.missing(self.rank, ticket.slot);
                let error = job.deadline(self.rank, NAME, peers);
                meeting.leave(self.rank, &error.to_string());
                meeting.release(self.rank, &ticket);
                return Err(error);
            }
            let woken = self.shared.done.wait_timeout(meeting, left);
            meeting = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn abandon(&self, reason: &str) {
        self.lock().leave(self.rank, reason);
        self.shared.done.notify_all();
    }
}
