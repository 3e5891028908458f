//! One rank among those of its node that share memory.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};

use super::counters::{Counters, RankCounters, Sequence, SequenceCounters};
use super::futex_event::FutexEvent;
use super::share::{Unavailable, share};
use super::shared_buffer::SharedBuffer;
use crate::{Channel, RawBuffer};

/// Bits of a location's code that are the offset; above is the number of the shared buffer.
const OFFSET_BITS: u32 = 48;

/// A rank and the memory that it shares with the other ranks of its node.
#[derive(Debug)]
pub(crate) struct Node {
    counters: Counters,
    /// The ranks of the world that are on this node, in ascending order.
    ranks: Vec<usize>,
    buffers: RwLock<Vec<Arc<SharedBuffer>>>,
}

/// Location of a rank's buffer in its node's shared buffers.
#[derive(Debug, Clone)]
pub(crate) struct Location {
    pub(super) buffer: Arc<SharedBuffer>,
    /// Offset from the start of the rank's shared buffer, in bytes.
    pub(super) offset: usize,
    /// Equal on all ranks for the same range of the same buffer; never 0.
    pub(super) code: u64,
}

impl Node {
    /// Shares memory for counters among the ranks of this node; the arguments and errors are those
    /// of [`share`].
    pub(crate) fn join<E>(
        rank: usize,
        node_ranks: &[usize],
        all_gather: impl FnMut(&[u64]) -> Result<Vec<u64>, E>,
    ) -> Result<Result<Self, Unavailable>, E> {
        let shared = share(Counters::BYTES, rank, node_ranks, all_gather)?;
        Ok(shared.map(|buffer| Self {
            counters: Counters::new(buffer),
            ranks: node_ranks.to_vec(),
            buffers: RwLock::default(),
        }))
    }

    /// This rank's index on the node.
    pub(crate) fn local(&self) -> usize {
        self.counters.local()
    }

    /// The ranks of the world that are on this node, in ascending order.
    pub(crate) fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    /// Adds a buffer in which stages can run. All ranks of the node add the same in the same order.
    pub(crate) fn add(&self, buffer: Arc<SharedBuffer>) {
        self.buffers.write().unwrap_or_else(PoisonError::into_inner).push(buffer);
    }

    /// Location of this rank's memory in a shared buffer; `None` where it lies in none.
    pub(crate) fn locate(&self, memory: RawBuffer) -> Option<Location> {
        if memory.is_empty() {
            return None;
        }
        let buffers = self.buffers.read().unwrap_or_else(PoisonError::into_inner);
        buffers.iter().zip(1_u64..).find_map(|(buffer, number)| {
            let start = buffer.start(self.local()).addr();
            let offset = memory.start().addr().get().checked_sub(start)?;
            let code = number << OFFSET_BITS | offset as u64;
            let lies_inside = offset + memory.bytes() <= buffer.bytes();
            lies_inside.then(|| Location { buffer: buffer.clone(), offset, code })
        })
    }

    /// Wakes this rank's communication thread.
    pub(crate) fn wakeup(&self) -> &FutexEvent {
        &self.own_counters().wakeup
    }

    /// Records that this rank starts its next collective operation on a channel.
    pub(crate) fn record_start(&self, channel: Channel) {
        self.own_counters().started.0[channel as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The ranks of this node that keep the `sequence`-th collective operation of a channel from
    /// completing, as far as counters show: those that have not started it, else those that are
    /// behind this rank.
    pub(crate) fn missing(&self, channel: Channel, sequence: u64) -> Vec<usize> {
        let has_started = |local: usize| {
            let started = &self.counters.of(local).started.0[channel as usize];
            started.load(Ordering::Relaxed) >= sequence
        };
        let absent: Vec<usize> = self.others().filter(|&local| !has_started(local)).collect();
        let missing = if absent.is_empty() { self.behind() } else { absent };
        missing.into_iter().map(|local| self.ranks[local]).collect()
    }

    /// The ranks that have finished the fewest rounds before the exchange with other nodes, if
    /// fewer than this rank. All others may wait for them, while they wait for nobody, because a
    /// round needs of other ranks only the one before. After the exchange a rank may be behind
    /// because it waits for another node.
    fn behind(&self) -> Vec<usize> {
        let finished = |local: usize| {
            self.sequence_counters(local, Sequence::BeforeExchange).rounds.0.load(Ordering::Relaxed)
        };
        let fewest = self.others().map(finished).min().unwrap_or(u64::MAX);
        if fewest >= finished(self.local()) {
            return Vec::new();
        }
        self.others().filter(|&local| finished(local) == fewest).collect()
    }

    pub(super) fn counters(&self, local: usize) -> &RankCounters {
        self.counters.of(local)
    }

    pub(super) fn sequence_counters(&self, local: usize, sequence: Sequence) -> &SequenceCounters {
        &self.counters(local).sequences[sequence as usize]
    }

    fn own_counters(&self) -> &RankCounters {
        self.counters(self.local())
    }

    /// The other ranks of the node, from the next one on around, so that not all access the same
    /// rank's memory first.
    pub(super) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let local = self.local();
        let ranks = self.counters.ranks();
        (1..ranks).map(move |distance| (local + distance) % ranks)
    }
}
