//! Division of the ranks into dimensions: `data` groups, each of which holds a whole model, of
//! `shard` ranks, which share what is sharded.

use collectives::{Collective, GridPlan};
use record::MeshPlace;

use crate::config::ParallelConfig;
use crate::failure::{Failure, Outcome};

/// Number of the grid of owners among the groups of the world.
const OWNERS: u8 = 1;

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
            (data, shard) => (data * shard == world).then_some(Self { data, shard }),
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
pub(crate) struct Placed {
    /// The ranks of each shard group, in the order of the data dimension.
    groups: Vec<Vec<usize>>,
}

impl Placed {
    /// Places the ranks of these nodes.
    pub(crate) fn new(shape: MeshShape, node_of_rank: &[usize]) -> Self {
        let mut ranks: Vec<usize> = (0..node_of_rank.len()).collect();
        ranks.sort_by_key(|&rank| node_of_rank[rank]);
        Self { groups: ranks.chunks(shape.shard).map(<[usize]>::to_vec).collect() }
    }

    /// Returns the place of a rank.
    pub(crate) fn place(&self, rank: usize) -> Option<MeshPlace> {
        let mut groups = self.groups.iter().enumerate();
        groups.find_map(|(data, group)| {
            let shard = group.iter().position(|&other| other == rank)?;
            Some(MeshPlace { data, shard })
        })
    }

    /// Opens this rank's end of the group of all ranks in the order in which they own parts.
    ///
    /// # Errors
    /// Those of [`Collective::grid`].
    pub(crate) fn owners(
        &self,
        world: &dyn Collective,
    ) -> Result<Box<dyn Collective>, collectives::Error> {
        world.grid(&GridPlan {
            name: "shard x data",
            dimensions: ["shard", "data"],
            number: OWNERS,
            lines: self.groups.clone(),
        })
    }
}

/// Ends of one rank for training.
#[derive(Debug, Clone, Copy)]
pub struct Mesh<'world> {
    /// All ranks in their own order.
    pub world: &'world dyn Collective,
    /// All ranks in the order in which they own parts of the gradients and of the state. Its sums
    /// and gathers go over one dimension after the other.
    pub owners: &'world dyn Collective,
}

impl<'world> Mesh<'world> {
    /// Creates a mesh of one dimension.
    pub fn flat(world: &'world dyn Collective) -> Self {
        Self { world, owners: world }
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
    }

    #[test]
    fn shard_groups_follow_nodes_and_not_rank_numbers() {
        let placed = Placed::new(MeshShape { data: 2, shard: 2 }, &[0, 1, 0, 1]);
        let at = |data, shard| Some(MeshPlace { data, shard });
        let found = [0, 1, 2, 3, 4].map(|rank| placed.place(rank));
        assert_eq!(found, [at(0, 0), at(1, 0), at(0, 1), at(1, 1), None]);
        assert_eq!(placed.place(3).unwrap().to_string(), "data 1, shard 1");
    }
}
