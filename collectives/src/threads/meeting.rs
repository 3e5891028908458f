//! Who came with what: matching of operations across the ranks of one process.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::transfer;
use crate::slots::{Job, Slots};
use crate::{Channel, Error, OUTSTANDING_MAX, Operation, Ticket, Timing};

/// The state of a group, under one lock.
#[derive(Debug)]
pub(super) struct Meeting {
    ranks: Vec<Rank>,
}

#[derive(Debug)]
struct Rank {
    slots: Slots,
    /// Collective operations not yet met, per channel, in the order of submission.
    collective: [VecDeque<u32>; 2],
    /// Point-to-point operations not yet met, in the order of submission.
    direct: VecDeque<u32>,
    gone: Option<Arc<str>>,
}

impl Rank {
    fn new() -> Self {
        let queue = || VecDeque::with_capacity(OUTSTANDING_MAX);
        Self { slots: Slots::new(), collective: [queue(), queue()], direct: queue(), gone: None }
    }
}

fn index(channel: Channel) -> usize {
    match channel {
        Channel::Data => 0,
        Channel::Control => 1,
    }
}

impl Meeting {
    pub(super) fn new(world: usize) -> Self {
        Self { ranks: (0..world).map(|_| Rank::new()).collect() }
    }

    /// Why this rank takes part no more.
    pub(super) fn gone(&self, rank: usize) -> Option<Arc<str>> {
        self.ranks[rank].gone.clone()
    }

    pub(super) fn enter(&mut self, rank: usize, job: Job) -> Option<Ticket> {
        let rank = &mut self.ranks[rank];
        let ticket = rank.slots.enter(job)?;
        match job.operation.peer() {
            Some(_) => rank.direct.push_back(ticket.slot),
            None => rank.collective[index(job.channel)].push_back(ticket.slot),
        }
        Some(ticket)
    }

    pub(super) fn collect(
        &mut self,
        rank: usize,
        ticket: &Ticket,
    ) -> Option<Result<Timing, Error>> {
        self.ranks[rank].slots.collect(ticket)
    }

    pub(super) fn release(&mut self, rank: usize, ticket: &Ticket) {
        self.ranks[rank].slots.release(ticket);
    }

    pub(super) fn job(&self, rank: usize, ticket: &Ticket) -> Job {
        self.ranks[rank].slots.job(ticket.slot)
    }

    /// This rank takes part no more: nobody may touch its memory from here on.
    pub(super) fn leave(&mut self, rank: usize, reason: &str) {
        let rank = &mut self.ranks[rank];
        rank.gone.get_or_insert_with(|| reason.into());
        rank.collective.iter_mut().for_each(VecDeque::clear);
        rank.direct.clear();
    }

    /// The ranks that have not come to where this operation could happen.
    pub(super) fn missing(&self, rank: usize, slot: u32) -> Vec<usize> {
        let job = self.ranks[rank].slots.job(slot);
        if let Some(peer) = job.operation.peer() {
            return vec![peer];
        }
        let queue = index(job.channel);
        let place = self.ranks[rank].collective[queue].iter().position(|&other| other == slot);
        let came = |other: &Rank| Some(other.collective[queue].len()) > place;
        (0..self.ranks.len()).filter(|&other| !came(&self.ranks[other])).collect()
    }

    /// Does what became possible with the operation that `rank` just entered, and says whether
    /// anything did.
    ///
    /// # Safety
    /// The memory of every queued job is valid.
    pub(super) unsafe fn meet(&mut self, rank: usize, slot: u32) -> bool {
        let job = self.ranks[rank].slots.job(slot);
        match job.operation.peer() {
            // SAFETY: the caller's promise.
            Some(peer) => unsafe { self.meet_directly(rank, slot, job, peer) },
            // SAFETY: the caller's promise.
            None => unsafe { self.meet_all(index(job.channel)) },
        }
    }

    unsafe fn meet_all(&mut self, queue: usize) -> bool {
        if self.ranks.iter().any(|rank| rank.collective[queue].is_empty()) {
            return false;
        }
        let started = Instant::now();
        let first = |rank: &Rank| rank.slots.job(rank.collective[queue][0]);
        let lead = first(&self.ranks[0]);
        let agree = |job: Job| {
            job.operation == lead.operation
                && job.memory.len() == lead.memory.len()
                && job.memory.dtype() == lead.memory.dtype()
        };
        let agreed = self.ranks.iter().all(|rank| agree(first(rank)));
        if agreed {
            let memory = |rank: usize| first(&self.ranks[rank]).memory;
            // SAFETY: valid by the caller's promise, of one length and type as just compared.
            unsafe { transfer::collective(lead.operation, self.ranks.len(), memory) };
        }
        for (number, rank) in self.ranks.iter_mut().enumerate() {
            let Some(slot) = rank.collective[queue].pop_front() else { continue };
            let job = rank.slots.job(slot);
            let outcome =
                if agreed { Ok(job.done(started)) } else { Err(differs(number, job, lead)) };
            rank.slots.finish(slot, outcome);
        }
        true
    }

    unsafe fn meet_directly(&mut self, rank: usize, slot: u32, job: Job, peer: usize) -> bool {
        let matches = |other: Job| other.channel == job.channel && pair(job, other, rank);
        let them = &self.ranks[peer];
        let place = them.direct.iter().position(|&other| matches(them.slots.job(other)));
        let Some(place) = place else { return false };
        let Some(other_slot) = self.ranks[peer].direct.remove(place) else { return false };
        self.ranks[rank].direct.retain(|&own| own != slot);
        let started = Instant::now();
        let other = self.ranks[peer].slots.job(other_slot);
        let fits =
            job.memory.len() == other.memory.len() && job.memory.dtype() == other.memory.dtype();
        if fits {
            let receiving = matches!(job.operation, Operation::Receive { .. });
            let (from, to) = if receiving { (other, job) } else { (job, other) };
            // SAFETY: valid by the caller's promise, of one length and type as just compared.
            unsafe { transfer::copy(from.memory, to.memory) };
        }
        for (number, slot, own, theirs) in
            [(rank, slot, job, other), (peer, other_slot, other, job)]
        {
            let outcome =
                if fits { Ok(own.done(started)) } else { Err(differs(number, own, theirs)) };
            self.ranks[number].slots.finish(slot, outcome);
        }
        true
    }
}

/// Whether `other`, queued by the peer that `job` names, is the counterpart of `rank`'s job.
fn pair(job: Job, other: Job, rank: usize) -> bool {
    match (job.operation, other.operation) {
        (Operation::Send { tag, .. }, Operation::Receive { from, tag: theirs }) => {
            from == rank && tag == theirs
        }
        (Operation::Receive { tag, .. }, Operation::Send { to, tag: theirs }) => {
            to == rank && tag == theirs
        }
        _ => false,
    }
}

fn differs(rank: usize, own: Job, theirs: Job) -> Error {
    let describe =
        |job: Job| format!("{} of {} {:?}", job.operation, job.memory.len(), job.memory.dtype());
    let text = format!("ranks disagree: {} here, {} there", describe(own), describe(theirs));
    Error::Mismatch { operation: own.operation, rank, text }
}
