//! Buffers on their way through the slots, one after another, in rounds.
//!
//! In round g of its life a lane
//! 1. offers a piece of each of the others' parts in one of three slots;
//! 2. waits until all others have finished g rounds;
//! 3. adds up what they offered of its own part in round g - 1, and puts the sum in one of two
//!    slots;
//! 4. copies the sums that they put there in round g - 1;
//! 5. says that it has finished g + 1 rounds.
//!
//! What is offered in round g is read in round g + 1, before its reader has finished g + 2 rounds.
//! The slot is written again in round g + 3, before the wait of that round but after that of round
//! g + 2, which saw everybody finish g + 2. The sums' slots are written after the wait: two do.
#![allow(unsafe_code)]

use std::hint;
use std::ops::{AddAssign, Range};
use std::ptr;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::segment::SLOT_BYTES;
use super::{Node, Parts, stream, sum};
use crate::{Dtype, Element, Memory};

const OFFERS: u64 = 3;
const SUMS: u64 = 2;

/// How often to look for the others before telling that they have not come: for some microseconds,
/// which is less than it takes to let others run.
const SPINS: usize = 200;

/// What is done with a buffer; every rank of the node does the same with the same parts.
#[derive(Debug, Clone)]
pub(crate) struct Task {
    /// The buffer of this rank.
    pub(crate) memory: Memory,
    /// Which part is whose.
    pub(crate) parts: Parts,
    /// What is done.
    pub(crate) kind: Kind,
}

/// What a task does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The owner of each part ends with the sum over the node; other parts stay as they are.
    Reduce,
    /// Every rank ends with every owner's part.
    Gather,
    /// Both, at the same time.
    ReduceAndGather,
}

impl Kind {
    fn reduces(self) -> bool {
        self != Self::Gather
    }

    fn gathers(self) -> bool {
        self != Self::Reduce
    }

    /// Rounds from the first thing done with a piece to the last.
    fn depth(self) -> usize {
        usize::from(self.reduces()) + usize::from(self.gathers())
    }
}

/// What came of trying to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Others have to come first.
    Blocked,
    /// One round is finished.
    Moved,
    /// The task is finished: its buffer is touched no more.
    Finished,
}

/// One sequence of tasks.
#[derive(Debug)]
pub(crate) struct Lane {
    node: Arc<Node>,
    index: usize,
    first_slot: usize,
    piece_elements_max: usize,
    /// Rounds that this rank has finished.
    finished: u64,
    run: Option<Run>,
}

#[derive(Debug)]
struct Run {
    task: Task,
    /// Of the task, not of the lane.
    round: usize,
    /// In how many pieces the longest part is cut.
    pieces: usize,
    piece_elements: usize,
    has_offered: bool,
}

impl Lane {
    /// The lane for any task.
    pub(crate) fn for_all(node: Arc<Node>, piece_elements_max: usize) -> Self {
        Self { node, index: 0, first_slot: 0, piece_elements_max, finished: 0, run: None }
    }

    /// Another one, for [`Kind::Gather`] only.
    pub(crate) fn for_gathers(node: Arc<Node>, piece_elements_max: usize) -> Self {
        // It has slots for sums only, after those of the other lane.
        let first_slot = SUMS as usize;
        Self { node, index: 1, first_slot, piece_elements_max, finished: 0, run: None }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.run.is_none()
    }

    /// Whether there is a task, and nobody to wait for.
    pub(crate) fn can_go_on(&self) -> bool {
        !self.is_idle() && self.others_came()
    }

    /// Starts a task on an idle lane.
    pub(crate) fn begin(&mut self, task: Task) {
        debug_assert!(self.is_idle(), "one task at a time");
        let ranks = self.node.ranks.len();
        let slot_elements = SLOT_BYTES / task.memory.dtype().bytes();
        // Whole cache lines, and the same number on all ranks.
        let shared = slot_elements / task.parts.count(ranks) / 32 * 32;
        let piece_elements = shared.clamp(1, self.piece_elements_max);
        let pieces = task.parts.longest(ranks).div_ceil(piece_elements);
        self.run = Some(Run { task, round: 0, pieces, piece_elements, has_offered: false });
    }

    /// Finishes one round of the task, if the others have come as far.
    ///
    /// # Safety
    /// The task's memory is valid and nobody else's until this returns [`Step::Finished`], or is
    /// never called again.
    pub(crate) unsafe fn step(&mut self) -> Step {
        let Some(mut run) = self.run.take() else { return Step::Finished };
        let Run { round, pieces, .. } = run;
        let kind = run.task.kind;
        if pieces == 0 {
            return Step::Finished;
        }
        // SAFETY: the buffer is the caller's promise. The slots are this rank's own, and nobody
        // reads those that are written: see the top of this file.
        unsafe {
            if kind.reduces() && round < pieces && !run.has_offered {
                self.offer(&run, round);
                run.has_offered = true;
            }
        }
        if !self.others_come_soon() {
            self.run = Some(run);
            return Step::Blocked;
        }
        // SAFETY: as above; and all others have finished the round before, in which they wrote what
        // is read here, and write those slots no more before this rank has finished this round.
        unsafe {
            let own = round.checked_sub(usize::from(kind.reduces()));
            if let Some(piece) = own.filter(|&piece| piece < pieces) {
                self.settle(&run, piece);
            }
            let theirs = round.checked_sub(kind.depth()).filter(|_| kind.gathers());
            if let Some(piece) = theirs {
                self.collect(&run, piece);
            }
        }
        self.finish_round();
        run.round += 1;
        run.has_offered = false;
        if run.round == pieces + kind.depth() {
            return Step::Finished;
        }
        self.run = Some(run);
        Step::Moved
    }

    fn others_came(&self) -> bool {
        let finished =
            |local: usize| self.node.words(local).finished[self.index].0.load(Ordering::Acquire);
        self.node.others().all(|local| finished(local) >= self.finished)
    }

    /// Looks a few times: ranks that work side by side are never far apart.
    fn others_come_soon(&self) -> bool {
        (0..SPINS).any(|_| {
            let came = self.others_came();
            if !came {
                hint::spin_loop();
            }
            came
        })
    }

    fn finish_round(&mut self) {
        self.finished += 1;
        stream::fence();
        let own = &self.node.words(self.node.local).finished[self.index].0;
        own.store(self.finished, Ordering::Release);
        self.node.others().for_each(|local| self.node.words(local).bell.ring());
    }

    /// Copies a piece of each of the others' parts into a slot.
    unsafe fn offer(&self, run: &Run, piece: usize) {
        for local in self.node.others() {
            let range = run.piece(&self.node, local, piece);
            // SAFETY: the caller's promise; the piece fits into its place in the slot.
            unsafe {
                let to = self.offered(run, self.node.local, self.finished, local);
                put(run.at(range.start), to, run.bytes(range.len()));
            }
        }
    }

    /// Makes a piece of this rank's part what it is to be, and puts it where the others find it.
    unsafe fn settle(&self, run: &Run, piece: usize) {
        let range = run.piece(&self.node, self.node.local, piece);
        let to = self.sums(self.node.local, self.finished);
        // SAFETY: the caller's promise; the piece fits into the slot.
        unsafe {
            match (run.task.kind.reduces(), run.task.memory.dtype()) {
                (true, Dtype::F32) => self.add::<f32>(run, range, to),
                (true, Dtype::F64) => self.add::<f64>(run, range, to),
                (true, Dtype::U8) => unreachable!("refused by Operation::check"),
                (false, _) => put(run.at(range.start), to, run.bytes(range.len())),
            }
        }
    }

    unsafe fn add<E: Element + AddAssign>(&self, run: &Run, range: Range<usize>, to: *mut u8) {
        let (local, len) = (self.node.local, range.len());
        // SAFETY: the caller's promise: the buffer and the sums' slot are ours alone, the offers are
        // written by nobody now. Slots are aligned to pages, and pieces in them to `E`.
        unsafe {
            let own = slice::from_raw_parts_mut(run.at(range.start).cast::<E>(), len);
            let copy = run.task.kind.gathers();
            let copy = copy.then(|| slice::from_raw_parts_mut(to.cast::<E>(), len));
            let of = |rank: usize| {
                let from = self.offered(run, rank, self.finished - 1, local);
                slice::from_raw_parts(from.cast::<E>().cast_const(), len)
            };
            sum::in_order(own, local, self.node.ranks.len(), of, copy);
        }
    }

    /// Copies what the others have put there of their parts.
    unsafe fn collect(&self, run: &Run, piece: usize) {
        for local in self.node.others() {
            let range = run.piece(&self.node, local, piece);
            let from = self.sums(local, self.finished - 1);
            // SAFETY: the caller's promise; the piece lies in the buffer.
            unsafe {
                ptr::copy_nonoverlapping(from, run.at(range.start), run.bytes(range.len()));
            }
        }
    }

    /// Where `rank` offers, in a round, its piece of `owner`'s part.
    fn offered(&self, run: &Run, rank: usize, round: u64, owner: usize) -> *mut u8 {
        let slot = self.node.segment.slot(rank, (round % OFFERS) as usize);
        let place = owner % run.task.parts.count(self.node.ranks.len());
        // SAFETY: as many pieces as there are places fit into a slot.
        unsafe { slot.add(place * run.bytes(run.piece_elements)) }
    }

    /// Where `rank` puts, in a round, its piece of its own part.
    fn sums(&self, rank: usize, round: u64) -> *mut u8 {
        let slot = self.first_slot + (OFFERS + round % SUMS) as usize;
        self.node.segment.slot(rank, slot)
    }
}

/// Copies into a slot.
unsafe fn put(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise: bytes to read, and bytes in a slot that is this rank's alone.
    unsafe {
        let from = slice::from_raw_parts(from, bytes);
        stream::copy(from, slice::from_raw_parts_mut(to, bytes));
    }
}

impl Run {
    /// A piece of a rank's part, in elements of the buffer; empty where the part has no more.
    fn piece(&self, node: &Node, local: usize, piece: usize) -> Range<usize> {
        let part = self.task.parts.of(local, node.ranks.len());
        let cut = |piece: usize| (part.start + piece * self.piece_elements).min(part.end);
        cut(piece)..cut(piece + 1)
    }

    fn bytes(&self, elements: usize) -> usize {
        elements * self.task.memory.dtype().bytes()
    }

    /// Address of an element.
    fn at(&self, element: usize) -> *mut u8 {
        debug_assert!(element <= self.task.memory.len(), "inside the buffer");
        self.task.memory.pointer().as_ptr().wrapping_add(self.bytes(element))
    }
}
