//! Sums over a group of ranks that MPI connects, by messages between any two of them.
//!
//! Each member owns a part of the buffer. It sends every other member its own elements of that
//! one's part, receives theirs of its own, and adds up what there is in the order of the members:
//! a reduce-scatter in which every element crosses once and no sum depends on timing. Where all
//! are to have all sums, it sends its part's sums to everybody in turn, which makes it the
//! all-reduce of fewest bytes.
//!
//! A buffer goes piece by piece through a few places, each with memory for what the others send.
//! Operations come in the same order on all members, pieces take the places in turn, and a message
//! bears the number of its place: so the order of all messages with one number is the same on both
//! sides, whatever the timing.

use std::collections::VecDeque;
use std::mem;
use std::ops::AddAssign;
use std::slice;

use super::calls::{self, Call, Code, Piece};
use super::requests::{Errand, Of, Requests};
use super::world::Group;
use crate::footprint::{PLACES, message_bytes};
use crate::node::{Pieces, Task, in_order};
use crate::{Channel, Dtype, Element, OUTSTANDING_MAX, Operation};

/// The reductions of one channel that are under way. Lives on the communication thread.
#[derive(Debug)]
pub(super) struct Exchange {
    channel: Channel,
    group: Group,
    elements_max: usize,
    /// Operations with pieces that are still to be begun, and how many of the first's are.
    queue: VecDeque<(u32, Pieces)>,
    begun: usize,
    /// Pieces begun since ever: the next takes the place of this number.
    turn: usize,
    places: [Option<Work>; PLACES],
    /// Per place, what each other member sends. In words of the widest type that is summed.
    received: Vec<f64>,
}

/// What is done with one piece.
#[derive(Debug, Clone)]
struct Work {
    slot: u32,
    pieces: Pieces,
    piece: usize,
    leg: Leg,
    /// Messages of the leg that are not over.
    messages: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leg {
    Reduce,
    Gather,
}

impl Exchange {
    pub(super) fn new(channel: Channel, group: Group, elements_max: usize) -> Self {
        let words = PLACES * (group.members - 1) * message_bytes(group.members) / size_of::<f64>();
        Self {
            channel,
            group,
            elements_max,
            queue: VecDeque::with_capacity(OUTSTANDING_MAX),
            begun: 0,
            turn: 0,
            places: [const { None }; PLACES],
            received: vec![0.0; words],
        }
    }

    /// Most requests at a time.
    pub(super) fn requests_max(group: &Group) -> usize {
        PLACES * 2 * (group.members - 1)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.is_unused()
    }

    fn is_unused(&self) -> bool {
        self.places.iter().all(Option::is_none)
    }

    /// Takes an operation; says in how many pieces, each of which [`Self::advance`] will say is
    /// over. None is an operation with nothing to do.
    pub(super) fn start(&mut self, slot: u32, task: Task) -> usize {
        let members = self.group.members;
        let bytes = members * message_bytes(members);
        let pieces = Pieces::new(task, members, bytes, self.elements_max);
        let count = if members > 1 { pieces.count } else { 0 };
        if count > 0 {
            self.queue.push_back((slot, pieces));
        }
        count
    }

    /// A message of the piece at a place is over.
    pub(super) fn landed(&mut self, place: usize) {
        if let Some(work) = &mut self.places[place] {
            work.messages -= 1;
        }
    }

    /// Goes on with every piece whose messages are over and begins those for which there is a
    /// place; says of each that is over which operation's it was. Touches no memory and begins
    /// nothing once `is_dead`. Says whether anything was done.
    ///
    /// # Safety
    /// The memory of all operations that were started and are not over is valid and lent.
    pub(super) unsafe fn advance(
        &mut self,
        requests: &mut Requests,
        is_dead: impl Fn() -> bool,
        mut over: impl FnMut(u32),
    ) -> Result<bool, (u32, Code)> {
        let mut moved = false;
        for place in 0..PLACES {
            while let Some(work) = self.places[place].take_if(|work| work.messages == 0) {
                if is_dead() {
                    return Ok(moved);
                }
                moved = true;
                let slot = work.slot;
                // SAFETY: the caller's promise.
                let goes_on = unsafe { self.go_on(place, work, requests)? };
                if !goes_on {
                    over(slot);
                }
            }
        }
        // SAFETY: the caller's promise.
        Ok(unsafe { self.begin(requests, is_dead)? } | moved)
    }

    /// Does what follows a leg whose messages are over; `false` if that was the last.
    unsafe fn go_on(
        &mut self,
        place: usize,
        work: Work,
        requests: &mut Requests,
    ) -> Result<bool, (u32, Code)> {
        if work.leg == Leg::Gather {
            return Ok(false);
        }
        let gathers = work.pieces.task.kind.gathers();
        // SAFETY: the caller's promise.
        unsafe {
            self.add_up(place, &work);
            if gathers {
                self.send(place, Work { leg: Leg::Gather, ..work }, requests)?;
            }
        }
        Ok(gathers)
    }

    /// Begins pieces in their order while the next one's place is free.
    unsafe fn begin(
        &mut self,
        requests: &mut Requests,
        is_dead: impl Fn() -> bool,
    ) -> Result<bool, (u32, Code)> {
        let before = self.turn;
        while let Some((slot, pieces)) = self.queue.front() {
            let place = self.turn % PLACES;
            // Handing messages to MPI may take long, and nobody waits for what comes after death.
            if self.places[place].is_some() || is_dead() {
                break;
            }
            let (slot, pieces, piece) = (*slot, pieces.clone(), self.begun);
            self.begun += 1;
            if self.begun == pieces.count {
                self.queue.pop_front();
                self.begun = 0;
            }
            self.turn += 1;
            let work = Work { slot, pieces, piece, leg: Leg::Reduce, messages: 0 };
            // SAFETY: the caller's promise.
            unsafe { self.send(place, work, requests)? };
        }
        Ok(self.turn > before)
    }

    /// Hands all messages of a leg to MPI, and puts the work into its place.
    unsafe fn send(
        &mut self,
        place: usize,
        work: Work,
        requests: &mut Requests,
    ) -> Result<(), (u32, Code)> {
        let before = requests.len();
        // There before any message is: a panic between two of them must not free what is received.
        self.places[place] = Some(Work { messages: 0, ..work.clone() });
        // SAFETY: the caller's promise.
        let sent = unsafe { self.messages(place, &work, requests) };
        if let Some(kept) = &mut self.places[place] {
            kept.messages = requests.len() - before;
        }
        sent.map_err(|code| (work.slot, code))
    }

    unsafe fn messages(
        &mut self,
        place: usize,
        work: &Work,
        requests: &mut Requests,
    ) -> Result<(), Code> {
        let Group { communicator, member, members } = self.group;
        let Work { slot, pieces, piece, leg, .. } = work;
        let (dtype, of) = (pieces.task.memory.dtype(), Of::Piece(self.channel, place));
        let tag = Operation::TAG_MAX + 1 + (2 * place) as u16 + u16::from(*leg == Leg::Gather);
        let mut start = |call, pointer: *mut u8, count: usize| {
            if count == 0 {
                return Ok(()); // neither side sends nothing
            }
            let message = Piece::new(pointer, count, dtype);
            // SAFETY: the caller's promise, and places are used by one piece at a time.
            let request = unsafe { calls::start(call, message, communicator) }?;
            let is_received = matches!(call, Call::Receive { .. });
            let expected = is_received.then_some((message.count, dtype));
            requests.push(request, Errand { slot: *slot, of, expected });
            Ok(())
        };
        let own = pieces.of(member, *piece);
        let received = self.received.as_mut_ptr().cast::<u8>();
        // From the neighbours on around, so that not all send to one.
        for distance in 1..members {
            let from = (member + members - distance) % members;
            let (to, count) = match leg {
                Leg::Reduce => (received.wrapping_add(self.offset(place, from)), own.len()),
                Leg::Gather => {
                    let theirs = pieces.of(from, *piece);
                    (pieces.at(theirs.start), theirs.len())
                }
            };
            start(Call::Receive { from, tag }, to, count)?;
        }
        for distance in 1..members {
            let to = (member + distance) % members;
            let sent = if *leg == Leg::Reduce { pieces.of(to, *piece) } else { own.clone() };
            start(Call::Send { to, tag }, pieces.at(sent.start), sent.len())?;
        }
        Ok(())
    }

    /// Where a place has what another member sends, in bytes of all that is received.
    fn offset(&self, place: usize, member: usize) -> usize {
        let others = self.group.members - 1;
        let index = place * others + member - usize::from(member > self.group.member);
        index * message_bytes(self.group.members)
    }

    /// Adds up this member's part of a piece.
    unsafe fn add_up(&self, place: usize, work: &Work) {
        // SAFETY: the caller's promise.
        unsafe {
            match work.pieces.task.memory.dtype() {
                Dtype::F32 => self.add_up_as::<f32>(place, work),
                Dtype::F64 => self.add_up_as::<f64>(place, work),
                Dtype::U8 | Dtype::Bf16 => unreachable!("refused by Operation::check"),
            }
        }
    }

    unsafe fn add_up_as<E: Element + AddAssign>(&self, place: usize, work: &Work) {
        let Group { member, members, .. } = self.group;
        let range = work.pieces.of(member, work.piece);
        // SAFETY: the caller's promise: this part of the buffer is touched by nobody now, and all
        // messages to the place are over, each as long as the range.
        unsafe {
            let own = work.pieces.at(range.start).cast::<E>();
            let own = slice::from_raw_parts_mut(own, range.len());
            let received = self.received.as_ptr().cast::<u8>();
            let of = |member: usize| {
                let from = received.add(self.offset(place, member)).cast::<E>();
                slice::from_raw_parts(from, range.len())
            };
            in_order(own, member, members, of, None);
        }
    }
}

impl Drop for Exchange {
    /// What MPI may still write is never freed.
    fn drop(&mut self) {
        if !self.is_unused() {
            mem::forget(mem::take(&mut self.received));
        }
    }
}
