//! One rank: every operation is over when it is started.
#![allow(unsafe_code)]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::slots::{Job, Slots};
use crate::{Channel, Collective, Error, Memory, OUTSTANDING_MAX, Operation, Ticket, Timing};

/// The backend of a world of one rank: sums, gathers and broadcasts of one are the identity.
#[derive(Debug)]
pub struct Single {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    slots: Slots,
    dead: Option<Arc<str>>,
}

impl Single {
    /// A world of one.
    pub fn new() -> Self {
        Self { state: Mutex::new(State { slots: Slots::new(), dead: None }) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Single {
    fn default() -> Self {
        Self::new()
    }
}

// SAFETY: it never touches the memory.
unsafe impl Collective for Single {
    fn rank(&self) -> usize {
        0
    }

    fn world(&self) -> usize {
        1
    }

    fn backend(&self) -> &'static str {
        "single"
    }

    fn timeout(&self) -> Duration {
        Duration::ZERO
    }

    unsafe fn submit(
        &self,
        channel: Channel,
        operation: Operation,
        memory: Memory,
    ) -> Result<Ticket, Error> {
        operation.check(memory.dtype(), memory.len(), 0, 1)?;
        let mut state = self.lock();
        if let Some(reason) = &state.dead {
            return Err(Error::Dead { backend: "single", rank: 0, reason: reason.clone() });
        }
        let job = Job::new(channel, operation, memory);
        let full = Error::Full { operation, rank: 0, capacity: OUTSTANDING_MAX };
        let ticket = state.slots.enter(job).ok_or(full)?;
        state.slots.finish(ticket.slot, Ok(job.done(job.submitted)));
        Ok(ticket)
    }

    fn wait(&self, ticket: Ticket, _deadline: Instant) -> Result<Timing, Error> {
        let outcome = self.lock().slots.collect(&ticket);
        outcome.unwrap_or_else(|| unreachable!("every operation is over when it is started"))
    }

    fn abandon(&self, reason: &str) {
        self.lock().dead.get_or_insert_with(|| reason.into());
    }
}
