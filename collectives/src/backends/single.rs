//! One rank: every operation is complete when it is started.
#![allow(unsafe_code)]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::core::group::Membership;
use crate::core::outstanding::{Job, OutstandingTable};
use crate::{
    Channel, Collective, Error, GroupPlan, Message, OUTSTANDING_MAX, Operation, RawBuffer, Ticket,
    Timing,
};

const NAME: &str = "single";

/// The backend of a world of one rank: sums, gathers and broadcasts of one are the identity.
#[derive(Debug)]
pub struct Single {
    membership: Membership,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    outstanding: OutstandingTable,
    dead: Option<Arc<str>>,
}

impl Single {
    /// A world of one.
    pub fn new() -> Self {
        let state = State { outstanding: OutstandingTable::new(), dead: None };
        Self { membership: Membership::of_world(0, 1), state: Arc::new(Mutex::new(state)) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn complete(&self, job: Job) -> Result<Ticket, Error> {
        let mut state = self.lock();
        if let Some(reason) = &state.dead {
            return Err(Error::Dead { backend: NAME, rank: 0, reason: reason.clone() });
        }
        let operation = job.operation;
        let full = Error::Full { operation, rank: 0, capacity: OUTSTANDING_MAX };
        let ticket = state.outstanding.insert(job).ok_or(full)?;
        state.outstanding.complete(ticket.slot, Ok(job.timing_since(job.submitted)));
        Ok(ticket)
    }
}

impl Default for Single {
    fn default() -> Self {
        Self::new()
    }
}

// SAFETY: it never touches a buffer and allocates none.
unsafe impl Collective for Single {
    fn rank(&self) -> usize {
        0
    }

    fn world(&self) -> usize {
        1
    }

    /// Its only group is itself.
    fn subgroup(&self, plan: &GroupPlan) -> Result<Box<dyn Collective>, Error> {
        plan.member(0, 1).map_err(|text| Error::Start { backend: NAME, text })?;
        let Self { membership, state } = self;
        Ok(Box::new(Self { membership: membership.clone(), state: state.clone() }))
    }

    fn backend(&self) -> &'static str {
        NAME
    }

    fn timeout(&self) -> Duration {
        Duration::ZERO
    }

    unsafe fn submit(
        &self,
        channel: Channel,
        operation: Operation,
        buffer: RawBuffer,
    ) -> Result<Ticket, Error> {
        operation.validate(buffer, &self.membership)?;
        self.complete(Job::new(channel, operation, buffer))
    }

    /// No message has a peer.
    unsafe fn submit_group(&self, channel: Channel, messages: &[Message]) -> Result<Ticket, Error> {
        messages.iter().try_for_each(|message| message.validate(&self.membership))?;
        self.complete(Job::of_messages(channel, messages))
    }

    fn wait(&self, ticket: Ticket, _deadline: Instant) -> Result<Timing, Error> {
        let outcome = self.lock().outstanding.take_outcome(&ticket);
        outcome.unwrap_or_else(|| unreachable!("every operation is complete when it is started"))
    }

    fn abandon(&self, reason: &str) {
        self.lock().dead.get_or_insert_with(|| reason.into());
    }
}
