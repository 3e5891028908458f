//! Operations over the dimensions of a grid, one stage after the other.
//!
//! Each stage of each kind of operation has an exchange of its own, which operations enter in the
//! order of their starts, whichever of them is complete first: so every exchange has the same order
//! on all of its ranks.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::core::group::{GridPlan, Membership};
use crate::core::outstanding::Job;
use crate::stages::partition::Partition;
use crate::stages::stage::{Stage, StageKind};
use crate::{GroupPlan, OUTSTANDING_MAX, Operation};

/// Direction of a stage in a grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Axis {
    Inner,
    Outer,
}

use Axis::{Inner, Outer};

/// This rank's lines of a grid, as groups, and its place in them.
#[derive(Debug)]
pub(super) struct Lines {
    inner: Membership,
    outer: Membership,
    inner_positions: Arc<[usize]>,
    outer_positions: Arc<[usize]>,
}

impl Lines {
    pub(super) fn new(membership: &Membership, grid: &GridPlan) -> Self {
        let rank = membership.world_rank();
        let line = grid.lines.iter().position(|line| line.contains(&rank)).unwrap_or(0);
        let index = grid.lines[line].iter().position(|&other| other == rank).unwrap_or(0);
        let [inner, outer] = grid.dimensions;
        let of = |dimension, ranks: Vec<usize>, member: usize| {
            let plan = GroupPlan { dimension, number: grid.number, ranks };
            Membership { plan: Arc::new(plan), member, grid: None, ..membership.clone() }
        };
        Self {
            inner: of(inner, grid.lines[line].clone(), index),
            outer: of(outer, grid.lines.iter().map(|line| line[index]).collect(), line),
            inner_positions: (0..grid.inner()).collect(),
            outer_positions: (0..grid.outer()).collect(),
        }
    }

    pub(super) fn along(&self, axis: Axis) -> &Membership {
        match axis {
            Inner => &self.inner,
            Outer => &self.outer,
        }
    }

    /// A stage of an operation on this rank's buffer.
    pub(super) fn stage(&self, kind: StageKind, stage: usize, job: Job) -> Stage {
        let buffer = job.buffer;
        let len = buffer.len();
        let even = Partition::Even { len };
        let inner_part = len / self.inner.size();
        let inner_parts =
            Partition::Placed { positions: self.inner_positions.clone(), len: inner_part };
        let own = self.inner.member * inner_part..(self.inner.member + 1) * inner_part;
        let outer_parts = Partition::Placed {
            positions: self.outer_positions.clone(),
            len: inner_part / self.outer.size(),
        };
        let of = |kind, partition| Stage { kind, buffer, partition };
        match (kind, axes(kind)[stage], stage) {
            (StageKind::AllReduce, Inner, 0) => of(StageKind::ReduceScatter, even),
            (StageKind::AllReduce, Inner, _) => of(StageKind::AllGather, even),
            (StageKind::AllReduce, Outer, _) => {
                let buffer = buffer.slice(even.part(self.inner.member, self.inner.size()));
                let partition = Partition::Even { len: buffer.len() };
                Stage { kind, buffer, partition }
            }
            (_, Inner, _) => of(kind, inner_parts),
            (_, Outer, _) => Stage { kind, buffer: buffer.slice(own), partition: outer_parts },
        }
    }
}

/// Kinds of operations that have stages, in their order.
pub(super) const KINDS: [StageKind; 3] =
    [StageKind::ReduceScatter, StageKind::AllGather, StageKind::AllReduce];

/// Kind of an operation, if it has stages.
pub(super) fn kind_of(operation: Operation) -> Option<StageKind> {
    match operation {
        Operation::AllReduceSum => Some(StageKind::AllReduce),
        Operation::ReduceScatterSum => Some(StageKind::ReduceScatter),
        Operation::AllGather => Some(StageKind::AllGather),
        _ => None,
    }
}

/// The direction of each stage.
pub(super) fn axes(kind: StageKind) -> &'static [Axis] {
    match kind {
        StageKind::AllReduce => &[Inner, Outer, Inner],
        StageKind::ReduceScatter => &[Inner, Outer],
        StageKind::AllGather => &[Outer, Inner],
    }
}

/// The stages of one kind of operation on one channel.
#[derive(Debug)]
pub(super) struct Stages {
    stages: Vec<StageQueue>,
}

#[derive(Debug)]
struct StageQueue {
    /// Number of the exchange.
    exchange: usize,
    /// Slots of the operations in it, in the order of their starts.
    slots: VecDeque<u32>,
}

/// An operation that is to enter a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entering {
    pub(super) slot: u32,
    pub(super) stage: usize,
    pub(super) exchange: usize,
}

/// Outcome of a passed stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Passed {
    /// It enters the next stage.
    Entering(Entering),
    /// It is complete.
    Complete(u32),
}

impl Stages {
    /// Stages with the given exchanges.
    pub(super) fn new(exchanges: impl Iterator<Item = usize>) -> Self {
        let stage =
            |exchange| StageQueue { exchange, slots: VecDeque::with_capacity(OUTSTANDING_MAX) };
        Self { stages: exchanges.map(stage).collect() }
    }

    /// Enters an operation into the first stage.
    pub(super) fn start(&mut self, slot: u32) -> Entering {
        self.enter(slot, 0)
    }

    fn enter(&mut self, slot: u32, stage: usize) -> Entering {
        let queue = &mut self.stages[stage];
        queue.slots.push_back(slot);
        Entering { slot, stage, exchange: queue.exchange }
    }

    /// Takes an operation from a stage of which it is the first and which it has passed.
    pub(super) fn pass(&mut self, has_passed: impl Fn(u32) -> bool) -> Option<Passed> {
        let stage = (0..self.stages.len()).find(|&stage| {
            self.stages[stage].slots.front().is_some_and(|&slot| has_passed(slot))
        })?;
        let slot = self.stages[stage].slots.pop_front()?;
        Some(match stage + 1 == self.stages.len() {
            true => Passed::Complete(slot),
            false => Passed::Entering(self.enter(slot, stage + 1)),
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.stages.iter().all(|stage| stage.slots.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_enter_every_stage_in_the_order_of_their_starts() {
        let mut stages = Stages::new([5, 6].into_iter());
        let entering = |slot, stage, exchange| Entering { slot, stage, exchange };
        assert_eq!(stages.start(8), entering(8, 0, 5));
        assert_eq!(stages.start(3), entering(3, 0, 5));
        assert_eq!(stages.pass(|slot| slot == 3), None, "behind another");
        assert_eq!(stages.pass(|_| true), Some(Passed::Entering(entering(8, 1, 6))));
        assert_eq!(stages.pass(|slot| slot == 3), Some(Passed::Entering(entering(3, 1, 6))));
        assert_eq!(stages.pass(|slot| slot == 3), None, "behind another");
        assert_eq!(stages.pass(|_| true), Some(Passed::Complete(8)));
        assert_eq!(stages.pass(|_| true), Some(Passed::Complete(3)));
        assert!(stages.is_empty());
    }
}
