//! Placement: the ranks that share a node or its cores, and the threads of each.
//!
//! A node is a host name on a running kernel: two pods on one machine are two nodes, and two
//! machines that are both called `localhost` are two nodes as well. Cores belong to the machine,
//! which is a running kernel, whatever the names of its pods.

mod core_share;
mod cores;
mod location;
mod numa;
mod thread_plan;
mod unused_cores;

use serde::{Deserialize, Serialize};

pub use cores::{CORES_MAX, allowed_cores};
pub(crate) use location::RankLocation;
pub use numa::NumaNode;
pub use thread_plan::ThreadPlan;
pub(crate) use unused_cores::unused_cores;

/// Placement of a rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Rank of this process, 0 to world - 1.
    pub rank: usize,
    /// Number of ranks.
    pub world: usize,
    /// Name of this rank's host.
    pub host: String,
    /// Rank among those on this node.
    pub local_rank: usize,
    /// All ranks of this node, in ascending order.
    pub local_ranks: Vec<usize>,
    /// Number of ranks on this node.
    pub local_world: usize,
    /// Index of this node, in the order of the nodes' first ranks.
    pub node: usize,
    /// Number of nodes.
    pub nodes: usize,
}

impl Placement {
    /// Computes the placement of one rank; `locations` has one entry per rank.
    ///
    /// # Panics
    /// If there is no such rank.
    pub(crate) fn new(rank: usize, locations: &[RankLocation]) -> Self {
        let own = &locations[rank];
        let mut nodes = Vec::new();
        for location in locations {
            if !nodes.contains(&location.node()) {
                nodes.push(location.node());
            }
        }
        let is_local = |location: &&RankLocation| location.node() == own.node();
        Self {
            rank,
            world: locations.len(),
            host: own.host.clone(),
            local_rank: locations[..rank].iter().filter(is_local).count(),
            local_ranks: (0..).zip(locations).filter(|it| is_local(&it.1)).map(|it| it.0).collect(),
            local_world: locations.iter().filter(is_local).count(),
            node: nodes.iter().take_while(|&&node| node != own.node()).count(),
            nodes: nodes.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(host: &str, boot_id: &str) -> RankLocation {
        RankLocation { host: host.to_owned(), boot_id: boot_id.to_owned(), cores: vec![0] }
    }

    #[test]
    fn ranks_are_placed_by_host_round_robin_or_not() {
        let ranks = ["b", "a", "b", "a", "c"].map(|host| location(host, ""));
        let placements: Vec<_> = (0..5).map(|rank| Placement::new(rank, &ranks)).collect();
        let locals = placements.iter().map(|p| (p.node, p.local_rank, p.local_world));
        assert!(locals.eq([(0, 0, 2), (1, 0, 2), (0, 1, 2), (1, 1, 2), (2, 0, 1)]));
        assert!(placements.iter().all(|p| p.nodes == 3 && p.world == 5));
        assert_eq!(placements[2].host, "b");
        assert_eq!(placements[3].local_ranks, [1, 3]);
    }

    #[test]
    fn machines_of_one_name_are_several_nodes() {
        let ranks = [location("localhost", "x"), location("localhost", "y")];
        let placement = Placement::new(1, &ranks);
        assert_eq!((placement.nodes, placement.node, placement.local_world), (2, 1, 1));
    }

    #[test]
    fn pods_of_one_machine_are_several_nodes() {
        let pods = [location("pod-0", "x"), location("pod-1", "x")];
        assert_eq!(Placement::new(1, &pods).nodes, 2, "they do not share memory");
    }
}
