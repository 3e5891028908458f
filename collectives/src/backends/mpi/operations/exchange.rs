//! Operations of a group of ranks that MPI connects, by messages between every two of them.
//!
//! Each member owns a part of the buffer, a range. It sends each other member that member's part,
//! receives its own part from all of them, and sums these in the order of members: a reduce-scatter
//! in which every element is sent once and no sum depends on timing. For an all-reduce it then
//! sends the sums of its part to all others. No all-reduce sends fewer bytes. An all-gather and a
//! broadcast are that last part alone, a barrier the all-gather of nothing.
//!
//! A buffer goes chunk by chunk through a pipeline of a few entries, each with receive buffers.
//! Operations have the same order on all members, chunks take the entries in turn, and the tag of a
//! message is the number of its entry: so the messages of one tag have the same order on both
//! sides, whatever the timing.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::mem;
use std::ops::Range;

use crate::OUTSTANDING_MAX;
use crate::backends::footprint::{PIPELINE_DEPTH, message_bytes};
use crate::backends::mpi::library::calls::{Call, ErrorCode, Message};
use crate::backends::mpi::library::requests::Requests;
use crate::backends::mpi::setup::world::Group;
use crate::stages::chunks::Chunks;
use crate::stages::partition::Partition;
use crate::stages::stage::{Stage, StageKind};
use crate::stages::sum::sum_in_order;

/// Operation and chunk that a request serves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Purpose {
    /// Slot of the operation.
    pub(crate) slot: u32,
    /// The chunk of an exchange that it belongs to; `None` for a call of the operation itself.
    pub(crate) chunk: Option<ChunkId>,
    /// The rank of the world whose message it receives, if that sends it whatever other ranks do:
    /// while the message is missing, so is the rank, or a link to it.
    pub(crate) sender: Option<usize>,
}

/// A chunk in a pipeline.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChunkId {
    /// The number of the exchange.
    pub(crate) exchange: usize,
    entry: usize,
}

/// A failed call of an operation.
#[derive(Debug)]
pub(crate) struct FailedCall {
    pub(crate) slot: u32,
    pub(crate) code: ErrorCode,
}

/// The operations of one group that are in flight. Lives on the communication thread.
#[derive(Debug)]
pub(crate) struct Exchange {
    /// Index among all exchanges.
    number: usize,
    group: Group,
    message_elements_max: usize,
    /// Operations with chunks that are still to be started.
    queue: VecDeque<Queued>,
    /// Chunks started since the beginning: modulo the depth, the entry of the next.
    started: usize,
    pipeline: [Option<InFlightChunk>; PIPELINE_DEPTH],
    /// Per entry, what each other member sends. In units of the widest type that is summed.
    received: Vec<f64>,
}

#[derive(Debug)]
struct Queued {
    slot: u32,
    chunks: Chunks,
    /// Number of its chunks that were started.
    started: usize,
}

#[derive(Debug, Clone)]
struct InFlightChunk {
    slot: u32,
    chunks: Chunks,
    /// Index of the chunk.
    index: usize,
    phase: Phase,
    /// Messages of the phase that are not complete.
    messages: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    ReduceScatter,
    AllGather,
}

impl Phase {
    fn first_of(kind: StageKind) -> Self {
        match kind {
            StageKind::AllReduce | StageKind::ReduceScatter => Self::ReduceScatter,
            StageKind::AllGather => Self::AllGather,
        }
    }
}

impl Exchange {
    pub(crate) fn new(number: usize, group: Group, message_elements_max: usize) -> Self {
        let members = group.members();
        let bytes = PIPELINE_DEPTH * (members - 1) * message_bytes(members);
        Self {
            number,
            group,
            message_elements_max,
            queue: VecDeque::with_capacity(OUTSTANDING_MAX),
            started: 0,
            pipeline: [const { None }; PIPELINE_DEPTH],
            received: vec![0.0; bytes / size_of::<f64>()],
        }
    }

    /// The group.
    pub(crate) fn group(&self) -> &Group {
        &self.group
    }

    /// Most requests that an exchange of a group has at a time.
    pub(crate) fn requests_max(group: &Group) -> usize {
        PIPELINE_DEPTH * 2 * (group.members() - 1)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.is_drained()
    }

    /// Returns whether no chunk is in flight.
    fn is_drained(&self) -> bool {
        self.pipeline.iter().all(Option::is_none)
    }

    /// Queues an operation; returns its number of chunks, each of which [`Self::advance`] reports
    /// when complete. Zero is an operation with nothing to do.
    pub(crate) fn submit(&mut self, slot: u32, stage: Stage) -> usize {
        let members = self.group.members();
        if members == 1 {
            return 0;
        }
        let bytes_max = message_bytes(members);
        let mut chunks = Chunks::new(stage, members, bytes_max, self.message_elements_max);
        if Phase::first_of(chunks.stage.kind) == Phase::AllGather {
            chunks.count = chunks.count.max(1); // an empty message from each to each
        }
        let count = chunks.count;
        if count > 0 {
            self.queue.push_back(Queued { slot, chunks, started: 0 });
        }
        count
    }

    /// A message of a chunk is complete.
    pub(crate) fn message_complete(&mut self, chunk: ChunkId) {
        if let Some(chunk) = &mut self.pipeline[chunk.entry] {
            chunk.messages -= 1;
        }
    }

    /// Continues every chunk whose messages are complete and starts those that have an entry of the
    /// pipeline; reports for each chunk that is complete whose operation's it was. Touches no
    /// buffer and starts nothing once `is_dead`. Returns whether anything was done.
    ///
    /// # Safety
    /// The buffers of all operations that were submitted and are not complete are valid and lent.
    pub(crate) unsafe fn advance(
        &mut self,
        requests: &mut Requests<Purpose>,
        is_dead: impl Fn() -> bool,
        mut complete: impl FnMut(u32),
    ) -> Result<bool, FailedCall> {
        let mut has_progressed = false;
        for entry in 0..PIPELINE_DEPTH {
            let arrived = |chunk: &mut InFlightChunk| chunk.messages == 0;
            while let Some(chunk) = self.pipeline[entry].take_if(arrived) {
                if is_dead() {
                    return Ok(has_progressed);
                }
                has_progressed = true;
                let slot = chunk.slot;
                // SAFETY: the caller's promise.
                let has_next = unsafe { self.next_phase(entry, chunk, requests)? };
                if !has_next {
                    complete(slot);
                }
            }
        }
        // SAFETY: the caller's promise.
        Ok(unsafe { self.start_chunks(requests, is_dead)? } | has_progressed)
    }

    /// Does what follows a phase whose messages are complete; `false` if that was the last.
    unsafe fn next_phase(
        &mut self,
        entry: usize,
        chunk: InFlightChunk,
        requests: &mut Requests<Purpose>,
    ) -> Result<bool, FailedCall> {
        if chunk.phase == Phase::AllGather {
            return Ok(false);
        }
        // SAFETY: the caller's promise.
        unsafe { self.sum(entry, &chunk) };
        let gathers = chunk.chunks.stage.kind == StageKind::AllReduce;
        if gathers {
            let chunk = InFlightChunk { phase: Phase::AllGather, ..chunk };
            // SAFETY: the caller's promise.
            unsafe { self.start_phase(entry, chunk, requests)? };
        }
        Ok(gathers)
    }

    /// Starts chunks in their order while the next one's entry is free.
    unsafe fn start_chunks(
        &mut self,
        requests: &mut Requests<Purpose>,
        is_dead: impl Fn() -> bool,
    ) -> Result<bool, FailedCall> {
        let before = self.started;
        loop {
            let entry = self.started % PIPELINE_DEPTH;
            // Starting messages may take long, and after death no caller waits for them.
            if self.queue.is_empty() || self.pipeline[entry].is_some() || is_dead() {
                break;
            }
            let Some(chunk) = self.next_chunk() else { break };
            self.started += 1;
            // SAFETY: the caller's promise.
            unsafe { self.start_phase(entry, chunk, requests)? };
        }
        Ok(self.started > before)
    }

    /// Removes the next chunk from the queue.
    fn next_chunk(&mut self) -> Option<InFlightChunk> {
        let first = self.queue.front_mut()?;
        let chunk = InFlightChunk {
            slot: first.slot,
            chunks: first.chunks.clone(),
            index: first.started,
            phase: Phase::first_of(first.chunks.stage.kind),
            messages: 0,
        };
        first.started += 1;
        if first.started == first.chunks.count {
            self.queue.pop_front();
        }
        Some(chunk)
    }

    /// Starts all messages of a chunk's phase, and enters the chunk into the pipeline.
    unsafe fn start_phase(
        &mut self,
        entry: usize,
        chunk: InFlightChunk,
        requests: &mut Requests<Purpose>,
    ) -> Result<(), FailedCall> {
        let before = requests.len();
        // Entered first: a panic between two messages must not free what is received into.
        self.pipeline[entry] = Some(InFlightChunk { messages: 0, ..chunk.clone() });
        // SAFETY: the caller's promise.
        let started = unsafe { self.start_messages(entry, &chunk, requests) };
        if let Some(entered) = &mut self.pipeline[entry] {
            entered.messages = requests.len() - before;
        }
        started.map_err(|code| FailedCall { slot: chunk.slot, code })
    }

    unsafe fn start_messages(
        &mut self,
        entry: usize,
        chunk: &InFlightChunk,
        requests: &mut Requests<Purpose>,
    ) -> Result<(), ErrorCode> {
        let Group { communicator, member, ref ranks, ref named, .. } = self.group;
        let members = ranks.len();
        let Stage { kind, buffer, partition } = &chunk.chunks.stage;
        let id = ChunkId { exchange: self.number, entry };
        let tag = self.group.exchange_tag(tag_of(entry, chunk.phase));
        // After a sum, and behind the other receivers of one owner, a member may wait for a third.
        let has_third =
            chunk.phase != Phase::first_of(*kind) || matches!(partition, Partition::Whole { .. });
        let named = named.as_ref().filter(|_| members == 2 || !has_third);
        let sender = |member: usize| named.map(|ranks| ranks[member]);
        let received = self.received.as_mut_ptr().cast::<u8>();
        let mut start = |call, sender, address, count| {
            if count == 0 && !buffer.is_empty() {
                return Ok(()); // the other side has no message either
            }
            let purpose = Purpose { slot: chunk.slot, chunk: Some(id), sender };
            let message = Message::new(address, count, buffer.dtype());
            // SAFETY: the caller's promise, and an entry is used by one chunk at a time.
            unsafe { requests.start(purpose, call, message, communicator) }
        };
        // From the neighbours on around, so that not all members send to the same one first.
        for distance in 1..members {
            let from = (member + members - distance) % members;
            let part = if chunk.phase == Phase::AllGather { from } else { member };
            let to = match chunk.phase {
                Phase::ReduceScatter => received.wrapping_add(self.received_offset(entry, from)),
                Phase::AllGather => chunk.address_of(from),
            };
            let call = Call::Receive { from: ranks[from], tag };
            start(call, sender(from), to, chunk.range_of(part).len())?;
        }
        for distance in 1..members {
            let to = (member + distance) % members;
            let part = if chunk.phase == Phase::AllGather { member } else { to };
            let call = Call::Send { to: ranks[to], tag };
            start(call, None, chunk.address_of(part), chunk.range_of(part).len())?;
        }
        Ok(())
    }

    /// Offset in `received`, in bytes, at which an entry receives from another member.
    fn received_offset(&self, entry: usize, member: usize) -> usize {
        let others = self.group.members() - 1;
        let index = entry * others + member - usize::from(member > self.group.member);
        index * message_bytes(self.group.members())
    }

    /// Sums this member's part of a chunk, after all addends are received.
    unsafe fn sum(&self, entry: usize, chunk: &InFlightChunk) {
        let member = self.group.member;
        let members = self.group.members();
        let own = chunk.address_of(member);
        let received = self.received.as_ptr().cast::<u8>();
        let addends = (0..members).map(|other| match other == member {
            true => own.cast_const(),
            false => received.wrapping_add(self.received_offset(entry, other)),
        });
        let dtype = chunk.chunks.stage.buffer.dtype();
        let len = chunk.range_of(member).len();
        // SAFETY: the caller's promise: nobody else touches this part of the buffer now, and all
        // messages of the entry are complete, each as long as the range.
        unsafe { sum_in_order(dtype, len, addends, std::iter::once(own)) };
    }
}

impl InFlightChunk {
    /// Range of the chunk in a member's part.
    fn range_of(&self, member: usize) -> Range<usize> {
        self.chunks.range(member, self.index)
    }

    /// Address of these.
    fn address_of(&self, member: usize) -> *mut u8 {
        self.chunks.address(self.range_of(member).start)
    }
}

/// Tag among those of exchanges, one for each entry and phase.
fn tag_of(entry: usize, phase: Phase) -> u16 {
    (2 * entry) as u16 + u16::from(phase == Phase::AllGather)
}

impl Drop for Exchange {
    /// Leaks memory that MPI may still write.
    fn drop(&mut self) {
        if !self.is_drained() {
            mem::forget(mem::take(&mut self.received));
        }
    }
}
