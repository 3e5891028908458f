//! The stages of an operation over several nodes.
//!
//! First the ranks of each node reduce, so that each has a part of its node's sum. Then the ranks
//! with the same index on their nodes exchange that part. Last, each node gathers the parts. Where
//! nodes differ in size, the first rank of each node, its leader, has all of it and exchanges for
//! the whole node. A sum therefore adds the nodes' sums in the order of the nodes, each of which
//! adds its ranks in their order. All-reduce and reduce-scatter have the same order.

use std::ops::Range;

use crate::backends::mpi::library::calls::{Call, ErrorCode};
use crate::backends::mpi::setup::topology::Topology;
use crate::core::outstanding::Job;
use crate::stages::partition::Partition;
use crate::stages::stage::{Stage, StageKind};
use crate::{Channel, Operation};

/// The index on its node of the rank that exchanges for the whole node, where nodes differ in size.
const LEADER: usize = 0;

/// Stages of one operation, on one rank.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StagePlan<'a> {
    pub(crate) topology: &'a Topology,
    pub(crate) job: Job,
}

impl StagePlan<'_> {
    /// Returns whether an operation has stages, if its buffer is in shared memory.
    pub(crate) fn applies_to(job: &Job) -> bool {
        let has_stages = matches!(
            job.operation,
            Operation::AllReduceSum | Operation::ReduceScatterSum | Operation::AllGather
        );
        has_stages && job.channel == Channel::Data
    }

    /// The stages within the node before the exchange, by index.
    pub(crate) fn before_exchange(&self, index: usize) -> Option<Stage> {
        let topology = self.topology;
        let is_first = index == 0;
        match self.job.operation {
            Operation::AllReduceSum if self.is_one_node() => {
                is_first.then(|| self.stage(StageKind::AllReduce, self.exchanged()))
            }
            // For every node the parts that its ranks will own.
            Operation::ReduceScatterSum if topology.is_even() => (index < topology.nodes.len())
                .then(|| self.stage(StageKind::ReduceScatter, self.parts_of(index))),
            Operation::AllReduceSum | Operation::ReduceScatterSum => {
                is_first.then(|| self.stage(StageKind::ReduceScatter, self.exchanged()))
            }
            Operation::AllGather if topology.is_even() && !self.is_one_node() => None,
            Operation::AllGather => {
                let own_node = self.parts_of(topology.own.node);
                is_first.then(|| self.stage(StageKind::AllGather, own_node))
            }
            _ => None,
        }
    }

    /// Stage in which this rank then sums with its exchange group.
    pub(crate) fn exchanged_sum(&self) -> Option<Stage> {
        if !self.exchanges() {
            return None;
        }
        match (self.job.operation, &self.topology.same_local_rank) {
            (Operation::ReduceScatterSum, Some(ranks)) => {
                let partition =
                    Partition::Placed { positions: ranks.clone(), len: self.part_len() };
                Some(self.stage(StageKind::ReduceScatter, partition))
            }
            (Operation::AllReduceSum | Operation::ReduceScatterSum, _) => {
                let members = self.topology.node_ranks().len();
                let own = self.exchanged().part(self.topology.own.local_rank, members);
                let partition = Partition::Even { len: own.len() };
                let buffer = self.job.buffer.slice(own);
                Some(Stage { kind: StageKind::AllReduce, buffer, partition })
            }
            _ => None,
        }
    }

    /// Transfers to and from the exchange group without a sum: one MPI call per range, in order.
    pub(crate) fn exchanged_calls(
        &self,
        mut call: impl FnMut(Call, Range<usize>) -> Result<(), ErrorCode>,
    ) -> Result<(), ErrorCode> {
        let topology = self.topology;
        if !self.exchanges() {
            return Ok(());
        }
        match self.job.operation {
            Operation::AllGather if topology.is_even() => (0..topology.nodes.len())
                .try_for_each(|root| call(Call::Broadcast { root }, self.counterpart_part(root))),
            Operation::AllGather => (0..topology.positions.len()).try_for_each(|rank| {
                let root = topology.positions[rank].node;
                call(Call::Broadcast { root }, self.part_of(rank))
            }),
            _ => Ok(()),
        }
    }

    /// The stages within the node after the exchange, by index.
    pub(crate) fn after_exchange(&self, index: usize) -> Option<Stage> {
        let topology = self.topology;
        if self.is_one_node() {
            return None;
        }
        let gather = |partition| self.stage(StageKind::AllGather, partition);
        let is_first = index == 0;
        match self.job.operation {
            Operation::ReduceScatterSum if topology.is_even() => None,
            Operation::AllReduceSum | Operation::ReduceScatterSum => {
                is_first.then(|| gather(self.exchanged()))
            }
            Operation::AllGather if topology.is_even() => {
                (index < topology.nodes.len()).then(|| gather(self.parts_of(index)))
            }
            Operation::AllGather => is_first.then(|| gather(self.whole(LEADER))),
            _ => None,
        }
    }

    fn is_one_node(&self) -> bool {
        self.topology.nodes.len() == 1
    }

    /// Returns whether this rank exchanges with other nodes.
    fn exchanges(&self) -> bool {
        let topology = self.topology;
        !self.is_one_node() && (topology.is_even() || topology.own.local_rank == LEADER)
    }

    fn stage(&self, kind: StageKind, partition: Partition) -> Stage {
        Stage { kind, buffer: self.job.buffer, partition }
    }

    /// The buffer among the ranks of a node that exchange it.
    fn exchanged(&self) -> Partition {
        if self.topology.is_even() {
            Partition::Even { len: self.job.buffer.len() }
        } else {
            self.whole(LEADER)
        }
    }

    fn whole(&self, owner: usize) -> Partition {
        Partition::Whole { owner, len: self.job.buffer.len() }
    }

    /// Length of one rank's part in a reduce-scatter or an all-gather.
    fn part_len(&self) -> usize {
        self.job.buffer.len() / self.topology.positions.len()
    }

    fn part_of(&self, rank: usize) -> Range<usize> {
        rank * self.part_len()..(rank + 1) * self.part_len()
    }

    /// The parts of a node's ranks in a reduce-scatter or an all-gather.
    fn parts_of(&self, node: usize) -> Partition {
        let positions = self.topology.nodes[node].clone();
        Partition::Placed { positions, len: self.part_len() }
    }

    /// The part of the rank with this one's index on another node.
    fn counterpart_part(&self, node: usize) -> Range<usize> {
        self.part_of(self.topology.nodes[node][self.topology.own.local_rank])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RawBuffer;

    /// Work of one rank across nodes: calls, or each member's part of a sum.
    fn exchanges(topology: &Topology, operation: Operation) -> Vec<(String, Range<usize>)> {
        let mut memory = vec![0_f32; 64 * topology.positions.len()];
        let whole = RawBuffer::of(&mut memory);
        let plan = StagePlan { topology, job: Job::new(Channel::Data, operation, whole) };
        let mut exchanges = Vec::new();
        if let Some(Stage { kind, buffer, partition }) = plan.exchanged_sum() {
            let start = buffer.start().addr().get() - whole.start().addr().get();
            let start = start / size_of::<f32>();
            let members = topology.nodes.len();
            exchanges.extend((0..members).map(|member| {
                let part = partition.part(member, members);
                (format!("{kind:?}"), start + part.start..start + part.end)
            }));
        }
        plan.exchanged_calls(|call, range| {
            exchanges.push((format!("{call:?}"), range));
            Ok(())
        })
        .unwrap();
        exchanges
    }

    /// Nodes in the order of the ranks, dealt in turn, from both ends, and of different sizes.
    const FIRST_RANKS: [&[usize]; 6] = [
        &[0, 0, 2, 2],
        &[0, 1, 0, 1],
        &[0, 1, 1, 0],
        &[0, 1, 1, 0, 4, 4],
        &[0, 1, 0],
        &[0, 1, 1, 1, 0],
    ];

    #[test]
    fn ranks_of_an_exchange_group_make_the_same_calls() {
        let all = [Operation::AllReduceSum, Operation::ReduceScatterSum, Operation::AllGather];
        for first_ranks in FIRST_RANKS {
            let world = first_ranks.len();
            let topologies: Vec<_> =
                (0..world).map(|rank| Topology::new(rank, first_ranks)).collect();
            for operation in all {
                for topology in &topologies {
                    let is_in_group =
                        |other: &&Topology| other.exchange_group() == topology.exchange_group();
                    let first = topologies.iter().find(is_in_group).unwrap();
                    let expected = exchanges(first, operation);
                    let found = exchanges(topology, operation);
                    assert_eq!(found, expected, "{first_ranks:?}, {operation:?}");
                }
            }
        }
    }

    /// The result of a reduce-scatter is ordered by rank, not by node.
    #[test]
    fn each_rank_gets_its_own_part() {
        for first_ranks in [FIRST_RANKS[1], FIRST_RANKS[2], FIRST_RANKS[3]] {
            for rank in 0..first_ranks.len() {
                let topology = Topology::new(rank, first_ranks);
                let all = exchanges(&topology, Operation::ReduceScatterSum);
                let expected =
                    (format!("{:?}", StageKind::ReduceScatter), 64 * rank..64 * (rank + 1));
                assert_eq!(all[topology.own.node], expected, "{first_ranks:?}, rank {rank}");
            }
        }
    }
}
