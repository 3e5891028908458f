//! Blocking operations, started and waited for in one call.
#![allow(unsafe_code)]

use std::time::Instant;

use device::ViewMut;

use super::collective::Collective;
use super::dtype::Element;
use super::error::Error;
use super::message::Message;
use super::operation::{Channel, Operation, Timing};
use super::raw_buffer::RawBuffer;

/// Blocking operations. All of them fail like [`Collective::submit`] and [`Collective::wait`].
impl dyn Collective + '_ {
    /// Starts any operation on a channel and waits for it.
    ///
    /// # Errors
    /// Those of [`Collective::submit`] and [`Collective::wait`].
    pub fn run<'a, E: Element>(
        &self,
        channel: Channel,
        operation: Operation,
        buffer: impl Into<ViewMut<'a, E>>,
        deadline: Instant,
    ) -> Result<Timing, Error> {
        // SAFETY: the exclusive borrow lasts through `wait`, which is called before anything else
        // can happen, and after which the backend does not touch the buffer.
        let ticket = unsafe { self.submit(channel, operation, RawBuffer::of(buffer)) }?;
        self.wait(ticket, deadline)
    }

    /// Starts messages together on a channel and waits for all of them.
    ///
    /// # Errors
    /// Those of [`Collective::submit_group`] and [`Collective::wait`].
    pub fn run_group<E: Element, const N: usize>(
        &self,
        channel: Channel,
        messages: [(Operation, ViewMut<'_, E>); N],
        deadline: Instant,
    ) -> Result<Timing, Error> {
        let messages = messages
            .map(|(operation, buffer)| Message { operation, buffer: RawBuffer::of(buffer) });
        // SAFETY: as in `run`; exclusive borrows do not overlap.
        let ticket = unsafe { self.submit_group(channel, &messages) }?;
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

    /// Rank r contributes the r-th of R equal parts; every rank ends with all of them.
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

    /// No rank leaves before all have entered.
    ///
    /// # Errors
    /// Those of [`Collective::submit`] and [`Collective::wait`].
    pub fn barrier(&self, deadline: Instant) -> Result<Timing, Error> {
        self.run::<u8>(Channel::Control, Operation::Barrier, ViewMut::default(), deadline)
    }
}
