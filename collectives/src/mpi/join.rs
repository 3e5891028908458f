//! How the ranks of a node come to share memory.

use std::io;

use mpi::ffi::MPI_Comm;

use super::calls::{self, Code};
use super::layout::Layout;
use super::options::MpiOptions;
use super::world::{Group, World};
use crate::node::{Address, Node};

/// What carries the data of the ranks of one node.
#[derive(Debug)]
pub(super) enum Carrier {
    /// MPI, as between nodes: asked for, or no two ranks share a node.
    Mpi,
    /// MPI, because the memory could not be set up: why.
    MpiForWant(String),
    /// Memory that they share.
    Memory(Neighbourhood),
}

/// The ranks around this one.
#[derive(Debug)]
pub(super) struct Neighbourhood {
    pub(super) layout: Layout,
    pub(super) node: Node,
    /// The ranks that this one talks to between nodes (see [`Layout::group`]), one per node, in the
    /// order of the nodes.
    pub(super) across: Group,
}

/// Stands for an error that is none of the system's.
const UNSEEN: i32 = -1;

/// Sets up the shared memory on all nodes, or on none. Blocking, and the same calls on all ranks
/// whatever their options.
pub(super) fn join(world: World, options: &MpiOptions) -> Result<Carrier, Code> {
    let World { rank, size, control: world, .. } = world;
    let neighbours = calls::split_by_node(world, rank)?;
    let (index, _) = calls::rank_and_size(neighbours)?;
    let colour = options.pretended_nodes.get(rank).copied().unwrap_or(0);
    let node = calls::split(neighbours, colour, index)?;
    calls::free(neighbours)?;
    let mut first = [rank as u64];
    calls::broadcast(&mut first, node)?;
    let told = calls::all_gather(&[first[0], u64::from(options.node_shared)], size, world)?;
    let firsts: Vec<usize> = told.iter().step_by(2).map(|&first| first as usize).collect();
    let layout = Layout::new(rank, &firsts);
    if told.iter().skip(1).step_by(2).any(|&wanted| wanted == 0) || !layout.shares() {
        calls::free(node)?;
        return Ok(Carrier::Mpi);
    }
    let shared = share(&layout, node)?;
    // Also tells the makers that all have mapped what they made.
    let outcome = [shared.as_ref().map_or_else(|error| u64::from(code(error) as u32), |_| 0)];
    let outcomes = calls::all_gather(&outcome, size, world)?;
    calls::free(node)?;
    if let Some(rank) = outcomes.iter().position(|&outcome| outcome != 0) {
        let cause = cause(outcomes[rank] as u32 as i32);
        return Ok(Carrier::MpiForWant(format!("rank {rank} could not map it: {cause}")));
    }
    // By node, not by rank: a host file may deal ranks to nodes in any order.
    let communicator = calls::split(world, layout.group(), layout.node)?;
    let across = Group { communicator, member: layout.node, members: layout.nodes.len() };
    match shared {
        Ok((node, _file)) => Ok(Carrier::Memory(Neighbourhood { layout, node, across })),
        Err(error) => Ok(Carrier::MpiForWant(error.to_string())), // told to all: not reached
    }
}

/// An error for other ranks; never 0.
pub(super) fn code(error: &io::Error) -> i32 {
    error.raw_os_error().filter(|&code| code != 0).unwrap_or(UNSEEN)
}

/// The same in words.
pub(super) fn cause(code: i32) -> String {
    match code {
        UNSEEN => "it does not see the maker's files: another container?".to_owned(),
        code => io::Error::from_raw_os_error(code).to_string(),
    }
}

/// The node's first rank makes the memory, the others map it. The file lives until all have.
#[allow(clippy::type_complexity)]
fn share(
    layout: &Layout,
    node: MPI_Comm,
) -> Result<io::Result<(Node, Option<std::fs::File>)>, Code> {
    let ranks = layout.neighbours();
    let made = (layout.local == 0).then(|| Node::create(ranks));
    let mut fields = [0; 4];
    if let Some(Ok((_, _, address))) = &made {
        fields = address.fields;
    }
    calls::broadcast(&mut fields, node)?;
    Ok(match made {
        Some(made) => made.map(|(node, file, _)| (node, Some(file))),
        None => Node::join(Address { fields }, layout.local, ranks).map(|node| (node, None)),
    })
}
