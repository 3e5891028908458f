//! An exchange in which every rank has a part for every other, as grouped messages.
#![allow(unsafe_code)]

use std::ops::Range;
use std::time::Instant;

use device::{Device, ViewMut};

use super::collective::{Collective, OUTSTANDING_MAX};
use super::dtype::Element;
use super::error::Error;
use super::group::Membership;
use super::message::Message;
use super::operation::{Channel, Operation, Timing};
use super::raw_buffer::RawBuffer;

/// Most messages that are started together, an even number: a backend holds a limited number of
/// them, and others may be in flight.
const MESSAGES_MAX: usize = OUTSTANDING_MAX / 2;

/// All-to-all exchanges in a group. Repeated ones allocate nothing.
#[derive(Debug)]
pub struct AllToAll {
    /// Copies a rank's part for itself.
    device: Device,
    /// Kept for its memory.
    messages: Vec<Message>,
}

/// Elements of one part for each rank of a group, one after another.
#[derive(Debug)]
pub struct Parts<'a, E: Element> {
    /// Elements of all parts.
    pub elements: ViewMut<'a, E>,
    /// Length of each part. Parts may be empty, and what follows the last is not used.
    pub lens: &'a [usize],
}

impl<'a, E: Element> Parts<'a, E> {
    fn range(&self, rank: usize) -> Range<usize> {
        let start = self.lens[..rank].iter().sum();
        start..start + self.lens[rank]
    }

    /// The parts as buffers.
    fn into_raw(self) -> impl Iterator<Item = RawBuffer> + use<'a, E> {
        let all = RawBuffer::of(self.elements);
        self.lens.iter().scan(0, move |start, len| {
            let part = all.slice(*start..*start + len);
            *start += len;
            Some(part)
        })
    }
}

impl AllToAll {
    /// Prepares exchanges of elements in the memory of a device, in a group of `world` ranks.
    pub fn new(device: &Device, world: usize) -> Self {
        Self { device: device.clone(), messages: Vec::with_capacity(2 * world) }
    }

    /// Sends part p of `sent` to rank p, and receives that rank's part for this one as part p of
    /// `received`; waits for all. What a rank sends to another has the length that this one
    /// expects. On the data channel.
    ///
    /// # Errors
    /// Those of [`Collective::submit_group`] and [`Collective::wait`]; [`Error::Device`] when the
    /// device fails.
    ///
    /// # Panics
    /// Panics if there is not one part for each rank, if parts do not lie inside their buffers, or
    /// if a rank does not expect from itself what it sends.
    pub fn run<E: Element>(
        &mut self,
        collective: &dyn Collective,
        sent: Parts<'_, E>,
        mut received: Parts<'_, E>,
        deadline: Instant,
    ) -> Result<Timing, Error> {
        let (own, world) = (collective.rank(), collective.world());
        assert_eq!([sent.lens.len(), received.lens.len()], [world; 2], "a part for each rank");
        let kept = sent.elements.as_view().slice(sent.range(own));
        let to = received.range(own);
        let copied = self.device.copy(received.elements.reborrow().slice(to), kept);
        copied.map_err(|error| device_failed(collective, error))?;
        self.list(own, world, sent, received);
        let mut timing: Option<Timing> = None;
        let mut batches = self.messages.chunks(MESSAGES_MAX);
        loop {
            let batch = batches.next().unwrap_or_default();
            // SAFETY: the exclusive borrows last through `wait`, which is called before anything
            // else can happen; parts do not overlap.
            let ticket = unsafe { collective.submit_group(Channel::Data, batch) }?;
            let last = collective.wait(ticket, deadline)?;
            let whole = timing.map_or(last, |first| Timing {
                started: first.started,
                bytes: first.bytes + last.bytes,
                ..last
            });
            if batches.len() == 0 {
                return Ok(whole);
            }
            timing = Some(whole);
        }
    }

    /// Lists the messages to and from all other ranks. The n-th two are to the rank n places
    /// farther and from the one n places before: not all ranks send to the same one first, and both
    /// ends of a message are in the same batch.
    fn list<E: Element>(
        &mut self,
        own: usize,
        world: usize,
        sent: Parts<'_, E>,
        received: Parts<'_, E>,
    ) {
        self.messages.clear();
        let parts = sent.into_raw().zip(received.into_raw()).enumerate();
        for (peer, (to, from)) in parts.filter(|(peer, _)| *peer != own) {
            let send = Operation::Send { to: peer, tag: Operation::ALL_TO_ALL_TAG };
            let receive = Operation::Receive { from: peer, tag: Operation::ALL_TO_ALL_TAG };
            self.messages.push(Message { operation: send, buffer: to });
            self.messages.push(Message { operation: receive, buffer: from });
        }
        self.messages.sort_unstable_by_key(|message| match message.operation {
            Operation::Receive { from, .. } => 2 * ((own + world - from) % world) + 1,
            Operation::Send { to, .. } => 2 * ((to + world - own) % world),
            _ => unreachable!("only messages are listed"),
        });
    }
}

fn device_failed(collective: &dyn Collective, error: device::cuda::Error) -> Error {
    Error::Device {
        operation: Operation::Messages,
        group: collective.group(),
        rank: Membership::of(collective).world_rank(),
        source: Box::new(error),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::Threads;

    #[test]
    fn more_ranks_than_messages_are_exchanged_in_batches() {
        let world = OUTSTANDING_MAX / 2 + 3;
        let group = Threads::group(world);
        thread::scope(|scope| {
            for rank in &group {
                scope.spawn(move || {
                    let own = rank.rank();
                    let lens = vec![1; world];
                    let mut sent: Vec<f32> =
                        (0..world).map(|to| (own * world + to) as f32).collect();
                    let mut received = vec![0.0; world];
                    let deadline = Instant::now() + Duration::from_secs(60);
                    let timing = AllToAll::new(&Device::Host, world).run(
                        rank,
                        Parts { elements: (&mut sent).into(), lens: &lens },
                        Parts { elements: (&mut received).into(), lens: &lens },
                        deadline,
                    );
                    assert_eq!(timing.unwrap().bytes, 2 * 4 * (world - 1));
                    let expected = (0..world).map(|from| (from * world + own) as f32);
                    assert!(received.into_iter().eq(expected), "rank {own}");
                });
            }
        });
    }
}
