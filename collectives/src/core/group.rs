//! Groups of ranks of a world.

use std::fmt;
use std::sync::Arc;

use super::collective::Collective;
use super::error::Error;
use super::operation::Operation;
use super::traffic::{Dimension, Dimensions};

/// A group of ranks of the world, described alike by all of its members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupPlan {
    /// Name of the dimension that the group is a line of, such as `shard`, for messages.
    pub dimension: &'static str,
    /// Number of the dimension, 1 to [`Self::NUMBER_MAX`]. Groups of one number have no rank in
    /// common.
    pub number: u8,
    /// Ranks of the world, in the order of the group's own ranks.
    pub ranks: Vec<usize>,
}

impl GroupPlan {
    /// Largest number of a dimension.
    pub const NUMBER_MAX: u8 = 15;

    /// All ranks of a world, which are no group of a dimension.
    pub(crate) fn world(size: usize) -> Self {
        Self { dimension: "world", number: 0, ranks: (0..size).collect() }
    }

    /// Returns whether the group is all ranks of the world, in their order.
    pub(crate) fn is_world(&self, size: usize) -> bool {
        self.ranks.len() == size && (0..size).eq(self.ranks.iter().copied())
    }

    /// The rank in the group of a rank of the world that creates it.
    ///
    /// # Errors
    /// Returns what is wrong with the plan.
    pub(crate) fn member(&self, rank: usize, world: usize) -> Result<usize, String> {
        let mut sorted = self.ranks.clone();
        sorted.sort_unstable();
        sorted.dedup();
        if sorted.len() != self.ranks.len() || sorted.last().is_some_and(|&last| last >= world) {
            return Err(format!("expected different ranks below {world} in {self}"));
        }
        if !(1..=Self::NUMBER_MAX).contains(&self.number) {
            let Self { number, .. } = self;
            return Err(format!(
                "expected a number in 1..={} of {self}, found {number}",
                Self::NUMBER_MAX
            ));
        }
        let member = self.ranks.iter().position(|&other| other == rank);
        member.ok_or_else(|| format!("rank {rank} is not in {self}"))
    }
}

/// Most ranks that a message lists.
const LISTED_MAX: usize = 16;

impl fmt::Display for GroupPlan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dimension, ranks, .. } = self;
        let follows = |pair: &[usize]| pair[1] == pair[0] + 1;
        match ranks[..] {
            [first, _, .., last] if ranks.windows(2).all(follows) => {
                write!(formatter, "the {dimension} group of ranks {first} to {last}")
            }
            [first, second, third, .., last] if ranks.len() > LISTED_MAX => {
                let count = ranks.len();
                let start = format!("{first}, {second}, {third}, ..., {last}");
                write!(formatter, "the {dimension} group of {count} ranks [{start}]")
            }
            _ => write!(formatter, "the {dimension} group of ranks {ranks:?}"),
        }
    }
}

/// Ranks of the world in two dimensions, described alike by all of them.
///
/// Sums are first those of each inner line, in the order of its ranks, then the inner lines' sums
/// in the order of the lines: what crosses the outer dimension, the slower network, is smaller by
/// the length of an inner line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GridPlan {
    /// Name for messages, such as `shard x data`.
    pub name: &'static str,
    /// Names of the inner and the outer dimension.
    pub dimensions: [&'static str; 2],
    /// Number of the grid among those of [`GroupPlan::number`].
    pub number: u8,
    /// Inner lines of equal length, in the order of the outer dimension.
    pub lines: Vec<Vec<usize>>,
}

impl GridPlan {
    /// Length of an inner line.
    pub(crate) fn inner(&self) -> usize {
        self.lines.first().map_or(0, Vec::len)
    }

    /// Length of an outer line.
    pub(crate) fn outer(&self) -> usize {
        self.lines.len()
    }

    /// The grid, unless one dimension is all there is.
    pub(crate) fn staged(&self) -> Option<Arc<Self>> {
        (self.inner() > 1 && self.outer() > 1).then(|| Arc::new(self.clone()))
    }

    /// The grid as a group. A rank's part of a buffer is a part of its inner line's part: ranks of
    /// one outer line follow each other.
    /// Ranks of lines that are longer than the first are left out.
    pub fn group(&self) -> GroupPlan {
        let Self { name: dimension, number, ref lines, .. } = *self;
        let outer_line =
            |index: usize| lines.iter().filter_map(move |line| line.get(index)).copied();
        let ranks = (0..self.inner()).flat_map(outer_line).collect();
        GroupPlan { dimension, number, ranks }
    }

    /// The grid as a group, if its lines are of equal length.
    ///
    /// # Errors
    /// Returns what is wrong with the plan.
    pub(crate) fn checked_group(&self) -> Result<GroupPlan, String> {
        match self.lines.iter().all(|line| line.len() == self.inner()) {
            true => Ok(self.group()),
            false => Err(format!("expected lines of equal length, found {:?}", self.lines)),
        }
    }
}

/// Place of a rank in a group.
#[derive(Debug, Clone)]
pub(crate) struct Membership {
    /// Index in the table of groups of its backend; 0 is the world.
    pub(crate) group: u16,
    pub(crate) plan: Arc<GroupPlan>,
    /// This rank's rank in the group.
    pub(crate) member: usize,
    /// The grid, if the group is one of more than one line in each dimension.
    pub(crate) grid: Option<Arc<GridPlan>>,
}

impl Membership {
    /// The place of a rank in the world itself.
    pub(crate) fn of_world(rank: usize, size: usize) -> Self {
        Self { group: WORLD, plan: Arc::new(GroupPlan::world(size)), member: rank, grid: None }
    }

    /// The place of a rank in the group or world of a backend's end.
    pub(crate) fn of(collective: &dyn Collective) -> Self {
        let member = collective.rank();
        match collective.group() {
            Some(plan) => Self { group: WORLD + 1, plan, member, grid: None },
            None => Self::of_world(member, collective.world()),
        }
    }

    /// The group of a plan among those that are known; `None` if it is new.
    ///
    /// # Errors
    /// Returns why there cannot be such a group beside them.
    pub(crate) fn find<'known>(
        known: &'known [Self],
        plan: &GroupPlan,
        grid: Option<&GridPlan>,
    ) -> Result<Option<&'known Self>, String> {
        let is_same = |group: &&Self| *group.plan == *plan && group.grid.as_deref() == grid;
        let overlaps = |group: &&Self| {
            group.plan.number == plan.number
                && plan.ranks.iter().any(|rank| group.plan.ranks.contains(rank))
        };
        let found = known.iter().find(is_same);
        match known.iter().find(overlaps).filter(|_| found.is_none()) {
            Some(other) => Err(format!("{plan} has the number of {}", other.plan)),
            None => Ok(found),
        }
    }

    /// Number of ranks in the group.
    pub(crate) fn size(&self) -> usize {
        self.plan.ranks.len()
    }

    /// This rank's rank in the world.
    pub(crate) fn world_rank(&self) -> usize {
        self.plan.ranks[self.member]
    }

    /// The dimensions that operations go over.
    pub(crate) fn dimensions(&self) -> Dimensions {
        let Some(grid) = &self.grid else {
            let inner = Dimension { name: self.plan.dimension, ranks: self.size() };
            return Dimensions { inner, outer: None };
        };
        let [inner, outer] = grid.dimensions;
        Dimensions {
            inner: Dimension { name: inner, ranks: grid.inner() },
            outer: Some(Dimension { name: outer, ranks: grid.outer() }),
        }
    }

    /// The error of an operation whose arguments do not fit the group, or differ within it.
    pub(crate) fn mismatch(&self, operation: Operation, text: String) -> Error {
        let operation = operation.in_world(&self.plan.ranks);
        Error::Mismatch { operation, group: self.named(), rank: self.world_rank(), text }
    }

    /// The group, for messages; `None` for the world, which needs no name.
    pub(crate) fn named(&self) -> Option<Arc<GroupPlan>> {
        (self.group != WORLD).then(|| self.plan.clone())
    }
}

/// Index of the world in a backend's table of groups.
pub(crate) const WORLD: u16 = 0;

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(ranks: &[usize]) -> GroupPlan {
        GroupPlan { dimension: "shard", number: 1, ranks: ranks.to_vec() }
    }

    #[test]
    fn a_group_is_named_by_its_ranks() {
        assert_eq!(plan(&[4, 5, 6]).to_string(), "the shard group of ranks 4 to 6");
        assert_eq!(plan(&[1, 3]).to_string(), "the shard group of ranks [1, 3]");
        assert_eq!(plan(&[2]).to_string(), "the shard group of ranks [2]");
        let many: Vec<usize> = (0..128).map(|index| 8 * index).collect();
        let text = "the shard group of 128 ranks [0, 8, 16, ..., 1016]";
        assert_eq!(plan(&many).to_string(), text);
    }

    #[test]
    fn a_plan_that_cannot_be_is_refused() {
        assert_eq!(plan(&[3, 1]).member(1, 4), Ok(1));
        for (wrong, expected) in [
            (plan(&[1, 4]), "different ranks below 4"),
            (plan(&[1, 1]), "different ranks below 4"),
            (plan(&[0, 2]), "rank 1 is not in the shard group of ranks [0, 2]"),
            (GroupPlan { number: 16, ..plan(&[1]) }, "a number in 1..=15"),
        ] {
            let text = wrong.member(1, 4).unwrap_err();
            assert!(text.contains(expected), "{text}");
        }
        assert!(plan(&[0, 1]).is_world(2) && !plan(&[1, 0]).is_world(2));
    }
}
