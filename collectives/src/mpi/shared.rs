//! What the callers and the communication thread share.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::node::{Bell, Node};
use crate::slots::{Job, Slots};
use crate::{Error, OUTSTANDING_MAX, Ticket, Timing};

pub(super) const NAME: &str = "mpi";

/// How long the communication thread may take to come back from the MPI call it is in.
pub(super) const GRACE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    /// Wakes the communication thread, until there is a node, whose bell does so then.
    bell: Bell,
    /// Set before the first operation, if ever.
    node: OnceLock<Arc<Node>>,
    /// Wakes whoever waits for an operation, or for the communication thread's end.
    done: Condvar,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) slots: Slots,
    /// Submitted, not yet started.
    pub(super) queue: VecDeque<u32>,
    /// Collective operations submitted so far, per channel.
    submitted: [u64; 2],
    /// By slot: which of its channel's collective operations it is, counted from 1.
    sequences: Box<[u64]>,
    /// Why no operation is taken any more.
    pub(super) dead: Option<Arc<str>>,
    /// Since when: the grace for the communication thread is counted from here, once for all.
    pub(super) died: Option<Instant>,
    /// The communication thread has left MPI for good: it touches no memory any more.
    pub(super) left: bool,
    /// Set before `left`: operations were still with MPI, or with ranks that reach the memory, and
    /// what carries them out may go on.
    pub(super) unfinished: bool,
    /// MPI_Finalize was called and returned.
    pub(super) finalised: bool,
    /// Orderly end asked for, to be over by then.
    pub(super) closing: Option<Instant>,
}

impl State {
    pub(super) fn die(&mut self, reason: impl FnOnce() -> String) {
        if self.dead.is_none() {
            self.dead = Some(reason().into());
            self.died = Some(Instant::now());
        }
    }
}

impl Shared {
    pub(super) fn new() -> Self {
        let state = State {
            slots: Slots::new(),
            queue: VecDeque::with_capacity(OUTSTANDING_MAX),
            submitted: [0; 2],
            sequences: vec![0; OUTSTANDING_MAX].into(),
            dead: None,
            died: None,
            left: false,
            unfinished: false,
            finalised: false,
            closing: None,
        };
        let (bell, node) = (Bell::default(), OnceLock::new());
        Self { state: Mutex::new(state), bell, node, done: Condvar::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The communication thread sleeps on this.
    pub(super) fn bell(&self) -> &Bell {
        self.node.get().map_or(&self.bell, |node| node.bell())
    }

    pub(super) fn wake_worker(&self) {
        self.bell().ring();
    }

    /// The ranks around this one that share its memory.
    pub(super) fn node(&self) -> Option<&Arc<Node>> {
        self.node.get()
    }

    /// To be called by the communication thread before anything was submitted.
    pub(super) fn settle_in(&self, node: Arc<Node>) -> &Arc<Node> {
        self.node.get_or_init(|| node)
    }

    pub(super) fn wake_waiters(&self) {
        self.done.notify_all();
    }

    /// An operation is a success.
    pub(super) fn finish(&self, slot: u32, timing: Timing) {
        self.lock().slots.finish(slot, Ok(timing));
        self.wake_waiters();
    }

    fn await_done<'a>(
        &self,
        state: MutexGuard<'a, State>,
        until: Instant,
    ) -> MutexGuard<'a, State> {
        let pause = until.saturating_duration_since(Instant::now());
        self.done.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0
    }

    pub(super) fn dead(&self, rank: usize, reason: Arc<str>) -> Error {
        Error::Dead { backend: NAME, rank, reason }
    }

    pub(super) fn submit(&self, rank: usize, job: Job) -> Result<Ticket, Error> {
        let mut state = self.lock();
        if let Some(reason) = &state.dead {
            return Err(self.dead(rank, reason.clone()));
        }
        let operation = job.operation;
        let full = || Error::Full { operation, rank, capacity: OUTSTANDING_MAX };
        let ticket = state.slots.enter(job).ok_or_else(full)?;
        state.queue.push_back(ticket.slot);
        if operation.peer().is_none() {
            let submitted = &mut state.submitted[job.channel as usize];
            *submitted += 1;
            state.sequences[ticket.slot as usize] = *submitted;
        }
        drop(state);
        self.wake_worker();
        Ok(ticket)
    }

    pub(super) fn wait(
        &self,
        rank: usize,
        ticket: &Ticket,
        deadline: Instant,
    ) -> Result<Timing, Error> {
        let mut state = self.lock();
        loop {
            if let Some(outcome) = state.slots.collect(ticket) {
                return outcome;
            }
            if let Some(reason) = state.dead.clone() {
                self.leave_mpi(state).slots.release(ticket);
                return Err(self.dead(rank, reason));
            }
            if Instant::now() >= deadline {
                let job = state.slots.job(ticket.slot);
                let sequence = state.sequences[ticket.slot as usize];
                let peers = self.missing(job, sequence);
                let error = job.deadline(rank, NAME, peers);
                state.die(|| error.to_string());
                self.leave_mpi(state).slots.release(ticket);
                return Err(error);
            }
            state = self.await_done(state, deadline);
        }
    }

    /// The ranks known to keep an operation from being over.
    fn missing(&self, job: Job, sequence: u64) -> Vec<usize> {
        match (job.operation.peer(), self.node()) {
            (Some(peer), _) => vec![peer],
            (None, Some(node)) => node.missing(job.channel, sequence),
            (None, None) => Vec::new(),
        }
    }

    /// With `dead` set: waits until the communication thread is out of MPI.
    ///
    /// An operation cannot be taken back from MPI, which would go on writing its buffer whenever
    /// it is called. So nobody calls it again. Two gaps remain and cannot be closed here: a thread
    /// that is stuck inside an MPI call is given up after a grace, because a process that never
    /// ends is the worse evil; and a network adapter or a peer on the same machine may finish a
    /// transfer that was already handed to it. Either writes to memory that the callers have back:
    /// where they freed it, to whatever lies there now. [`Self::memory_at_risk`] tells them.
    pub(super) fn leave_mpi<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let until = state.died.unwrap_or_else(Instant::now) + GRACE;
        self.wake_worker();
        self.await_left(state, until)
    }

    /// Whether memory of operations whose `wait` returned an error may still be written.
    pub(super) fn memory_at_risk(&self) -> bool {
        let state = self.lock();
        state.dead.is_some() && (state.unfinished || !state.left)
    }

    pub(super) fn is_dead(&self) -> bool {
        self.lock().dead.is_some()
    }

    pub(super) fn await_left<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        until: Instant,
    ) -> MutexGuard<'a, State> {
        while !state.left && Instant::now() < until {
            state = self.await_done(state, until);
        }
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Channel, Memory, Operation};

    /// A communication thread that is stuck in MPI: here there is none at all.
    #[test]
    fn all_tickets_together_wait_one_grace() {
        let shared = Shared::new();
        let mut buffers = [[0f32; 4]; 3];
        let tickets = buffers.each_mut().map(|buffer| {
            let memory = Memory::of(buffer);
            shared.submit(0, Job::new(Channel::Data, Operation::AllReduceSum, memory)).unwrap()
        });
        let start = Instant::now();
        let deadline = start + Duration::from_millis(10);
        let errors = tickets.map(|ticket| shared.wait(0, &ticket, deadline).unwrap_err());
        assert!(matches!(errors[0], Error::Deadline { .. }), "{errors:?}");
        assert!(errors[1..].iter().all(|error| matches!(error, Error::Dead { .. })), "{errors:?}");
        drop(shared.leave_mpi(shared.lock()));
        assert!(start.elapsed() >= GRACE, "the thread gets its grace");
        assert!(start.elapsed() < GRACE * 2, "once for all, not {:?}", start.elapsed());
    }

    #[test]
    fn memory_is_at_risk_until_the_thread_left_with_nothing_unfinished() {
        let shared = Shared::new();
        assert!(!shared.memory_at_risk(), "alive");
        shared.lock().die(|| "on purpose".to_owned());
        assert!(shared.memory_at_risk(), "the thread may be inside MPI");
        shared.lock().left = true;
        assert!(!shared.memory_at_risk(), "out of MPI, nothing was under way");
        shared.lock().unfinished = true;
        assert!(shared.memory_at_risk(), "a transfer may go on");
    }
}
