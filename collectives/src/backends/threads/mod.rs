//! Several ranks in one process, for tests: the semantics of a network, without one.
#![allow(unsafe_code)]

mod rendezvous;
mod transfer;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::core::group::Membership;
use crate::core::outstanding::Job;
use crate::{
    Channel, Collective, Dimensions, Error, GridPlan, GroupPlan, Message, OUTSTANDING_MAX,
    Operation, RawBuffer, Ticket, Timing,
};
use rendezvous::Rendezvous;

const NAME: &str = "threads";

/// One rank of a group inside this process.
///
/// The last rank to submit an operation does the work for all, in the order of the ranks, so that
/// sums do not depend on timing. A rank that is dropped leaves the world: operations of other ranks
/// that need it fail at their deadlines.
#[derive(Debug)]
pub struct Threads {
    membership: Membership,
    timeout: Duration,
    process: Arc<Process>,
    /// This is the rank itself, and not its place in a group.
    is_world: bool,
}

/// All ranks.
#[derive(Debug)]
struct Process {
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
        let process = Arc::new(Process { rendezvous, done: Condvar::new() });
        let rank = |rank| Self {
            membership: Membership::of_world(rank, world),
            timeout,
            process: process.clone(),
            is_world: true,
        };
        (0..world).map(rank).collect()
    }

    /// This rank's end of a group.
    fn in_group(&self, plan: &GroupPlan, grid: Option<Arc<GridPlan>>) -> Result<Self, Error> {
        let rank = self.world_rank();
        let mut rendezvous = self.lock();
        let world = rendezvous.world();
        let member = plan.member(rank, world);
        let member = member.map_err(|text| Error::Start { backend: NAME, text })?;
        let membership = match plan.is_world(world) && grid.is_none() {
            true => Membership::of_world(rank, world),
            false => {
                let group = rendezvous.group(plan, member, grid);
                group.map_err(|text| Error::Start { backend: NAME, text })?
            }
        };
        let Self { timeout, process, .. } = self;
        Ok(Self { membership, timeout: *timeout, process: process.clone(), is_world: false })
    }

    /// The rank in the world.
    fn world_rank(&self) -> usize {
        self.membership.world_rank()
    }

    fn lock(&self) -> MutexGuard<'_, Rendezvous> {
        self.process.rendezvous.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dead(&self, reason: Arc<str>) -> Error {
        Error::Dead { backend: NAME, rank: self.world_rank(), reason }
    }

    /// Locks the rendezvous, unless this rank has left it.
    fn lock_alive(&self) -> Result<MutexGuard<'_, Rendezvous>, Error> {
        let rendezvous = self.lock();
        match rendezvous.left(self.world_rank()) {
            Some(reason) => Err(self.dead(reason)),
            None => Ok(rendezvous),
        }
    }

    /// A job as one of this group's.
    fn job(&self, job: Job) -> Job {
        Job { group: self.membership.group, ..job }
    }

    fn full(&self, job: Job) -> Error {
        let operation = job.operation.in_world(&self.membership.plan.ranks);
        Error::Full { operation, rank: self.world_rank(), capacity: OUTSTANDING_MAX }
    }

    /// Carries out what the operation just entered has completed.
    ///
    /// # Safety
    /// Its buffer is valid, as those of all entries are by the promises of their ranks.
    unsafe fn advance(&self, rendezvous: &mut Rendezvous, slot: u32) {
        // SAFETY: the caller's promise.
        if unsafe { rendezvous.advance(&self.membership, slot) } {
            self.process.done.notify_all();
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if self.is_world {
            self.lock().leave(self.world_rank(), "it was dropped");
            self.process.done.notify_all();
        }
    }
}

// SAFETY: buffers are only touched under the lock and through entries of the rendezvous' queues. An
// entry leaves its queue when its outcome is known, and `wait` returns no earlier than that; a
// rank that gives up removes all of its entries under the same lock. It allocates no memory.
unsafe impl Collective for Threads {
    fn rank(&self) -> usize {
        self.membership.member
    }

    fn world(&self) -> usize {
        self.membership.size()
    }

    fn group(&self) -> Option<Arc<GroupPlan>> {
        self.membership.named()
    }

    fn dimensions(&self) -> Dimensions {
        self.membership.dimensions()
    }

    fn subgroup(&self, plan: &GroupPlan) -> Result<Box<dyn Collective>, Error> {
        Ok(Box::new(self.in_group(plan, None)?))
    }

    fn grid(&self, plan: &GridPlan) -> Result<Box<dyn Collective>, Error> {
        let group = plan.checked_group();
        let group = group.map_err(|text| Error::Start { backend: NAME, text })?;
        Ok(Box::new(self.in_group(&group, plan.staged())?))
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
        operation.validate(buffer, &self.membership)?;
        let mut rendezvous = self.lock_alive()?;
        let job = self.job(Job::new(channel, operation, buffer));
        let ticket = rendezvous.insert(self.world_rank(), job).ok_or_else(|| self.full(job))?;
        // SAFETY: the caller's promise.
        unsafe { self.advance(&mut rendezvous, ticket.slot) };
        Ok(ticket)
    }

    unsafe fn submit_group(&self, channel: Channel, messages: &[Message]) -> Result<Ticket, Error> {
        for message in messages {
            message.operation.require_host(message.buffer)?;
            message.validate(&self.membership)?;
        }
        let rank = self.world_rank();
        let mut rendezvous = self.lock_alive()?;
        let job = self.job(Job::of_messages(channel, messages));
        let ticket = rendezvous.insert_group(rank, job, messages.len());
        let ticket = ticket.ok_or_else(|| self.full(job))?;
        for &message in messages {
            let slot = rendezvous.insert_part(rank, &ticket, job.message(message));
            // SAFETY: the caller's promise.
            unsafe { self.advance(&mut rendezvous, slot) };
        }
        Ok(ticket)
    }

    fn wait(&self, ticket: Ticket, deadline: Instant) -> Result<Timing, Error> {
        let rank = self.world_rank();
        let mut rendezvous = self.lock();
        loop {
            if let Some(outcome) = rendezvous.take_outcome(rank, &ticket) {
                return outcome;
            }
            if let Some(reason) = rendezvous.left(rank) {
                let failure = rendezvous.release(rank, &ticket);
                return Err(failure.unwrap_or_else(|| self.dead(reason)));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let job = rendezvous.job(rank, &ticket);
                let peers = rendezvous.missing(rank, ticket.slot);
                let error = job.deadline_error(&self.membership, NAME, peers);
                rendezvous.leave(rank, &error.to_string());
                rendezvous.release(rank, &ticket);
                return Err(error);
            }
            let woken = self.process.done.wait_timeout(rendezvous, left);
            rendezvous = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn abandon(&self, reason: &str) {
        self.lock().leave(self.world_rank(), reason);
        self.process.done.notify_all();
    }
}
