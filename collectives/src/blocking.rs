//! Blocking operations: started and waited for in one call, on the control channel.
#![allow(unsafe_code)]

use std::time::Instant;

use crate::{Channel, Collective, Element, Error, Memory, Operation, Timing};

/// All of them fail like [`Collective::submit`] and [`Collective::wait`].
impl dyn Collective + '_ {
    /// Starts any operation on a channel and waits for it.
    ///
    /// # Errors
    /// Those of [`Collective::submit`] and [`Collective::wait`].
    pub fn run<E: Element>(
        &self,
        channel: Channel,
        operation: Operation,
        buffer: &mut [E],
        deadline: Instant,
    ) -> Result<Timing, Error> {
        // SAFETY: the exclusive borrow lasts through `wait`, which is called before anything else
        // can happen, and after which the backend does not touch the memory.
        let ticket = unsafe { self.submit(channel, operation, Memory::of(buffer)) }?;
        self.wait(ticket, deadline)
    }

    /// Every rank ends with the element-wise sum.
    ///
    /// # Errors
    /// Those of [`Collective::submit`] and [`Collective::wait`].
    pub fn all_reduce_sum<E: Element>(
        &self,
        buffer: &mut [E],
        deadline: Instant,
    ) -> Result<Timing, Error> {
        self.run(Channel::Control, Operation::AllReduceSum, buffer, deadline)
    }

    /// Rank r ends with the sum in the r-th of R equal parts.
    ///
    /// # Errors
    /// Those of [`Collective::submit`] and [`Collective::wait`].
    pub fn reduce_scatter_sum<E: Element>(
        &self,
        buffer: &mut [E],
        deadline: Instant,
    ) -> Result<Timing, Error> {
        self.run(Channel::Control, Operation::ReduceScatterSum, buffer, deadline)
    }

    /// Rank r gives the r-th of R equal parts; every rank ends with all of them.
    ///
    /// # Errors
    /// Those of [`Collective::submit`] and [`Collective::wait`].
    pub fn all_gather<E: Element>(
        &self,
        buffer: &mut [E],
        deadline: Instant,
    ) -> Result<Timing, Error> {
        self.run(Channel::Control, Operation::AllGather, buffer, deadline)
    }

    /// Every rank ends with the root's buffer.
    ///
    /// # Errors
    /// Those of [`Collective::submit`] and [`Collective::wait`].
    pub fn broadcast<E: Element>(
        &self,
        root: usize,
        buffer: &mut [E],
        deadline: Instant,
    ) -> Result<Timing, Error> {
        self.run(Channel::Control, Operation::Broadcast { root }, buffer, deadline)
    }

    /// Nobody passes before everybody came.
    ///
    /// # Errors
    /// Those of [`Collective::submit`] and [`Collective::wait`].
    pub fn barrier(&self, deadline: Instant) -> Result<Timing, Error> {
        self.run::<u8>(Channel::Control, Operation::Barrier, &mut [], deadline)
    }

    /// Gives the buffer to another rank.
    ///
    /// # Errors
    /// Those of [`Collective::submit`] and [`Collective::wait`].
    pub fn send<E: Element>(
        &self,
        to: usize,
        tag: u16,
        buffer: &mut [E],
        deadline: Instant,
    ) -> Result<Timing, Error> {
        self.run(Channel::Control, Operation::Send { to, tag }, buffer, deadline)
    }

    /// Fills the buffer from another rank, which sends as many elements.
    ///
    /// # Errors
    /// Those of [`Collective::submit`] and [`Collective::wait`].
    pub fn receive<E: Element>(
        &self,
        from: usize,
        tag: u16,
        buffer: &mut [E],
        deadline: Instant,
    ) -> Result<Timing, Error> {
        self.run(Channel::Control, Operation::Receive { from, tag }, buffer, deadline)
    }
}
