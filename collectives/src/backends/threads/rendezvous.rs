//! Matches the operations of all ranks of one process, and carries out those that are complete.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::transfer;
use crate::core::group::Membership;
use crate::core::outstanding::{Job, OutstandingTable};
use crate::{Channel, Error, GridPlan, GroupPlan, OUTSTANDING_MAX, Operation, Ticket, Timing};

/// The state of all ranks, under one lock.
#[derive(Debug)]
pub(super) struct Rendezvous {
    ranks: Vec<Rank>,
    /// Groups by index, each once however many of its ranks have created it. The first is the
    /// world.
    groups: Vec<Membership>,
}

#[derive(Debug)]
struct Rank {
    outstanding: OutstandingTable,
    /// Collective operations that other ranks have not submitted yet, per group.
    collective: Vec<Queues>,
    /// Point-to-point operations that the peer has not submitted yet, in the order of submission.
    point_to_point: VecDeque<u32>,
    /// Reason why this rank has left the group.
    left: Option<Arc<str>>,
}

/// Slots per channel, in the order of submission.
type Queues = [VecDeque<u32>; 2];

fn queues() -> Queues {
    [(); 2].map(|()| VecDeque::with_capacity(OUTSTANDING_MAX))
}

/// One operation of one rank.
#[derive(Clone, Copy)]
struct Entry {
    /// Rank in the world.
    rank: usize,
    slot: u32,
    job: Job,
}

impl Rank {
    fn new() -> Self {
        Self {
            outstanding: OutstandingTable::new(),
            collective: vec![queues()],
            point_to_point: VecDeque::with_capacity(OUTSTANDING_MAX),
            left: None,
        }
    }

    /// The queue of a collective operation.
    fn queue(&mut self, job: Job) -> &mut VecDeque<u32> {
        &mut self.collective[job.group as usize][job.channel as usize]
    }
}

impl Rendezvous {
    pub(super) fn new(world: usize) -> Self {
        let groups = vec![Membership::of_world(0, world)];
        Self { ranks: (0..world).map(|_| Rank::new()).collect(), groups }
    }

    /// Number of ranks.
    pub(super) fn world(&self) -> usize {
        self.ranks.len()
    }

    /// This rank's place in a group, which another of its ranks may have created before.
    ///
    /// # Errors
    /// Those of [`Membership::find`].
    pub(super) fn group(
        &mut self,
        plan: &GroupPlan,
        member: usize,
        grid: Option<Arc<GridPlan>>,
    ) -> Result<Membership, String> {
        if let Some(known) = Membership::find(&self.groups, plan, grid.as_deref())? {
            return Ok(Membership { member, ..known.clone() });
        }
        let group = self.groups.len() as u16;
        let membership = Membership { group, plan: Arc::new(plan.clone()), member, grid };
        self.groups.push(membership.clone());
        self.ranks.iter_mut().for_each(|rank| rank.collective.push(queues()));
        Ok(membership)
    }

    /// Reason why this rank has left the group, if it has.
    pub(super) fn left(&self, rank: usize) -> Option<Arc<str>> {
        self.ranks[rank].left.clone()
    }

    pub(super) fn insert(&mut self, rank: usize, job: Job) -> Option<Ticket> {
        let rank = &mut self.ranks[rank];
        let ticket = rank.outstanding.insert(job)?;
        match job.operation.peer() {
            Some(_) => rank.point_to_point.push_back(ticket.slot),
            None => rank.queue(job).push_back(ticket.slot),
        }
        Some(ticket)
    }

    /// Enters a group of so many messages; `None` when they do not fit.
    pub(super) fn insert_group(
        &mut self,
        rank: usize,
        job: Job,
        messages: usize,
    ) -> Option<Ticket> {
        self.ranks[rank].outstanding.insert_group(job, messages)
    }

    /// Enters a message of a group, and returns its slot.
    pub(super) fn insert_part(&mut self, rank: usize, group: &Ticket, job: Job) -> u32 {
        let rank = &mut self.ranks[rank];
        let slot = rank.outstanding.insert_part(group, job);
        rank.point_to_point.push_back(slot);
        slot
    }

    pub(super) fn take_outcome(
        &mut self,
        rank: usize,
        ticket: &Ticket,
    ) -> Option<Result<Timing, Error>> {
        self.ranks[rank].outstanding.take_outcome(ticket)
    }

    /// As [`OutstandingTable::release`].
    pub(super) fn release(&mut self, rank: usize, ticket: &Ticket) -> Option<Error> {
        self.ranks[rank].outstanding.release(ticket)
    }

    pub(super) fn job(&self, rank: usize, ticket: &Ticket) -> Job {
        self.ranks[rank].outstanding.job(ticket.slot)
    }

    /// Removes this rank from the group: nobody may touch its buffers from here on.
    pub(super) fn leave(&mut self, rank: usize, reason: &str) {
        let rank = &mut self.ranks[rank];
        rank.left.get_or_insert_with(|| reason.into());
        rank.collective.iter_mut().flatten().for_each(VecDeque::clear);
        rank.point_to_point.clear();
    }

    /// The ranks that have not submitted this rank's operation.
    pub(super) fn missing(&self, rank: usize, slot: u32) -> Vec<usize> {
        let job = self.ranks[rank].outstanding.job(slot);
        let members = &self.groups[job.group as usize].plan.ranks;
        if let Some(peer) = job.operation.peer() {
            return vec![members[peer]];
        }
        if job.operation == Operation::Messages {
            return self.ranks[rank].outstanding.missing_peers(slot, members);
        }
        let queue = |rank: usize| &self.ranks[rank].collective[job.group as usize];
        let queue = |rank: usize| &queue(rank)[job.channel as usize];
        let position = queue(rank).iter().position(|&other| other == slot);
        let has_submitted = |other: usize| Some(queue(other).len()) > position;
        members.iter().copied().filter(|&other| !has_submitted(other)).collect()
    }

    /// Carries out operations that the one just submitted by a rank has completed; returns whether
    /// there were any.
    ///
    /// # Safety
    /// The buffer of every queued job is valid.
    pub(super) unsafe fn advance(&mut self, membership: &Membership, slot: u32) -> bool {
        let rank = membership.world_rank();
        let job = self.ranks[rank].outstanding.job(slot);
        match job.operation.peer() {
            // SAFETY: the caller's promise.
            Some(_) => unsafe { self.match_peer(membership, Entry { rank, slot, job }) },
            // SAFETY: the caller's promise.
            None => unsafe { self.match_all(membership, job.channel) },
        }
    }

    /// Carries out the first collective operation of a group's channel once all of its ranks have
    /// submitted it.
    unsafe fn match_all(&mut self, membership: &Membership, channel: Channel) -> bool {
        let Membership { group, plan, .. } = membership;
        let members = &plan.ranks;
        let queue = |rank: usize| &self.ranks[rank].collective[*group as usize][channel as usize];
        if members.iter().any(|&rank| queue(rank).is_empty()) {
            return false;
        }
        let started = Instant::now();
        let first = |rank: usize| self.ranks[rank].outstanding.job(queue(rank)[0]);
        let expected = first(members[0]);
        let agrees = |job: Job| job.operation == expected.operation && has_same_type(job, expected);
        let all_agree = members.iter().all(|&rank| agrees(first(rank)));
        let mut outer = None;
        if all_agree {
            let buffer = |member: usize| first(members[member]).buffer;
            let operation = expected.operation;
            // SAFETY: valid by the caller's promise, of one length and type as just compared.
            unsafe {
                match &membership.grid {
                    Some(grid) => outer = transfer::grid(operation, grid, buffer),
                    None => transfer::collective(operation, members.len(), buffer),
                }
            }
        }
        for &number in members {
            let rank = &mut self.ranks[number];
            let Some(slot) = rank.queue(expected).pop_front() else { continue };
            let job = rank.outstanding.job(slot);
            let timing = Timing { outer, ..job.timing_since(started) };
            let differs = || differs(number, membership, job, expected);
            let outcome = if all_agree { Ok(timing) } else { Err(differs()) };
            rank.outstanding.complete(slot, outcome);
        }
        true
    }

    /// Carries out a send or receive if the peer has submitted its counterpart.
    unsafe fn match_peer(&mut self, membership: &Membership, own: Entry) -> bool {
        let Some(peer) = own.job.operation.peer() else { return false };
        let peer = membership.plan.ranks[peer];
        let is_counterpart = |other: Job| {
            other.group == own.job.group
                && other.channel == own.job.channel
                && is_pair(membership.member, own.job.operation, other.operation)
        };
        let them = &mut self.ranks[peer];
        let queued = them.point_to_point.iter();
        let position = queued.clone().position(|&slot| is_counterpart(them.outstanding.job(slot)));
        let Some(slot) = position.and_then(|at| them.point_to_point.remove(at)) else {
            return false;
        };
        let theirs = Entry { rank: peer, slot, job: them.outstanding.job(slot) };
        self.ranks[own.rank].point_to_point.retain(|&slot| slot != own.slot);
        let started = Instant::now();
        let fits = has_same_type(own.job, theirs.job);
        if fits {
            let receives = matches!(own.job.operation, Operation::Receive { .. });
            let (from, to) = if receives { (theirs, own) } else { (own, theirs) };
            // SAFETY: valid by the caller's promise, of one length and type as just compared.
            unsafe { transfer::copy(from.job.buffer, to.job.buffer) };
        }
        for (entry, other) in [(own, theirs), (theirs, own)] {
            let timing = entry.job.timing_since(started);
            let differs = || differs(entry.rank, membership, entry.job, other.job);
            let outcome = if fits { Ok(timing) } else { Err(differs()) };
            self.ranks[entry.rank].outstanding.complete(entry.slot, outcome);
        }
        true
    }
}

fn has_same_type(job: Job, other: Job) -> bool {
    job.buffer.len() == other.buffer.len() && job.buffer.dtype() == other.buffer.dtype()
}

/// Returns whether an operation of the peer is the counterpart of one submitted by `rank`.
fn is_pair(rank: usize, own: Operation, theirs: Operation) -> bool {
    match (own, theirs) {
        (Operation::Send { tag, .. }, Operation::Receive { from, tag: their_tag }) => {
            from == rank && tag == their_tag
        }
        (Operation::Receive { tag, .. }, Operation::Send { to, tag: their_tag }) => {
            to == rank && tag == their_tag
        }
        _ => false,
    }
}

fn differs(rank: usize, membership: &Membership, own: Job, theirs: Job) -> Error {
    let in_world = |job: Job| job.operation.in_world(&membership.plan.ranks);
    let describe =
        |job: Job| format!("{} of {} {:?}", in_world(job), job.buffer.len(), job.buffer.dtype());
    let text = format!("ranks disagree: {} here, {} there", describe(own), describe(theirs));
    Error::Mismatch { operation: in_world(own), group: membership.named(), rank, text }
}
