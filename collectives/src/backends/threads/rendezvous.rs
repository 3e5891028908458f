//! Matches the operations of all ranks of one process, and carries out those that are complete.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::transfer;
use crate::core::outstanding::{Job, OutstandingTable};
use crate::{Channel, Error, OUTSTANDING_MAX, Operation, Ticket, Timing};

/// The state of a group, under one lock.
#[derive(Debug)]
pub(super) struct Rendezvous {
    ranks: Vec<Rank>,
}

#[derive(Debug)]
struct Rank {
    outstanding: OutstandingTable,
    /// Collective operations that other ranks have not submitted yet, per channel, in the order of
    /// submission.
    collective: [VecDeque<u32>; 2],
    /// Point-to-point operations that the peer has not submitted yet, in the order of submission.
    point_to_point: VecDeque<u32>,
    /// Reason why this rank has left the group.
    left: Option<Arc<str>>,
}

/// One operation of one rank.
#[derive(Clone, Copy)]
struct Entry {
    rank: usize,
    slot: u32,
    job: Job,
}

impl Rank {
    fn new() -> Self {
        let queue = || VecDeque::with_capacity(OUTSTANDING_MAX);
        Self {
            outstanding: OutstandingTable::new(),
            collective: [queue(), queue()],
            point_to_point: queue(),
            left: None,
        }
    }
}

impl Rendezvous {
    pub(super) fn new(world: usize) -> Self {
        Self { ranks: (0..world).map(|_| Rank::new()).collect() }
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
            None => rank.collective[job.channel as usize].push_back(ticket.slot),
        }
        Some(ticket)
    }

    pub(super) fn take_outcome(
        &mut self,
        rank: usize,
        ticket: &Ticket,
    ) -> Option<Result<Timing, Error>> {
        self.ranks[rank].outstanding.take_outcome(ticket)
    }

    pub(super) fn release(&mut self, rank: usize, ticket: &Ticket) {
        self.ranks[rank].outstanding.release(ticket);
    }

    pub(super) fn job(&self, rank: usize, ticket: &Ticket) -> Job {
        self.ranks[rank].outstanding.job(ticket.slot)
    }

    /// Removes this rank from the group: nobody may touch its buffers from here on.
    pub(super) fn leave(&mut self, rank: usize, reason: &str) {
        let rank = &mut self.ranks[rank];
        rank.left.get_or_insert_with(|| reason.into());
        rank.collective.iter_mut().for_each(VecDeque::clear);
        rank.point_to_point.clear();
    }

    /// The ranks that have not submitted this rank's operation.
    pub(super) fn missing(&self, rank: usize, slot: u32) -> Vec<usize> {
        let job = self.ranks[rank].outstanding.job(slot);
        if let Some(peer) = job.operation.peer() {
            return vec![peer];
        }
        let channel = job.channel as usize;
        let queue = &self.ranks[rank].collective[channel];
        let position = queue.iter().position(|&other| other == slot);
        let has_submitted = |other: &Rank| Some(other.collective[channel].len()) > position;
        (0..self.ranks.len()).filter(|&other| !has_submitted(&self.ranks[other])).collect()
    }

    /// Carries out operations that the one just submitted by `rank` has completed; returns whether
    /// there were any.
    ///
    /// # Safety
    /// The buffer of every queued job is valid.
    pub(super) unsafe fn advance(&mut self, rank: usize, slot: u32) -> bool {
        let job = self.ranks[rank].outstanding.job(slot);
        match job.operation.peer() {
            // SAFETY: the caller's promise.
            Some(peer) => unsafe { self.match_peer(Entry { rank, slot, job }, peer) },
            // SAFETY: the caller's promise.
            None => unsafe { self.match_all(job.channel) },
        }
    }

    /// Carries out the first collective operation of a channel once all ranks have submitted it.
    unsafe fn match_all(&mut self, channel: Channel) -> bool {
        let channel = channel as usize;
        if self.ranks.iter().any(|rank| rank.collective[channel].is_empty()) {
            return false;
        }
        let started = Instant::now();
        let first = |rank: &Rank| rank.outstanding.job(rank.collective[channel][0]);
        let expected = first(&self.ranks[0]);
        let agrees = |job: Job| job.operation == expected.operation && has_same_type(job, expected);
        let all_agree = self.ranks.iter().all(|rank| agrees(first(rank)));
        if all_agree {
            let buffer = |rank: usize| first(&self.ranks[rank]).buffer;
            // SAFETY: valid by the caller's promise, of one length and type as just compared.
            unsafe { transfer::collective(expected.operation, self.ranks.len(), buffer) };
        }
        for (number, rank) in self.ranks.iter_mut().enumerate() {
            let Some(slot) = rank.collective[channel].pop_front() else { continue };
            let job = rank.outstanding.job(slot);
            let timing = job.timing_since(started);
            let outcome = if all_agree { Ok(timing) } else { Err(differs(number, job, expected)) };
            rank.outstanding.complete(slot, outcome);
        }
        true
    }

    /// Carries out a send or receive if the peer has submitted its counterpart.
    unsafe fn match_peer(&mut self, own: Entry, peer: usize) -> bool {
        let is_counterpart = |other: Job| {
            other.channel == own.job.channel
                && is_pair(own.rank, own.job.operation, other.operation)
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
            let outcome =
                if fits { Ok(timing) } else { Err(differs(entry.rank, entry.job, other.job)) };
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

fn differs(rank: usize, own: Job, theirs: Job) -> Error {
    let describe =
        |job: Job| format!("{} of {} {:?}", job.operation, job.buffer.len(), job.buffer.dtype());
    let text = format!("ranks disagree: {} here, {} there", describe(own), describe(theirs));
    Error::Mismatch { operation: own.operation, rank, text }
}
