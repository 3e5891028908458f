//! A group of some ranks of the world.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::worker::handle::{NAME, WorkerHandle};
use crate::core::group::Membership;
use crate::core::outstanding::Job;
use crate::{
    Channel, Collective, Error, GridPlan, GroupPlan, Operation, RawBuffer, Ticket, Timing,
};

/// This process as a rank of a group.
///
/// The group's messages are told from others by their tags, so that its creation needs no
/// communication: MPI_Comm_split blocks until all ranks call it, and has no deadline.
#[derive(Debug)]
pub(super) struct Subgroup {
    membership: Membership,
    handle: Arc<WorkerHandle>,
    timeout: Duration,
}

impl Subgroup {
    pub(super) fn new(
        plan: &GroupPlan,
        grid: Option<Arc<GridPlan>>,
        world: &Membership,
        handle: &Arc<WorkerHandle>,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let start = |text: String| Error::Start { backend: NAME, text };
        let size = world.size();
        let member = plan.member(world.world_rank(), size).map_err(start)?;
        let membership = match plan.is_world(size) && grid.is_none() {
            true => world.clone(),
            false => handle.group(plan, member, grid).map_err(start)?,
        };
        Ok(Self { membership, handle: handle.clone(), timeout })
    }
}

// SAFETY: as of the whole world; it allocates no memory.
unsafe impl Collective for Subgroup {
    fn rank(&self) -> usize {
        self.membership.member
    }

    fn world(&self) -> usize {
        self.membership.size()
    }

    fn group(&self) -> Option<Arc<GroupPlan>> {
        self.membership.named()
    }

    fn backend(&self) -> &'static str {
        NAME
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    unsafe fn submit(
        &self,
        channel: Channel,
        operation: Operation,
        buffer: RawBuffer,
    ) -> Result<Ticket, Error> {
        operation.require_host(buffer)?;
        operation.validate(buffer, &self.membership)?;
        let group = self.membership.group;
        let job = Job { group, ..Job::new(channel, operation, buffer) };
        self.handle.submit(self.membership.world_rank(), job)
    }

    fn wait(&self, ticket: Ticket, deadline: Instant) -> Result<Timing, Error> {
        self.handle.wait(&self.membership, &ticket, deadline)
    }

    fn memory_at_risk(&self) -> bool {
        self.handle.memory_at_risk()
    }

    fn abandon(&self, reason: &str) {
        self.handle.abandon(reason);
    }
}
