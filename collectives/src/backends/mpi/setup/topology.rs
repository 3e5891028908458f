//! Placement of the ranks of the world on nodes.

use std::sync::Arc;

/// The nodes of the world, as one rank sees them.
#[derive(Debug)]
pub(crate) struct Topology {
    /// The ranks of each node in ascending order; nodes in the order of their first ranks.
    pub(crate) nodes: Vec<Arc<[usize]>>,
    /// Positions by rank.
    pub(crate) positions: Vec<Position>,
    /// This rank's position.
    pub(crate) own: Position,
    /// The ranks with this rank's index on their nodes, one per node; `None` where nodes differ in
    /// size.
    pub(crate) same_local_rank: Option<Arc<[usize]>>,
}

/// Node of a rank, and its index there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) node: usize,
    /// Index among the node's ranks.
    pub(crate) local_rank: usize,
}

impl Topology {
    /// Builds the topology from the first rank of every rank's node.
    pub(crate) fn new(rank: usize, first_ranks: &[usize]) -> Self {
        let mut order: Vec<usize> = first_ranks.to_vec();
        order.sort_unstable();
        order.dedup();
        let ranks_of = |first: &usize| {
            (0..first_ranks.len()).filter(|&rank| first_ranks[rank] == *first).collect()
        };
        let nodes: Vec<Arc<[usize]>> = order.iter().map(ranks_of).collect();
        let mut positions = vec![Position { node: 0, local_rank: 0 }; first_ranks.len()];
        for (node, ranks) in nodes.iter().enumerate() {
            for (local_rank, &rank) in ranks.iter().enumerate() {
                positions[rank] = Position { node, local_rank };
            }
        }
        let own = positions[rank];
        let is_even = nodes.iter().all(|ranks| ranks.len() == nodes[0].len());
        let same_local_rank =
            is_even.then(|| nodes.iter().map(|ranks| ranks[own.local_rank]).collect());
        Self { nodes, positions, own, same_local_rank }
    }

    /// The ranks of this rank's node.
    pub(crate) fn node_ranks(&self) -> &Arc<[usize]> {
        &self.nodes[self.own.node]
    }

    /// Returns whether all nodes have the same number of ranks.
    pub(crate) fn is_even(&self) -> bool {
        self.same_local_rank.is_some()
    }

    /// Returns whether any two ranks share a node.
    pub(crate) fn has_shared_nodes(&self) -> bool {
        self.nodes.iter().any(|ranks| ranks.len() > 1)
    }

    /// Ranks of one exchange group are on different nodes and exchange the same part. Where all
    /// nodes have as many ranks, they have the same index on their nodes; else each node's first
    /// rank exchanges for the whole node.
    pub(crate) fn exchange_group(&self) -> usize {
        if self.is_even() { self.own.local_rank } else { self.own.local_rank.min(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_the_order_of_their_first_ranks() {
        let topology = Topology::new(3, &[0, 1, 0, 1, 4]);
        let nodes: Vec<&[usize]> = topology.nodes.iter().map(|ranks| &ranks[..]).collect();
        assert_eq!(nodes, [&[0, 2][..], &[1, 3], &[4]]);
        let position = |node, local_rank| Position { node, local_rank };
        assert_eq!(topology.own, position(1, 1));
        let expected =
            [position(0, 0), position(1, 0), position(0, 1), position(1, 1), position(2, 0)];
        assert_eq!(topology.positions, expected);
        assert!(!topology.is_even() && topology.has_shared_nodes());
        assert_eq!(topology.exchange_group(), 1);
        let even = Topology::new(3, &[0, 0, 2, 2]);
        assert!(even.is_even() && even.has_shared_nodes());
        assert_eq!((even.own, even.exchange_group()), (position(1, 1), 1));
        assert!(!Topology::new(0, &[0, 1, 2]).has_shared_nodes());
    }
}
