//! Operations that overlap computation, without unsafe code at the caller.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::marker::PhantomData;
use std::time::Instant;

use device::ViewMut;

use super::collective::{Collective, OUTSTANDING_MAX, Ticket};
use super::dtype::Element;
use super::error::Error;
use super::group::Membership;
use super::operation::{Channel, Operation, Timing};
use super::raw_buffer::RawBuffer;

/// Holds the borrows of buffers whose operations are in flight. Made by [`scope`].
#[derive(Debug)]
pub struct Scope<'scope, 'env: 'scope> {
    collective: &'env dyn Collective,
    tickets: RefCell<Tickets>,
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// The outstanding tickets, inline, because a scope is opened in every step.
#[derive(Debug)]
struct Tickets {
    entries: [Option<Ticket>; OUTSTANDING_MAX],
    len: usize,
}

/// An operation that was started in a scope; its buffer is the caller's again when the scope ends.
#[derive(Debug)]
#[must_use = "wait for it where its result is needed"]
pub struct Pending<'scope> {
    collective: &'scope dyn Collective,
    tickets: &'scope RefCell<Tickets>,
    index: usize,
}

/// Runs `body`, which may start operations on buffers that outlive the call, and returns when all
/// of them are complete, like [`std::thread::scope`]: also those whose [`Pending`] was dropped or
/// forgotten. It waits for these at most [`Collective::timeout`], and when the backend dies at most
/// a second more, for all of them together; the next operation then reports that the backend is
/// dead. When `body` panics the backend is abandoned. After a failure the buffers may be used again
/// only if [`Collective::memory_at_risk`] is false.
///
/// The buffer cannot be accessed while its operation may be in flight:
/// ```compile_fail,E0499
/// use yardstick_collectives::{Operation, Single, scope};
/// let mut buffer = [1f32; 4];
/// scope(&Single::new(), |scope| {
///     let first = scope.start(Operation::AllReduceSum, &mut buffer);
///     buffer[0] = 2.0;
///     let second = scope.start(Operation::AllReduceSum, &mut buffer);
/// });
/// ```
/// Nor can it end before the scope does:
/// ```compile_fail,E0597
/// use yardstick_collectives::{Operation, Single, scope};
/// scope(&Single::new(), |scope| {
///     let mut buffer = [1f32; 4];
///     let pending = scope.start(Operation::AllReduceSum, &mut buffer);
/// });
/// ```
pub fn scope<'env, T>(
    collective: &'env dyn Collective,
    body: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> T,
) -> T {
    let scope = Scope {
        collective,
        tickets: RefCell::new(Tickets { entries: [const { None }; OUTSTANDING_MAX], len: 0 }),
        scope: PhantomData,
        env: PhantomData,
    };
    // A guard, because the body may panic: the buffers that it lent end with the callers' frames.
    let _guard = WaitForAll { collective, tickets: &scope.tickets };
    body(&scope)
}

struct WaitForAll<'a> {
    collective: &'a dyn Collective,
    tickets: &'a RefCell<Tickets>,
}

impl Drop for WaitForAll<'_> {
    fn drop(&mut self) {
        let mut tickets = self.tickets.borrow_mut();
        let len = tickets.len;
        let mut left = tickets.entries[..len].iter_mut().filter_map(Option::take).peekable();
        if left.peek().is_some() && std::thread::panicking() {
            self.collective.abandon("a panic while operations were in flight");
        }
        let deadline = Instant::now() + self.collective.timeout();
        for ticket in left {
            // An error kills the backend, which reports it at the next operation.
            let _ = self.collective.wait(ticket, deadline);
        }
    }
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Starts an operation on the data channel; does not block, does not allocate.
    ///
    /// # Errors
    /// Those of [`Collective::submit`]; [`Error::Full`] also when this scope holds
    /// [`OUTSTANDING_MAX`] operations.
    pub fn start<E: Element>(
        &'scope self,
        operation: Operation,
        buffer: impl Into<ViewMut<'scope, E>>,
    ) -> Result<Pending<'scope>, Error> {
        let collective = self.collective;
        let index = self.tickets.borrow_mut().vacancy().ok_or_else(|| Error::Full {
            operation,
            rank: Membership::of(collective).world_rank(),
            capacity: OUTSTANDING_MAX,
        })?;
        let buffer = RawBuffer::of(buffer);
        // SAFETY: the buffer is borrowed exclusively for 'scope, which ends only after `scope`
        // waited for every ticket in the table, and the ticket is put there at once.
        let ticket = unsafe { collective.submit(Channel::Data, operation, buffer) }?;
        let mut tickets = self.tickets.borrow_mut();
        tickets.entries[index] = Some(ticket);
        tickets.len = tickets.len.max(index + 1);
        drop(tickets);
        Ok(Pending { collective, tickets: &self.tickets, index })
    }
}

impl Tickets {
    /// Entries are reused only when the table is full, so that starting is cheap.
    fn vacancy(&self) -> Option<usize> {
        if self.len < OUTSTANDING_MAX {
            return Some(self.len);
        }
        self.entries.iter().position(Option::is_none)
    }
}

impl Pending<'_> {
    /// Blocks until the operation is complete.
    ///
    /// # Errors
    /// Those of [`Collective::wait`].
    pub fn wait(self, deadline: Instant) -> Result<Timing, Error> {
        let ticket = self.take_ticket();
        self.collective.wait(ticket, deadline)
    }

    /// Lets later computation of the buffer's device wait for the operation; on the host, blocks.
    /// See [`Collective::join`].
    ///
    /// # Errors
    /// Those of [`Collective::join`].
    pub fn join(self, deadline: Instant) -> Result<Option<Timing>, Error> {
        let ticket = self.take_ticket();
        self.collective.join(ticket, deadline)
    }

    fn take_ticket(&self) -> Ticket {
        let ticket = self.tickets.borrow_mut().entries[self.index].take();
        // Only `wait` and `join` take the ticket out, and they consume the handle.
        ticket.unwrap_or_else(|| unreachable!("a handle without a ticket"))
    }
}
