//! Buffers, one after another: in place where every rank reaches every rank's, else on their way
//! through the slots, in rounds.
//!
//! A task begins with a round in which the ranks tell each other where their buffers are. If all
//! are at the same place of a region, each rank then works on its part of all of them, and a second
//! round ends the task. Else, in round g of its life a lane
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

use super::segment::{SLOT_BYTES, Words};
use super::task::Pieces;
use super::{Kind, Node, Region, Task, stream, sum};
use crate::{Dtype, Element};

const OFFERS: u64 = 3;
const SUMS: u64 = 2;

/// How often to look for the others before telling that they have not come: for some microseconds,
/// which is less than it takes to let others run.
const SPINS: usize = 200;

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
    /// Tasks that had something to do.
    tasks: u64,
    run: Option<Run>,
}

#[derive(Debug)]
struct Run {
    pieces: Pieces,
    /// Where the buffer is in memory that the others reach: 0 for nowhere.
    place: u64,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// To tell the others where this rank's buffer is.
    Coming,
    /// To learn where theirs are.
    Meeting,
    /// Through the slots: rounds of the task so far, and whether this round's offer is made.
    Slots { round: usize, has_offered: bool },
    /// All buffers are at one place in a region: pieces done so far.
    Direct { region: Arc<Region>, offset: usize, done: usize },
    /// To wait until the others touch this rank's buffer no more.
    Parting,
}

impl Lane {
    /// The lane for any task.
    pub(crate) fn for_all(node: Arc<Node>, piece_elements_max: usize) -> Self {
        Self { node, index: 0, first_slot: 0, piece_elements_max, finished: 0, tasks: 0, run: None }
    }

    /// Another one, for [`Kind::Gather`] only.
    pub(crate) fn for_gathers(node: Arc<Node>, piece_elements_max: usize) -> Self {
        // It has slots for sums only, after those of the other lane.
        let first_slot = SUMS as usize;
        Self { node, index: 1, first_slot, piece_elements_max, finished: 0, tasks: 0, run: None }
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
        let place = self.node.place(task.memory);
        let (ranks, elements_max) = (self.node.ranks.len(), self.piece_elements_max);
        let pieces = Pieces::new(task, ranks, SLOT_BYTES, elements_max);
        self.run = Some(Run { pieces, place, stage: Stage::Coming });
    }

    /// Whether other ranks may write to the buffer of the task.
    pub(crate) fn is_exposed(&self) -> bool {
        let reached = |run: &Run| run.place != 0 && !matches!(run.stage, Stage::Coming);
        let written = |run: &Run| run.pieces.task.kind == Kind::ReduceAndGather;
        self.run.as_ref().is_some_and(|run| reached(run) && written(run))
    }

    /// Does a piece of the task, if the others have come as far.
    ///
    /// # Safety
    /// The task's memory is valid and nobody else's until this returns [`Step::Finished`], or is
    /// never called again; the others may write to it then still if the lane [`is_exposed`].
    ///
    /// [`is_exposed`]: Self::is_exposed
    pub(crate) unsafe fn step(&mut self) -> Step {
        let Some(mut run) = self.run.take() else { return Step::Finished };
        let step = match run.pieces.count {
            0 => Step::Finished,
            // SAFETY: the caller's promise.
            _ => unsafe { self.work(&mut run) },
        };
        if step != Step::Finished {
            self.run = Some(run);
        }
        step
    }

    unsafe fn work(&mut self, run: &mut Run) -> Step {
        match &mut run.stage {
            Stage::Coming => {
                self.own_words().places[self.index].0[self.turn()]
                    .store(run.place, Ordering::Relaxed);
                self.finish_round();
                run.stage = Stage::Meeting;
            }
            Stage::Meeting => {
                if !self.others_come_soon() {
                    return Step::Blocked;
                }
                run.stage = self.meet(run.place);
            }
            // SAFETY: the caller's promise.
            Stage::Slots { .. } => return unsafe { self.round(run) },
            Stage::Direct { region, offset, done } => {
                let (region, offset, piece) = (region.clone(), *offset, *done);
                *done += 1;
                // SAFETY: the caller's promise, and the same promise made to all others, who have
                // come; every rank writes ranges of its own part, or of its own buffer.
                if !unsafe { self.reach(run, &region, offset, piece) } {
                    self.finish_round();
                    run.stage = Stage::Parting;
                }
            }
            Stage::Parting => {
                let is_over = self.others_come_soon();
                return if is_over { Step::Finished } else { Step::Blocked };
            }
        }
        Step::Moved
    }

    /// How to go on, now that the others have told where their buffers are.
    fn meet(&mut self, place: u64) -> Stage {
        let told = |local: usize| {
            self.node.words(local).places[self.index].0[self.turn()].load(Ordering::Relaxed)
        };
        let is_one = self.node.others().all(|local| told(local) == place);
        let region = self.node.region(place).filter(|_| is_one);
        self.tasks += 1;
        match region {
            Some((region, offset)) => Stage::Direct { region, offset, done: 0 },
            None => Stage::Slots { round: 0, has_offered: false },
        }
    }

    /// Words for this task are not written again before everybody has come to the next.
    fn turn(&self) -> usize {
        (self.tasks % 2) as usize
    }

    /// Works on a piece in place, wherever it is; `false` when there is none of that number.
    unsafe fn reach(&self, run: &Run, region: &Region, offset: usize, piece: usize) -> bool {
        let (task, count) = (&run.pieces.task, run.pieces.count);
        let (kind, dtype) = (task.kind, task.memory.dtype());
        let owner = match kind {
            Kind::Gather => self.node.others().nth(piece / count),
            Kind::Reduce | Kind::ReduceAndGather => (piece < count).then_some(self.node.local),
        };
        let Some(owner) = owner else { return false };
        let range = run.pieces.of(owner, piece % count);
        // SAFETY: the caller's promise.
        unsafe { region.work(kind, dtype, offset, range, owner) };
        true
    }

    /// Finishes one round through the slots, if the others have come as far.
    unsafe fn round(&mut self, run: &mut Run) -> Step {
        let (kind, pieces) = (run.pieces.task.kind, run.pieces.count);
        let Stage::Slots { round, has_offered } = run.stage else { return Step::Blocked };
        // SAFETY: the buffer is the caller's promise. The slots are this rank's own, and nobody
        // reads those that are written: see the top of this file.
        unsafe {
            if kind.reduces() && round < pieces && !has_offered {
                self.offer(&run.pieces, round);
                run.stage = Stage::Slots { round, has_offered: true };
            }
        }
        if !self.others_come_soon() {
            return Step::Blocked;
        }
        // SAFETY: as above; and all others have finished the round before, in which they wrote what
        // is read here, and write those slots no more before this rank has finished this round.
        unsafe {
            let own = round.checked_sub(usize::from(kind.reduces()));
            if let Some(piece) = own.filter(|&piece| piece < pieces) {
                self.settle(&run.pieces, piece);
            }
            let theirs = round.checked_sub(kind.depth()).filter(|_| kind.gathers());
            if let Some(piece) = theirs {
                self.collect(&run.pieces, piece);
            }
        }
        self.finish_round();
        run.stage = Stage::Slots { round: round + 1, has_offered: false };
        if round + 1 == pieces + kind.depth() { Step::Finished } else { Step::Moved }
    }

    pub(super) fn own_words(&self) -> &Words {
        self.node.words(self.node.local)
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
        self.own_words().finished[self.index].0.store(self.finished, Ordering::Release);
        self.node.others().for_each(|local| self.node.words(local).bell.ring());
    }

    /// Copies a piece of each of the others' parts into a slot.
    unsafe fn offer(&self, pieces: &Pieces, piece: usize) {
        for local in self.node.others() {
            let range = pieces.of(local, piece);
            // SAFETY: the caller's promise; the piece fits into its place in the slot.
            unsafe {
                let to = self.offered(pieces, self.node.local, self.finished, local);
                put(pieces.at(range.start), to, pieces.bytes(range.len()));
            }
        }
    }

    /// Makes a piece of this rank's part what it is to be, and puts it where the others find it.
    unsafe fn settle(&self, pieces: &Pieces, piece: usize) {
        let range = pieces.of(self.node.local, piece);
        let to = self.sums(self.node.local, self.finished);
        // SAFETY: the caller's promise; the piece fits into the slot.
        unsafe {
            match (pieces.task.kind.reduces(), pieces.task.memory.dtype()) {
                (true, Dtype::F32) => self.add::<f32>(pieces, range, to),
                (true, Dtype::F64) => self.add::<f64>(pieces, range, to),
                (true, Dtype::U8 | Dtype::Bf16) => unreachable!("refused by Operation::check"),
                (false, _) => put(pieces.at(range.start), to, pieces.bytes(range.len())),
            }
        }
    }

    unsafe fn add<E: Element + AddAssign>(
        &self,
        pieces: &Pieces,
        range: Range<usize>,
        to: *mut u8,
    ) {
        let (local, len) = (self.node.local, range.len());
        // SAFETY: the caller's promise: the buffer and the sums' slot are ours alone, the offers
        // are written by nobody now. Slots are aligned to pages, and pieces in them to `E`.
        unsafe {
            let own = slice::from_raw_parts_mut(pieces.at(range.start).cast::<E>(), len);
            let copy = pieces.task.kind.gathers();
            let copy = copy.then(|| slice::from_raw_parts_mut(to.cast::<E>(), len));
            let of = |rank: usize| {
                let from = self.offered(pieces, rank, self.finished - 1, local);
                slice::from_raw_parts(from.cast::<E>().cast_const(), len)
            };
            sum::in_order(own, local, self.node.ranks.len(), of, copy);
        }
    }

    /// Copies what the others have put there of their parts.
    unsafe fn collect(&self, pieces: &Pieces, piece: usize) {
        for local in self.node.others() {
            let range = pieces.of(local, piece);
            let from = self.sums(local, self.finished - 1);
            // SAFETY: the caller's promise; the piece lies in the buffer.
            unsafe {
                ptr::copy_nonoverlapping(from, pieces.at(range.start), pieces.bytes(range.len()));
            }
        }
    }

    /// Where `rank` offers, in a round, its piece of `owner`'s part.
    fn offered(&self, pieces: &Pieces, rank: usize, round: u64, owner: usize) -> *mut u8 {
        let slot = self.node.segment.slot(rank, (round % OFFERS) as usize);
        // SAFETY: as many pieces as there are places fit into a slot.
        unsafe { slot.add(pieces.place(owner)) }
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
