//! A rank of which somebody sees what it is about to do, operation by operation.
#![allow(unsafe_code)]

use std::fmt;
use std::time::{Duration, Instant};

use collectives::{Channel, Collective, Error, Memory, Operation, Threads, Ticket, Timing};

/// What is done before each operation on data: with the rank, the operation and its bytes.
pub(super) type Watch<'a> = dyn Fn(&Threads, Operation, usize) + Send + Sync + 'a;

/// The rank, and who watches it.
pub(super) struct Watched<'a> {
    pub(super) rank: Threads,
    pub(super) watch: Box<Watch<'a>>,
}

impl fmt::Debug for Watched<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rank.fmt(f)
    }
}

// SAFETY: everything is done by the rank inside, which keeps the promises.
unsafe impl Collective for Watched<'_> {
    fn rank(&self) -> usize {
        self.rank.rank()
    }

    fn world(&self) -> usize {
        self.rank.world()
    }

    fn backend(&self) -> &'static str {
        self.rank.backend()
    }

    fn timeout(&self) -> Duration {
        self.rank.timeout()
    }

    unsafe fn submit(
        &self,
        channel: Channel,
        operation: Operation,
        memory: Memory,
    ) -> Result<Ticket, Error> {
        if channel == Channel::Data {
            (self.watch)(&self.rank, operation, memory.bytes());
        }
        // SAFETY: the caller's promise.
        unsafe { self.rank.submit(channel, operation, memory) }
    }

    fn wait(&self, ticket: Ticket, deadline: Instant) -> Result<Timing, Error> {
        self.rank.wait(ticket, deadline)
    }

    fn abandon(&self, reason: &str) {
        self.rank.abandon(reason);
    }
}
