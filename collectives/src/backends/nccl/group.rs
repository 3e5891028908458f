//! Groups of ranks over one device's queue: the world, its subgroups and grids.

use std::sync::Arc;

use super::opening::Opening;
use super::queue::DeviceQueue;
use super::route::{Line, Place, Route};
use crate::core::group::Membership;
use crate::{Collective, Error, GridPlan, GroupPlan};

/// A group of ranks.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) membership: Membership,
    /// The same group of the host's backend.
    pub(super) control: Arc<dyn Collective>,
    pub(super) route: Route,
}

/// A line of a group, before it is connected.
#[derive(Debug)]
struct LinePlan {
    /// Name for messages; `None` for all ranks of the world in their order.
    name: Option<Arc<GroupPlan>>,
    /// Ranks of the group.
    members: Vec<usize>,
}

impl Group {
    /// A group in which devices do not communicate.
    pub(super) fn without_lines(control: Arc<dyn Collective>) -> Self {
        Self { membership: Membership::of(&*control), control, route: Route::Nowhere }
    }

    /// A group whose ranks one communicator connects. All of them call this at the same time.
    pub(super) fn flat(control: Arc<dyn Collective>, queue: &DeviceQueue) -> Result<Self, Error> {
        let group = Self::without_lines(control);
        let name = group.membership.named();
        let members = (0..group.membership.size()).collect();
        let place = group.connected(queue, LinePlan { name, members })?;
        Ok(Self { route: Route::Line(place.line), ..group })
    }

    /// A grid, each of whose lines a communicator connects. All of its ranks call this at the same
    /// time.
    pub(super) fn grid(
        control: Arc<dyn Collective>,
        plan: &GridPlan,
        queue: &DeviceQueue,
    ) -> Result<Self, Error> {
        let mut group = Self::without_lines(control);
        group.membership.grid = plan.staged();
        let [inner, outer] = group.lines_of(plan);
        let inner = group.connected(queue, inner)?;
        let outer = group.connected(queue, outer)?;
        Ok(Self { route: Route::Grid { inner, outer }, ..group })
    }

    /// This rank's lines in a grid.
    fn lines_of(&self, grid: &GridPlan) -> [LinePlan; 2] {
        let Membership { plan, member, .. } = &self.membership;
        let outer = grid.outer();
        let (own_inner, own_outer) = (member / outer, member % outer);
        let along_inner = (0..grid.inner()).map(|inner| inner * outer + own_outer);
        let along_outer = (0..outer).map(|outer_index| own_inner * outer + outer_index);
        let line = |dimension, members: Vec<usize>| {
            let ranks = members.iter().map(|&member| plan.ranks[member]).collect();
            let name = GroupPlan { dimension, number: grid.number, ranks };
            LinePlan { name: Some(Arc::new(name)), members }
        };
        let [inner_name, outer_name] = grid.dimensions;
        [line(inner_name, along_inner.collect()), line(outer_name, along_outer.collect())]
    }

    /// This rank's place in a line, which is connected unless all of its ranks have a line of the
    /// same ranks in another group: a communicator takes memory of the device.
    fn connected(&self, queue: &DeviceQueue, plan: LinePlan) -> Result<Place, Error> {
        let LinePlan { name, members } = plan;
        let Membership { plan, member, .. } = &self.membership;
        let ranks: Vec<usize> = members.iter().map(|&member| plan.ranks[member]).collect();
        let known = queue.line_of(&ranks);
        let opening = Opening {
            membership: &self.membership,
            name: name.as_ref(),
            members: &members,
            is_known: known.is_some(),
        };
        let new = opening.connect(&*self.control, queue)?;
        let line = match new {
            Some(communicator) => queue.add_line(Line { ranks, name, communicator }),
            None => known.unwrap_or_else(|| unreachable!("every rank of the line has it")),
        };
        let own = members.iter().position(|other| other == member);
        let member = own.unwrap_or_else(|| unreachable!("a line of this rank without it"));
        Ok(Place { line, member, len: members.len() })
    }
}
