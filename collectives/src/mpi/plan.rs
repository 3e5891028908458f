//! What an operation does within the nodes and between them.
//!
//! First the ranks of each node reduce ("up"), so that each has a part of its node's sum; then
//! ranks of the same index talk across nodes about that part; then each node shares ("down"). Where
//! nodes differ in size, the first rank of each has all of it and talks alone. A sum is therefore
//! that of the nodes' sums in the order of the nodes, each that of its ranks in their order; and it
//! is the same in an all-reduce and a reduce-scatter.

use std::ops::Range;

use super::calls::{Call, Code};
use super::layout::Layout;
use crate::node::{Kind, Parts, Task};
use crate::slots::Job;
use crate::{Channel, Operation};

/// Of one operation, on one rank.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan<'a> {
    pub(super) layout: &'a Layout,
    pub(super) job: Job,
}

impl Plan<'_> {
    /// Whether the ranks of a node do this operation through their memory.
    pub(super) fn is_for(job: Job) -> bool {
        let moves_data = match job.operation {
            Operation::AllReduceSum
            | Operation::ReduceScatterSum
            | Operation::AllGather
            | Operation::Broadcast { .. } => true,
            Operation::Barrier | Operation::Send { .. } | Operation::Receive { .. } => false,
        };
        moves_data && job.channel == Channel::Data
    }

    /// What is done within the node first, one task after another.
    pub(super) fn up(&self, index: usize) -> Option<Task> {
        let (layout, is_first) = (self.layout, index == 0);
        match self.job.operation {
            Operation::AllReduceSum if self.is_one_node() => {
                is_first.then(|| self.task(Kind::ReduceAndGather, self.shared()))
            }
            Operation::AllReduceSum => is_first.then(|| self.task(Kind::Reduce, self.shared())),
            Operation::ReduceScatterSum if layout.is_even() => {
                // For every node the parts that its ranks will have.
                (index < layout.nodes.len()).then(|| self.task(Kind::Reduce, self.parts_of(index)))
            }
            Operation::ReduceScatterSum => is_first.then(|| self.task(Kind::Reduce, self.shared())),
            Operation::AllGather if layout.is_even() && !self.is_one_node() => None,
            Operation::AllGather => {
                is_first.then(|| self.task(Kind::Gather, self.parts_of(layout.node)))
            }
            Operation::Broadcast { root } => {
                let (node, local) = layout.places[root];
                let needed = node == layout.node && (self.is_one_node() || local != self.speaker());
                (is_first && needed).then(|| self.task(Kind::Gather, self.whole(local)))
            }
            Operation::Barrier | Operation::Send { .. } | Operation::Receive { .. } => None,
        }
    }

    /// What this rank then adds up with its group across nodes.
    pub(super) fn sum_across(&self) -> Option<Task> {
        let layout = self.layout;
        if self.is_one_node() || !self.speaks() {
            return None;
        }
        match (self.job.operation, &layout.counterparts) {
            (Operation::ReduceScatterSum, Some(ranks)) => {
                let parts = Parts::Placed { places: ranks.clone(), len: self.part_len() };
                Some(self.task(Kind::Reduce, parts))
            }
            (Operation::AllReduceSum | Operation::ReduceScatterSum, _) => {
                let own = self.own(&self.shared());
                let parts = Parts::Even { len: own.len() };
                let memory = self.job.memory.slice(own);
                Some(Task { memory, parts, kind: Kind::ReduceAndGather })
            }
            _ => None,
        }
    }

    /// What it gives and gets there as it is: a call for each range, in order.
    pub(super) fn across(
        &self,
        mut call: impl FnMut(Call, Range<usize>) -> Result<(), Code>,
    ) -> Result<(), Code> {
        let layout = self.layout;
        if self.is_one_node() || !self.speaks() {
            return Ok(());
        }
        match self.job.operation {
            Operation::AllGather if layout.is_even() => (0..layout.nodes.len())
                .try_for_each(|root| call(Call::Broadcast { root }, self.own_part_at(root))),
            Operation::AllGather => (0..layout.places.len()).try_for_each(|rank| {
                call(Call::Broadcast { root: layout.places[rank].0 }, self.part_of(rank))
            }),
            Operation::Broadcast { root } => {
                call(Call::Broadcast { root: layout.places[root].0 }, 0..self.job.memory.len())
            }
            _ => Ok(()),
        }
    }

    /// What is done within the node last, one task after another.
    pub(super) fn down(&self, index: usize) -> Option<Task> {
        let (layout, is_first) = (self.layout, index == 0);
        if self.is_one_node() {
            return None;
        }
        match self.job.operation {
            Operation::AllReduceSum => is_first.then(|| self.task(Kind::Gather, self.shared())),
            Operation::ReduceScatterSum if layout.is_even() => None,
            Operation::ReduceScatterSum => is_first.then(|| self.task(Kind::Gather, self.shared())),
            Operation::AllGather if layout.is_even() => {
                (index < layout.nodes.len()).then(|| self.task(Kind::Gather, self.parts_of(index)))
            }
            Operation::AllGather | Operation::Broadcast { .. } => {
                is_first.then(|| self.task(Kind::Gather, self.whole(self.speaker())))
            }
            Operation::Barrier | Operation::Send { .. } | Operation::Receive { .. } => None,
        }
    }

    fn is_one_node(&self) -> bool {
        self.layout.nodes.len() == 1
    }

    /// Whether this rank talks across nodes.
    fn speaks(&self) -> bool {
        match self.job.operation {
            Operation::Broadcast { .. } => self.layout.local == self.speaker(),
            _ => self.layout.is_even() || self.layout.local == 0,
        }
    }

    /// The index on its node of the rank that talks for it about a whole buffer.
    fn speaker(&self) -> usize {
        match self.job.operation {
            Operation::Broadcast { root } if self.layout.is_even() => self.layout.places[root].1,
            _ => 0,
        }
    }

    fn task(&self, kind: Kind, parts: Parts) -> Task {
        Task { memory: self.job.memory, parts, kind }
    }

    /// The buffer among the ranks that talk across nodes.
    fn shared(&self) -> Parts {
        if self.layout.is_even() {
            Parts::Even { len: self.job.memory.len() }
        } else {
            self.whole(0)
        }
    }

    fn whole(&self, owner: usize) -> Parts {
        Parts::Whole { owner, len: self.job.memory.len() }
    }

    fn part_len(&self) -> usize {
        self.job.memory.len() / self.layout.places.len()
    }

    /// The parts that a node's ranks have in a reduce-scatter or give to an all-gather.
    fn parts_of(&self, node: usize) -> Parts {
        Parts::Placed { places: self.layout.nodes[node].clone(), len: self.part_len() }
    }

    fn part_of(&self, rank: usize) -> Range<usize> {
        rank * self.part_len()..(rank + 1) * self.part_len()
    }

    /// The part of the rank with this one's index on another node.
    fn own_part_at(&self, node: usize) -> Range<usize> {
        self.part_of(self.layout.nodes[node][self.layout.local])
    }

    fn own(&self, parts: &Parts) -> Range<usize> {
        parts.of(self.layout.local, self.layout.neighbours().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;

    /// What one rank does across nodes: calls, or each member's part of a sum.
    fn calls(layout: &Layout, operation: Operation) -> Vec<(String, Range<usize>)> {
        let mut memory = vec![0_f32; 64 * layout.places.len()];
        let whole = Memory::of(&mut memory);
        let job = Job::new(Channel::Data, operation, whole);
        let mut calls = Vec::new();
        let plan = Plan { layout, job };
        if let Some(Task { memory, parts, kind }) = plan.sum_across() {
            let start = memory.pointer().addr().get() - whole.pointer().addr().get();
            let start = start / size_of::<f32>();
            let members = layout.nodes.len();
            let shifted = |part: Range<usize>| start + part.start..start + part.end;
            calls
                .extend((0..members).map(|m| (format!("{kind:?}"), shifted(parts.of(m, members)))));
        }
        plan.across(|call, range| {
            calls.push((format!("{call:?}"), range));
            Ok(())
        })
        .unwrap();
        calls
    }

    /// Nodes in the order of the ranks, dealt in turn, from both ends, and of different sizes.
    const FIRSTS: [&[usize]; 6] = [
        &[0, 0, 2, 2],
        &[0, 1, 0, 1],
        &[0, 1, 1, 0],
        &[0, 1, 1, 0, 4, 4],
        &[0, 1, 0],
        &[0, 1, 1, 1, 0],
    ];

    #[test]
    fn ranks_that_talk_across_nodes_make_the_same_calls_in_whatever_order_they_are() {
        let broadcast = |root| Operation::Broadcast { root };
        let all = [Operation::AllReduceSum, Operation::ReduceScatterSum, Operation::AllGather];
        for firsts in FIRSTS {
            let layouts: Vec<_> = (0..firsts.len()).map(|rank| Layout::new(rank, firsts)).collect();
            for operation in all.into_iter().chain((0..firsts.len()).map(broadcast)) {
                for layout in &layouts {
                    let same = |other: &&Layout| other.group() == layout.group();
                    let group: Vec<_> = layouts.iter().filter(same).collect();
                    let expected = calls(group[0], operation);
                    assert_eq!(calls(layout, operation), expected, "{firsts:?}, {operation:?}");
                }
            }
        }
    }

    /// What comes out of a reduce-scatter is at the place of the rank, not of its node.
    #[test]
    fn each_rank_gets_its_own_part() {
        for firsts in [FIRSTS[1], FIRSTS[2], FIRSTS[3]] {
            for rank in 0..firsts.len() {
                let layout = Layout::new(rank, firsts);
                let own = calls(&layout, Operation::ReduceScatterSum)[layout.node].clone();
                let expected = (format!("{:?}", Kind::Reduce), 64 * rank..64 * (rank + 1));
                assert_eq!(own, expected, "{firsts:?}, rank {rank}");
            }
        }
    }
}
