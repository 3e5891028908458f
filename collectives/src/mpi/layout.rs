//! Which ranks of the world share a node.

use std::sync::Arc;

/// The nodes of the world, and a rank's place in them.
#[derive(Debug)]
pub(super) struct Layout {
    /// The ranks of each node in ascending order; nodes in the order of their first ranks.
    pub(super) nodes: Vec<Arc<[usize]>>,
    /// By rank: the node, and the index within it.
    pub(super) places: Vec<(usize, usize)>,
    /// This rank's node.
    pub(super) node: usize,
    /// This rank's index within its node.
    pub(super) local: usize,
    /// The ranks of this index, one per node, where all nodes have as many.
    pub(super) counterparts: Option<Arc<[usize]>>,
}

impl Layout {
    /// From the first rank of every rank's node.
    pub(super) fn new(rank: usize, firsts: &[usize]) -> Self {
        let mut order: Vec<usize> = firsts.to_vec();
        order.sort_unstable();
        order.dedup();
        let of = |first: &usize| (0..firsts.len()).filter(|&rank| firsts[rank] == *first).collect();
        let nodes: Vec<Arc<[usize]>> = order.iter().map(of).collect();
        let mut places = vec![(0, 0); firsts.len()];
        for (node, ranks) in nodes.iter().enumerate() {
            for (local, &rank) in ranks.iter().enumerate() {
                places[rank] = (node, local);
            }
        }
        let (node, local) = places[rank];
        let is_even = nodes.iter().all(|ranks| ranks.len() == nodes[0].len());
        let counterparts = is_even.then(|| nodes.iter().map(|ranks| ranks[local]).collect());
        Self { nodes, places, node, local, counterparts }
    }

    /// The ranks of this rank's node.
    pub(super) fn neighbours(&self) -> &Arc<[usize]> {
        &self.nodes[self.node]
    }

    /// Whether all nodes have the same number of ranks.
    pub(super) fn is_even(&self) -> bool {
        self.counterparts.is_some()
    }

    /// Whether any two ranks share a node.
    pub(super) fn shares(&self) -> bool {
        self.nodes.iter().any(|ranks| ranks.len() > 1)
    }

    /// Ranks of one group have the same index on their nodes and talk between nodes about the same
    /// part. Where nodes differ in size, each node's first rank talks for all.
    pub(super) fn group(&self) -> usize {
        if self.is_even() { self.local } else { self.local.min(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_by_their_first_ranks() {
        let firsts = [0, 1, 0, 1, 4];
        let layout = Layout::new(3, &firsts);
        let nodes: Vec<&[usize]> = layout.nodes.iter().map(|ranks| &ranks[..]).collect();
        assert_eq!(nodes, [&[0, 2][..], &[1, 3], &[4]]);
        assert_eq!((layout.node, layout.local), (1, 1));
        assert_eq!(layout.places, [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0)]);
        assert!(!layout.is_even() && layout.shares());
        assert_eq!(layout.group(), 1);
        let even = Layout::new(3, &[0, 0, 2, 2]);
        assert!(even.is_even() && even.shares());
        assert_eq!((even.node, even.local, even.group()), (1, 1, 1));
        assert!(!Layout::new(0, &[0, 1, 2]).shares());
    }
}
