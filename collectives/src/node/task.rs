//! What a lane is asked to do.

use std::ops::Range;

use super::Parts;
use crate::Memory;

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
    pub(crate) fn reduces(self) -> bool {
        self != Self::Gather
    }

    pub(crate) fn gathers(self) -> bool {
        self != Self::Reduce
    }

    /// Rounds from the first thing done with a piece to the last.
    pub(crate) fn depth(self) -> usize {
        usize::from(self.reduces()) + usize::from(self.gathers())
    }
}

/// A task cut into pieces.
#[derive(Debug, Clone)]
pub(crate) struct Pieces {
    pub(crate) task: Task,
    /// Ranks of the node.
    ranks: usize,
    /// In how many pieces the longest part is cut.
    pub(crate) count: usize,
    /// Of one piece.
    elements: usize,
}

impl Pieces {
    /// Cuts a task so that the pieces of all parts fit into a slot together.
    pub(crate) fn new(task: Task, ranks: usize, slot_bytes: usize, elements_max: usize) -> Self {
        let slot_elements = slot_bytes / task.memory.dtype().bytes();
        // Whole cache lines, and the same number on all ranks.
        let shared = slot_elements / task.parts.count(ranks) / 32 * 32;
        let elements = shared.clamp(1, elements_max);
        let count = task.parts.longest(ranks).div_ceil(elements);
        Self { task, ranks, count, elements }
    }

    /// A piece of a rank's part, in elements of the buffer; empty where the part has no more.
    pub(crate) fn of(&self, local: usize, piece: usize) -> Range<usize> {
        let part = self.task.parts.of(local, self.ranks);
        let cut = |piece: usize| (part.start + piece * self.elements).min(part.end);
        cut(piece)..cut(piece + 1)
    }

    /// Where the piece of `owner`'s part begins in a slot, in bytes.
    pub(crate) fn place(&self, owner: usize) -> usize {
        owner % self.task.parts.count(self.ranks) * self.bytes(self.elements)
    }

    /// Size of some elements.
    pub(crate) fn bytes(&self, elements: usize) -> usize {
        elements * self.task.memory.dtype().bytes()
    }

    /// Address of an element of the buffer.
    pub(crate) fn at(&self, element: usize) -> *mut u8 {
        debug_assert!(element <= self.task.memory.len(), "inside the buffer");
        self.task.memory.pointer().as_ptr().wrapping_add(self.bytes(element))
    }
}
