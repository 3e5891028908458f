//! Rank with a hook that runs before each of its operations on the data channel.
#![allow(unsafe_code)]

use std::fmt;
use std::time::{Duration, Instant};

use collectives::{Channel, Collective, Error, Operation, RawBuffer, Threads, Ticket, Timing};

/// Hook that receives the operation and its bytes.
pub(super) type Watch<'a> = dyn Fn(&Threads, Operation, usize) + Send + Sync + 'a;

/// Rank with its hook.
pub(super) struct Watched<'a> {
    pub(super) rank: Threads,
    pub(super) watch: Box<Watch<'a>>,
}

impl fmt::Debug for Watched<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rank.fmt(f)
    }
}

// SAFETY: all operations are forwarded to the inner rank, which upholds the contract.
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
        buffer: RawBuffer,
    ) -> Result<Ticket, Error> {
        if channel == Channel::Data {
            (self.watch)(&self.rank, operation, buffer.bytes());
        }
        // SAFETY: the caller upholds the contract.
        unsafe { self.rank.submit(channel, operation, buffer) }
    }

    fn wait(&self, ticket: Ticket, deadline: Instant) -> Result<Timing, Error> {
        self.rank.wait(ticket, deadline)
    }

    fn abandon(&self, reason: &str) {
        self.rank.abandon(reason);
    }
}
