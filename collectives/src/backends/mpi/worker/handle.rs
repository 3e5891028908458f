//! State shared by callers and the communication thread.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::backends::mpi::operations::in_flight::MissingSender;
use crate::core::group::{Membership, WORLD};
use crate::core::outstanding::{Job, OutstandingTable};
use crate::shm::FutexEvent;
use crate::shm::node::Node;
use crate::{Error, GridPlan, GroupPlan, Message, OUTSTANDING_MAX, Operation, Ticket, Timing};

pub(crate) const NAME: &str = "mpi";

/// Grace in which the communication thread must return from its current MPI call.
pub(crate) const GRACE: Duration = Duration::from_secs(1);

/// The handle to the communication thread: callers submit operations and wait, the thread takes
/// what was submitted and completes it.
#[derive(Debug)]
pub(crate) struct WorkerHandle {
    state: Mutex<State>,
    /// Wakes the communication thread while there is no node, which has an event for that.
    wakeup: FutexEvent,
    /// Set before the first operation, if ever.
    node: OnceLock<Arc<Node>>,
    /// Wakes callers that wait for an operation, or for the end of the communication thread.
    done: Condvar,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) outstanding: OutstandingTable,
    /// Slots of operations that were submitted and not started.
    pub(crate) queue: VecDeque<u32>,
    /// Groups of the world that this rank is in, in the order of their indices, from 1.
    pub(crate) groups: Vec<Membership>,
    /// Collective operations of all ranks submitted so far, per channel.
    submitted: [u64; 2],
    /// Number, by slot, of the operation among its channel's collective operations, from 1.
    sequence: Box<[u64]>,
    /// Reason why no operation is accepted any more.
    pub(crate) dead: Option<Arc<str>>,
    /// Start of the communication thread's grace, for all callers together.
    pub(crate) dead_since: Option<Instant>,
    /// The communication thread has left MPI for good: it touches no buffer any more.
    pub(crate) has_left: bool,
    /// Set before `has_left`: there are operations that MPI, or ranks that map the memory, may
    /// still be carrying out.
    pub(crate) is_unfinished: bool,
    /// Set before `has_left`: ranks that operations in flight wait for.
    pub(crate) missing_senders: Vec<MissingSender>,
    /// MPI_Finalize has returned.
    pub(crate) is_finalised: bool,
    /// The backend is to be closed in order, until this deadline.
    pub(crate) closing: Option<Instant>,
}

impl State {
    /// Rejects operations from here on; the first reason counts.
    pub(crate) fn die(&mut self, reason: impl FnOnce() -> String) {
        if self.dead.is_none() {
            self.dead = Some(reason().into());
            self.dead_since = Some(Instant::now());
        }
    }

    /// The ranks that keep an operation from completing: senders of its own messages, or else those
    /// of the operations that it may be behind. Known when the communication thread has left.
    fn missing(&self, slot: u32) -> Vec<usize> {
        let Job { group, channel, .. } = self.outstanding.job(slot);
        let ranks = |is_meant: &dyn Fn(&MissingSender) -> bool| {
            let senders = self.missing_senders.iter().filter(|missing| is_meant(missing));
            let mut ranks: Vec<usize> = senders.map(|missing| missing.rank).collect();
            ranks.sort_unstable();
            ranks.dedup();
            ranks
        };
        let own = ranks(&|of| of.slot == slot);
        if own.is_empty() { ranks(&|of| of.group == group && of.channel == channel) } else { own }
    }
}

impl WorkerHandle {
    pub(crate) fn new() -> Self {
        let state = State {
            outstanding: OutstandingTable::new(),
            queue: VecDeque::with_capacity(OUTSTANDING_MAX),
            groups: Vec::new(),
            submitted: [0; 2],
            sequence: vec![0; OUTSTANDING_MAX].into(),
            dead: None,
            dead_since: None,
            has_left: false,
            is_unfinished: false,
            missing_senders: Vec::new(),
            is_finalised: false,
            closing: None,
        };
        Self {
            state: Mutex::new(state),
            wakeup: FutexEvent::default(),
            node: OnceLock::new(),
            done: Condvar::new(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Event on which the communication thread sleeps.
    pub(super) fn wakeup(&self) -> &FutexEvent {
        self.node.get().map_or(&self.wakeup, |node| node.wakeup())
    }

    pub(crate) fn wake_worker(&self) {
        self.wakeup().notify();
    }

    /// This rank among those that share its node's memory, if any do.
    pub(crate) fn node(&self) -> Option<&Arc<Node>> {
        self.node.get()
    }

    /// Sets the node. The communication thread calls it before anything is submitted.
    pub(super) fn set_node(&self, node: Arc<Node>) -> &Arc<Node> {
        self.node.get_or_init(|| node)
    }

    pub(super) fn wake_callers(&self) {
        self.done.notify_all();
    }

    /// An operation has succeeded.
    pub(super) fn complete(&self, slot: u32, timing: Timing) {
        self.lock().outstanding.complete(slot, Ok(timing));
        self.wake_callers();
    }

    pub(crate) fn dead(&self, rank: usize, reason: Arc<str>) -> Error {
        Error::Dead { backend: NAME, rank, reason }
    }

    /// This rank's place in a group, which the communication thread learns of before the first
    /// operation.
    ///
    /// # Errors
    /// Returns why there is no such group.
    pub(crate) fn group(
        &self,
        plan: &GroupPlan,
        member: usize,
        grid: Option<Arc<GridPlan>>,
    ) -> Result<Membership, String> {
        let mut state = self.lock();
        if let Some(known) = Membership::find(&state.groups, plan, grid.as_deref())? {
            return Ok(known.clone());
        }
        let group = state.groups.len() as u16 + 1;
        let membership = Membership { group, plan: Arc::new(plan.clone()), member, grid };
        state.groups.push(membership.clone());
        Ok(membership)
    }

    pub(crate) fn submit(&self, membership: &Membership, job: Job) -> Result<Ticket, Error> {
        let mut state = self.lock_open(membership)?;
        let ticket = state.outstanding.insert(job).ok_or_else(|| full(membership, job))?;
        state.queue.push_back(ticket.slot);
        if job.operation.peer().is_none() && job.group == WORLD {
            let submitted = &mut state.submitted[job.channel as usize];
            *submitted += 1;
            state.sequence[ticket.slot as usize] = *submitted;
        }
        drop(state);
        self.wake_worker();
        Ok(ticket)
    }

    /// Submits messages that have one ticket. The communication thread carries out each by itself.
    pub(crate) fn submit_group(
        &self,
        membership: &Membership,
        job: Job,
        messages: &[Message],
    ) -> Result<Ticket, Error> {
        let mut state = self.lock_open(membership)?;
        let ticket = state.outstanding.insert_group(job, messages.len());
        let ticket = ticket.ok_or_else(|| full(membership, job))?;
        for &message in messages {
            let slot = state.outstanding.insert_part(&ticket, job.message(message));
            state.queue.push_back(slot);
        }
        drop(state);
        self.wake_worker();
        Ok(ticket)
    }

    /// Locks the state, unless no operation is accepted.
    fn lock_open(&self, membership: &Membership) -> Result<MutexGuard<'_, State>, Error> {
        let state = self.lock();
        let closed = || state.closing.is_some().then(|| "it was closed".into());
        match state.dead.clone().or_else(closed) {
            Some(reason) => Err(self.dead(membership.world_rank(), reason)),
            None => Ok(state),
        }
    }

    pub(crate) fn wait(
        &self,
        membership: &Membership,
        ticket: &Ticket,
        deadline: Instant,
    ) -> Result<Timing, Error> {
        let rank = membership.world_rank();
        let mut state = self.lock();
        loop {
            if let Some(outcome) = state.outstanding.take_outcome(ticket) {
                return outcome;
            }
            if let Some(reason) = state.dead.clone() {
                let failure = self.leave_mpi(state).outstanding.release(ticket);
                return Err(failure.unwrap_or_else(|| self.dead(rank, reason)));
            }
            if Instant::now() >= deadline {
                let job = state.outstanding.job(ticket.slot);
                let missing = self.missing(membership, &state, ticket.slot);
                let mut error = job.deadline_error(membership, NAME, missing);
                state.die(|| error.to_string());
                let mut state = self.leave_mpi(state);
                error.name_missing(|| state.missing(ticket.slot));
                state.dead = Some(error.to_string().into());
                state.outstanding.release(ticket);
                return Err(error);
            }
            state = self.await_done(state, deadline);
        }
    }

    /// The ranks known to keep an operation from completing.
    fn missing(&self, membership: &Membership, state: &State, slot: u32) -> Vec<usize> {
        let job = state.outstanding.job(slot);
        let ranks = &membership.plan.ranks;
        match (job.operation.peer(), self.node()) {
            (Some(peer), _) => vec![ranks[peer]],
            _ if job.operation == Operation::Messages => {
                state.outstanding.missing_peers(slot, ranks)
            }
            (None, Some(node)) if job.group == WORLD => {
                node.missing(job.channel, state.sequence[slot as usize])
            }
            _ => Vec::new(),
        }
    }

    /// Waits until the communication thread has left MPI. `dead` must be set.
    ///
    /// MPI cannot cancel an operation, and writes its buffer whenever it is called. So nobody calls
    /// it any more. Two gaps remain and cannot be closed here: a thread that is stuck inside an MPI
    /// call is given up after a grace, because a process that never ends is worse; and a network
    /// adapter or a peer on the same machine may finish a transfer that it was given before. Either
    /// writes to a buffer that its owner may have freed. [`Self::memory_at_risk`] reports it.
    pub(crate) fn leave_mpi<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let until = state.dead_since.unwrap_or_else(Instant::now) + GRACE;
        self.wake_worker();
        self.await_left(state, until)
    }

    /// Kills the backend for a reason of its owner's.
    pub(crate) fn abandon(&self, reason: &str) {
        let mut state = self.lock();
        state.die(|| reason.to_owned());
        drop(self.leave_mpi(state));
    }

    /// Returns whether buffers of operations whose `wait` returned an error may still be written.
    pub(crate) fn memory_at_risk(&self) -> bool {
        let state = self.lock();
        state.dead.is_some() && (state.is_unfinished || !state.has_left)
    }

    pub(super) fn is_dead(&self) -> bool {
        self.lock().dead.is_some()
    }

    /// Waits until the communication thread has left MPI, or until then.
    pub(crate) fn await_left<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        until: Instant,
    ) -> MutexGuard<'a, State> {
        while !state.has_left && Instant::now() < until {
            state = self.await_done(state, until);
        }
        state
    }

    fn await_done<'a>(
        &self,
        state: MutexGuard<'a, State>,
        until: Instant,
    ) -> MutexGuard<'a, State> {
        let timeout = until.saturating_duration_since(Instant::now());
        self.done.wait_timeout(state, timeout).unwrap_or_else(PoisonError::into_inner).0
    }
}

fn full(membership: &Membership, job: Job) -> Error {
    let operation = job.operation.in_world(&membership.plan.ranks);
    Error::Full { operation, rank: membership.world_rank(), capacity: OUTSTANDING_MAX }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Channel, RawBuffer};

    /// Simulates a communication thread that is stuck in MPI: none exists.
    #[test]
    fn all_waits_together_give_one_grace() {
        let handle = WorkerHandle::new();
        let world = Membership::of_world(0, 1);
        let mut buffers = [[0f32; 4]; 3];
        let tickets = buffers.each_mut().map(|buffer| {
            let buffer = RawBuffer::of(buffer);
            let job = Job::new(Channel::Data, Operation::AllReduceSum, buffer);
            handle.submit(&world, job).unwrap()
        });
        let start = Instant::now();
        let deadline = start + Duration::from_millis(10);
        let ends = tickets.map(|ticket| {
            let error = handle.wait(&world, &ticket, deadline).unwrap_err();
            (error, start.elapsed())
        });
        let [(first, until_first), (second, until_second), (third, until_third)] = &ends;
        assert!(matches!(first, Error::Deadline { .. }), "{ends:?}");
        assert!([second, third].iter().all(|it| matches!(it, Error::Dead { .. })), "{ends:?}");
        assert!(*until_first >= GRACE, "the thread gets its grace: {ends:?}");
        // Once for all. This thread may lose its core for as long, but hardly every time.
        let later = [*until_second - *until_first, *until_third - *until_second];
        assert!(later.iter().any(|wait| *wait < GRACE), "{ends:?}");
        let leaves = [(); 3].map(|()| {
            let start = Instant::now();
            drop(handle.leave_mpi(handle.lock()));
            start.elapsed()
        });
        assert!(leaves.iter().any(|leave| *leave < GRACE), "{leaves:?}");
    }

    #[test]
    fn memory_is_at_risk_until_the_thread_has_left_and_nothing_is_unfinished() {
        let handle = WorkerHandle::new();
        assert!(!handle.memory_at_risk(), "alive");
        handle.lock().die(|| "on purpose".to_owned());
        assert!(handle.memory_at_risk(), "the thread may be inside MPI");
        handle.lock().has_left = true;
        assert!(!handle.memory_at_risk(), "out of MPI, nothing was in flight");
        handle.lock().is_unfinished = true;
        assert!(handle.memory_at_risk(), "a transfer may go on");
    }
}
