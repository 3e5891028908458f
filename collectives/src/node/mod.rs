//! Ranks of one node work through memory that they share.
//!
//! A [`Segment`](segment::Segment) gives each rank a few slots and some words. A [`Lane`] moves a
//! buffer of any length through the slots in rounds: in each a rank offers one piece, adds or
//! copies the pieces that the others offered in the round before, and says that it has finished.
//! Buffers that lie in a [`Region`], where every rank reaches them, need no slots.
//! No rank ever holds a lock: one that is killed leaves nothing behind.

mod bell;
mod file;
mod lane;
mod parts;
mod region;
mod segment;
mod stream;
mod sum;
mod task;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};

use crate::{Channel, Memory};
pub(crate) use bell::Bell;
pub(crate) use file::Address;
pub(crate) use lane::{Lane, Step};
pub(crate) use parts::Parts;
pub(crate) use region::{Offer, Region};
use segment::{Segment, Words};
pub(crate) use sum::in_order;
pub(crate) use task::{Kind, Pieces, Task};

/// Of a place, for the offset in its region; the number of the region is above.
const OFFSET_BITS: u32 = 48;

/// A rank among those that share its node's memory.
#[derive(Debug)]
pub(crate) struct Node {
    segment: Segment,
    local: usize,
    /// The ranks of the world that are here, in ascending order.
    ranks: Vec<usize>,
    regions: RwLock<Vec<Arc<Region>>>,
}

impl Node {
    /// Makes the memory, as the first of `ranks`. The file is to be kept until all have joined.
    pub(crate) fn create(ranks: &[usize]) -> io::Result<(Self, File, Address)> {
        let (segment, file, address) = Segment::create(ranks.len())?;
        Ok((Self::new(segment, 0, ranks), file, address))
    }

    /// Maps the memory that the first made, as the `local`-th of `ranks`.
    pub(crate) fn join(address: Address, local: usize, ranks: &[usize]) -> io::Result<Self> {
        let segment = Segment::open(address, ranks.len())?;
        Ok(Self::new(segment, local, ranks))
    }

    fn new(segment: Segment, local: usize, ranks: &[usize]) -> Self {
        Self { segment, local, ranks: ranks.to_vec(), regions: RwLock::default() }
    }

    /// This rank's index among those of the node.
    pub(crate) fn local(&self) -> usize {
        self.local
    }

    /// The ranks of the world that are here, in ascending order.
    pub(crate) fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    /// Adds buffers that every rank reaches. All ranks of the node add the same in the same order.
    pub(crate) fn add(&self, region: Arc<Region>) {
        self.regions.write().unwrap_or_else(PoisonError::into_inner).push(region);
    }

    /// Where some memory of this rank lies in a region: 0 for nowhere.
    fn place(&self, memory: Memory) -> u64 {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let mut places = regions.iter().zip(1u64..);
        let of = |(region, number): (&Arc<Region>, u64)| {
            Some(number << OFFSET_BITS | region.offset(memory)? as u64)
        };
        places.find_map(of).unwrap_or(0)
    }

    /// The region and the offset that a place stands for.
    fn region(&self, place: u64) -> Option<(Arc<Region>, usize)> {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let index = (place >> OFFSET_BITS).checked_sub(1)? as usize;
        let offset = place & ((1 << OFFSET_BITS) - 1);
        Some((regions.get(index)?.clone(), offset as usize))
    }

    /// Wakes this rank's communication thread.
    pub(crate) fn bell(&self) -> &Bell {
        &self.words(self.local).bell
    }

    /// This rank comes to its next collective operation on a channel.
    pub(crate) fn come(&self, channel: Channel) {
        let came = &self.words(self.local).came.0[channel as usize];
        came.fetch_add(1, Ordering::Relaxed);
    }

    /// The ranks of this node that keep the `sequence`-th collective operation of a channel from
    /// being over, as far as can be seen: those that have not come to it, else those that are
    /// behind this rank on the way up.
    pub(crate) fn missing(&self, channel: Channel, sequence: u64) -> Vec<usize> {
        let came = |local: usize| {
            self.words(local).came.0[channel as usize].load(Ordering::Relaxed) >= sequence
        };
        let absent: Vec<usize> = self.others().filter(|&local| !came(local)).collect();
        let missing = if absent.is_empty() { self.behind() } else { absent };
        missing.into_iter().map(|local| self.ranks[local]).collect()
    }

    /// Those who have finished the fewest rounds of [`Lane::for_all`], if fewer than this rank. The
    /// others may wait for them, and they wait for nobody, because a round needs of the others only
    /// the one before. Who is behind on the way down is not asked: it may wait for another node.
    fn behind(&self) -> Vec<usize> {
        let finished = |local: usize| self.words(local).finished[0].0.load(Ordering::Relaxed);
        let last = self.others().map(finished).min().unwrap_or(u64::MAX);
        if last >= finished(self.local) {
            return Vec::new();
        }
        self.others().filter(|&local| finished(local) == last).collect()
    }

    fn words(&self, local: usize) -> &Words {
        self.segment.words(local)
    }

    /// The other ranks of the node, from the next one on around, so that not all begin with one.
    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (local, ranks) = (self.local, self.segment.ranks());
        (1..ranks).map(move |distance| (local + distance) % ranks)
    }
}
