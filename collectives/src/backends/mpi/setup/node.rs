//! Discovery of ranks that share a node, and setup of the memory that they share.

use super::topology::Topology;
use super::world::{Group, World};
use crate::backends::mpi::library::calls::ErrorCode;
use crate::backends::mpi::library::communicator;
use crate::backends::mpi::options::MpiOptions;
use crate::shm::node::Node;

/// Transport between the ranks of one node.
#[derive(Debug)]
pub(crate) enum NodeTransport {
    /// MPI, as between nodes: as requested, or because no two ranks share a node.
    Mpi,
    /// MPI, because shared memory is unavailable for this reason.
    Fallback(String),
    /// Shared memory.
    Shared(Box<NodeGroups>),
}

/// Groups of ranks with which this rank works in stages.
#[derive(Debug)]
pub(crate) struct NodeGroups {
    pub(crate) topology: Topology,
    /// Ranks of its node.
    pub(crate) node: Node,
    /// Ranks of other nodes (see [`Topology::exchange_group`]), one per node, in the order of the
    /// nodes.
    pub(crate) across_nodes: Group,
}

/// Sets up shared memory on all nodes, or on none. Blocking, and the same calls on all ranks
/// whatever their options are.
pub(crate) fn join(world: World, options: &MpiOptions) -> Result<NodeTransport, ErrorCode> {
    let World { rank, size, control, .. } = world;
    let first_rank = first_rank_of_node(world, options)?;
    let all_gather = |values: &[u64]| communicator::all_gather(values, size, control);
    let gathered = all_gather(&[first_rank as u64, u64::from(options.shared_memory)])?;
    let first_ranks: Vec<usize> = gathered.iter().step_by(2).map(|&rank| rank as usize).collect();
    let all_want = gathered.iter().skip(1).step_by(2).all(|&wanted| wanted != 0);
    let topology = Topology::new(rank, &first_ranks);
    if !all_want || !topology.has_shared_nodes() {
        return Ok(NodeTransport::Mpi);
    }
    let node = match Node::join(rank, topology.node_ranks(), all_gather)? {
        Ok(node) => node,
        Err(unavailable) => return Ok(NodeTransport::Fallback(unavailable.to_string())),
    };
    // Ordered by node, not by rank: a host file may assign ranks to nodes in any order.
    let across_nodes = Group {
        communicator: communicator::split(control, topology.exchange_group(), topology.own.node)?,
        member: topology.own.node,
        ranks: (0..topology.nodes.len()).collect(),
        named: None,
        number: 0,
        exchange_block: 0,
    };
    Ok(NodeTransport::Shared(Box::new(NodeGroups { topology, node, across_nodes })))
}

/// The lowest rank of this rank's node.
fn first_rank_of_node(world: World, options: &MpiOptions) -> Result<usize, ErrorCode> {
    let on_machine = communicator::split_by_node(world.control, world.rank)?;
    let simulated_node = options.simulated_nodes.get(world.rank).copied().unwrap_or(0);
    let on_node = communicator::split(on_machine, simulated_node, communicator::rank(on_machine)?)?;
    communicator::free(on_machine)?;
    let mut first = [world.rank as u64];
    communicator::broadcast(&mut first, on_node)?;
    communicator::free(on_node)?;
    Ok(first[0] as usize)
}
