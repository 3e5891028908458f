//! Division of the ranks into dimensions: `data` groups, each of which holds a whole model, of
//! `shard` ranks, which share what is sharded.

use std::time::Duration;

use collectives::{Collective, GridPlan, GroupPlan, Operation, Settled, Single};
use record::MeshPlace;
use record::text::list;

use crate::config::{ParallelConfig, Sharded};
use crate::failure::{Failure, Outcome};
use crate::ranks::Ranks;

/// Numbers of the grid of owners and of the dimensions among the groups of the world.
const OWNERS: u8 = 1;
const SHARD: u8 = 2;
const DATA: u8 = 3;

/// Names of the dimensions.
const SHARD_NAME: &str = "shard";
pub(crate) const DATA_NAME: &str = "data";

/// Sizes of the dimensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeshShape {
    /// Groups of ranks that each hold a whole model.
    pub data: usize,
    /// Ranks of such a group.
    pub shard: usize,
}

impl MeshShape {
    /// Divides `world` ranks as configured.
    ///
    /// # Errors
    /// Exit code 2 if the product of the dimensions is not the number of ranks.
    pub fn of(config: &ParallelConfig, world: usize) -> Outcome<Self> {
        let rest = |other: usize| world.checked_div(other).filter(|rest| rest * other == world);
        let shape = match (config.data, config.shard) {
            (0, 0) => None,
            (0, shard) => rest(shard).map(|data| Self { data, shard }),
            (data, 0) => rest(data).map(|shard| Self { data, shard }),
            (data, shard) => {
                (data.checked_mul(shard) == Some(world)).then_some(Self { data, shard })
            }
        };
        shape.ok_or_else(|| {
            let ParallelConfig { data, shard, .. } = config;
            let rest = if *data > 0 && *shard > 0 { "" } else { ", where one 0 is the rest" };
            Failure::usage(format!(
                "parallel.data = {data} and parallel.shard = {shard}: expected a product of \
                 {world}, the number of ranks{rest}"
            ))
        })
    }

    /// Returns whether there is more than one rank in each dimension.
    pub fn is_grid(self) -> bool {
        self.data > 1 && self.shard > 1
    }
}

/// Ranks of a run, placed in the dimensions: ranks of a node follow each other in a shard group,
/// whatever the order in which a host file deals them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// The ranks of each shard group, in the order of the data dimension.
    groups: Vec<Vec<usize>>,
}

impl Placed {
    /// Places the ranks of these nodes.
    pub fn new(shape: MeshShape, node_of_rank: &[usize]) -> Self {
        let mut ranks: Vec<usize> = (0..node_of_rank.len()).collect();
        ranks.sort_by_key(|&rank| node_of_rank[rank]);
        Self { groups: ranks.chunks(shape.shard).map(<[usize]>::to_vec).collect() }
    }

    /// Describes the shard groups whose ranks, on these nodes, are on several, although one node
    /// has enough for a group: their sums and gathers cross the network, and all groups wait for
    /// them. `None` if there are none, as where groups are larger than every node.
    pub(crate) fn spanning(&self, node_of_rank: &[usize]) -> Option<String> {
        let mut nodes = node_of_rank.to_vec();
        nodes.sort_unstable();
        let largest = nodes.chunk_by(|a, b| a == b).map(<[_]>::len).max()?;
        let shard = self.groups.first()?.len();
        if shard > largest {
            return None;
        }
        let is_spanning = |ranks: &[usize]| {
            ranks.iter().any(|&rank| node_of_rank[rank] != node_of_rank[ranks[0]])
        };
        let spanning = self.groups.iter().enumerate().filter(|(_, ranks)| is_spanning(ranks));
        let groups = spanning.map(|(data, ranks)| {
            let ranks: Vec<String> = ranks.iter().map(ToString::to_string).collect();
            format!("{data} (ranks {})", list(&ranks))
        });
        let groups: Vec<String> = groups.collect();
        let noun = if groups.len() == 1 { "group" } else { "groups" };
        (!groups.is_empty()).then(|| {
            format!(
                "shard {noun} {}: on several nodes, although a node of {largest} ranks has room \
                 for one of {shard}: its sums and gathers cross the network; parallel.shard that \
                 divides the number of ranks of every node keeps groups inside nodes",
                list(&groups)
            )
        })
    }

    /// Returns the place of a rank.
    pub(crate) fn place(&self, rank: usize) -> Option<MeshPlace> {
        let mut groups = self.groups.iter().enumerate();
        groups.find_map(|(data, group)| {
            let shard = group.iter().position(|&other| other == rank)?;
            Some(MeshPlace { data, shard })
        })
    }

    /// Opens this rank's ends of the groups that it is a member of.
    ///
    /// # Errors
    /// Those of [`Collective::subgroup`].
    pub fn open(&self, world: &dyn Collective) -> Result<Groups, collectives::Error> {
        self.open_lines(world, |_, _| Ok(()))
    }

    /// Opens this rank's ends of the groups, and passes those of each dimension to `opened` before
    /// anything else is opened. The grid of both connects nothing more.
    pub(crate) fn open_lines(
        &self,
        world: &dyn Collective,
        mut opened: impl FnMut(&GroupPlan, &dyn Collective) -> Result<(), collectives::Error>,
    ) -> Result<Groups, collectives::Error> {
        let of = |ranks: &Vec<usize>| ranks.contains(&world.rank());
        let shard_line = self.groups.iter().find(|line| of(line)).cloned().unwrap_or_default();
        let shard = shard_line.iter().position(|&rank| rank == world.rank()).unwrap_or(0);
        let data_line = self.groups.iter().map(|line| line[shard]).collect();
        let mut open = |dimension, number, ranks| {
            let plan = GroupPlan { dimension, number, ranks };
            let group = world.subgroup(&plan)?;
            opened(&plan, &*group)?;
            Ok::<_, collectives::Error>(group)
        };
        let shard = open(SHARD_NAME, SHARD, shard_line)?;
        let data = open(DATA_NAME, DATA, data_line)?;
        let plan = GridPlan {
            name: "shard x data",
            dimensions: [SHARD_NAME, DATA_NAME],
            number: OWNERS,
            lines: self.groups.clone(),
        };
        Ok(Groups { owners: world.grid(&plan)?, shard, data })
    }
}

/// Ends of one rank where there is more than one dimension.
#[derive(Debug)]
pub struct Groups {
    owners: Box<dyn Collective>,
    shard: Box<dyn Collective>,
    data: Box<dyn Collective>,
}

/// Ends of one rank for training.
#[derive(Debug, Clone, Copy)]
pub struct Mesh<'world> {
    /// Sizes of the dimensions.
    pub(crate) shape: MeshShape,
    /// All ranks in their own order.
    pub(crate) world: &'world dyn Collective,
    /// All ranks in the order in which they own parts of the gradients and of the state. Its sums
    /// and gathers go over one dimension after the other.
    owners: &'world dyn Collective,
    /// Ranks that share one model.
    shard: &'world dyn Collective,
    /// Ranks with the same shard of it.
    data: &'world dyn Collective,
}

impl<'world> Mesh<'world> {
    /// Creates a mesh whose ranks are one shard group; `alone` is the data group of each.
    pub fn flat(world: &'world dyn Collective, alone: &'world Single) -> Self {
        Self::line(MeshShape { data: 1, shard: world.world() }, world, alone)
    }

    /// Creates a mesh of all ranks in one dimension; `alone` is the group in the other one.
    pub(crate) fn line(
        shape: MeshShape,
        world: &'world dyn Collective,
        alone: &'world Single,
    ) -> Self {
        let [shard, data]: [&dyn Collective; 2] =
            if shape.shard > 1 { [world, alone] } else { [alone, world] };
        Self { shape, world, owners: world, shard, data }
    }

    /// Creates a mesh of the groups of two dimensions.
    pub fn of_groups(
        shape: MeshShape,
        world: &'world dyn Collective,
        groups: &'world Groups,
    ) -> Self {
        let Groups { owners, shard, data } = groups;
        Self { shape, world, owners: &**owners, shard: &**shard, data: &**data }
    }

    /// Returns the groups of the dimensions, with a timeout of their operations.
    pub(crate) fn dimensions(&self, timeout: Duration) -> Dimensions<'world> {
        let [owners, shard, data] =
            [self.owners, self.shard, self.data].map(|group| Ranks::new(group, timeout));
        Dimensions { owners, shard, data, replicas: self.shape.data }
    }
}

/// Returns the operations of training on buffers of devices in one dimension, which is all there is
/// or a line of a grid. Sums over a grid are gathered within shard groups, whatever is sharded.
pub(crate) fn operations(sharded: Sharded, line: Option<&str>) -> &'static [Operation] {
    let has_parts = sharded >= Sharded::Optimizer || line == Some(SHARD_NAME);
    match has_parts {
        true => &[Operation::ReduceScatterSum, Operation::AllGather],
        false => &[Operation::AllReduceSum],
    }
}

/// Groups of ranks between which state is divided.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dimensions<'world> {
    /// All ranks in the order in which they own parts.
    pub(crate) owners: Ranks<'world>,
    /// Ranks that share one model.
    pub(crate) shard: Ranks<'world>,
    /// Ranks with the same shard of it.
    pub(crate) data: Ranks<'world>,
    /// Number of the ranks with the same shard, in the job.
    pub(crate) replicas: usize,
}

impl<'world> Dimensions<'world> {
    /// Returns the groups of a single process that stands for one of the ranks of a mesh.
    pub(crate) fn alone(shape: MeshShape, single: &'world Single) -> Self {
        let ranks = Ranks::new(single, Duration::ZERO);
        Self { owners: ranks, shard: ranks, data: ranks, replicas: shape.data }
    }

    /// Returns the number of ranks that share one model.
    pub(crate) fn shards(&self, world: usize) -> usize {
        world / self.replicas
    }

    /// Blocks until the device, if one computes, has completed all operations of all groups.
    pub(crate) fn settle(&self, report: &mut dyn FnMut(Settled)) -> Result<(), collectives::Error> {
        // Any end settles the operations of all groups: they share the queue of the device.
        self.owners.collective.settle(self.owners.timeout, report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(data: usize, shard: usize, world: usize) -> Result<MeshShape, String> {
        let config = ParallelConfig { data, shard, ..ParallelConfig::default() };
        MeshShape::of(&config, world).map_err(|failure| failure.error.to_string())
    }

    #[test]
    fn dimensions_multiply_to_the_world() {
        assert_eq!(shape(1, 0, 6), Ok(MeshShape { data: 1, shard: 6 }));
        assert_eq!(shape(0, 2, 6), Ok(MeshShape { data: 3, shard: 2 }));
        assert_eq!(shape(2, 3, 6), Ok(MeshShape { data: 2, shard: 3 }));
        for (data, shard) in [(2, 2), (4, 0), (0, 4), (0, 0)] {
            let text = shape(data, shard, 6).unwrap_err();
            assert!(text.contains("expected a product of 6"), "{text}");
        }
        // Their product wraps to 4.
        let text = shape(usize::MAX / 4 + 2, 4, 4).unwrap_err();
        assert!(text.contains("expected a product of 4"), "{text}");
    }

    #[test]
    fn shard_groups_follow_nodes_and_not_rank_numbers() {
        let placed = Placed::new(MeshShape { data: 2, shard: 2 }, &[0, 1, 0, 1]);
        let at = |data, shard| Some(MeshPlace { data, shard });
        let found = [0, 1, 2, 3, 4].map(|rank| placed.place(rank));
        assert_eq!(found, [at(0, 0), at(1, 0), at(0, 1), at(1, 1), None]);
        assert_eq!(placed.place(3).unwrap().to_string(), "data 1, shard 1");
    }

    /// Returns the description of spanning groups where nodes have so many ranks.
    fn spanning(shard: usize, ranks_of_nodes: &[usize]) -> Option<String> {
        let ranks_of = |(node, &ranks): (usize, &usize)| std::iter::repeat_n(node, ranks);
        let nodes: Vec<usize> = ranks_of_nodes.iter().enumerate().flat_map(ranks_of).collect();
        let shape = MeshShape { data: nodes.len() / shard, shard };
        Placed::new(shape, &nodes).spanning(&nodes)
    }

    #[test]
    fn shard_groups_that_span_nodes_although_they_fit_one_are_named() {
        let text = spanning(4, &[3, 5]).unwrap();
        assert!(text.starts_with("shard group 0 (ranks 0, 1, 2, 3): "), "{text}");
        assert!(text.contains("a node of 5 ranks has room for one of 4"), "{text}");
        let text = spanning(4, &[6, 2, 4]).unwrap();
        assert!(text.starts_with("shard group 1 (ranks 4, 5, 6, 7): "), "{text}");
        let text = spanning(2, &[3, 4, 1]).unwrap();
        assert!(text.starts_with("shard groups 1 (ranks 2, 3), 3 (ranks 6, 7): "), "{text}");
        for (shard, nodes) in [(4, &[4, 4][..]), (2, &[4, 2, 2]), (8, &[4, 4, 4, 4]), (4, &[3; 4])]
        {
            assert_eq!(spanning(shard, nodes), None, "{shard}, {nodes:?}");
        }
    }
}
