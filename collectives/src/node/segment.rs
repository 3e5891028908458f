//! Memory that the ranks of one node share: how it is divided.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::sync::atomic::AtomicU64;

use memmap2::MmapRaw;

use super::bell::Bell;
use super::file::{self, Address};

/// Bytes of one slot. Small enough for what one round touches to stay in a core's own cache, large
/// enough for the meeting after each to cost little.
pub(crate) const SLOT_BYTES: usize = 256 << 10;

/// A multiple of every machine's page size that is in use.
const PAGE_BYTES: usize = 64 << 10;

/// Slots that each rank has.
pub(crate) const SLOTS: usize = 7;

/// Independent sequences of rounds.
pub(crate) const LANES: usize = 2;

/// Mapped shared memory. It has no name anywhere: when the last process that maps it ends, in
/// whatever way, it is gone.
#[derive(Debug)]
pub(crate) struct Segment {
    map: MmapRaw,
    ranks: usize,
}

/// What a rank tells the others; all zeros at first.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Words {
    /// Wakes the rank's communication thread.
    pub(crate) bell: Bell,
    /// Collective operations that the rank came to, per channel.
    pub(crate) came: Line<[AtomicU64; 2]>,
    /// Rounds that the rank has finished, per lane.
    pub(crate) finished: [Line<AtomicU64>; LANES],
    /// Where the buffer of its task is in memory that the others reach, per lane; by turns.
    pub(crate) places: [Line<[AtomicU64; 2]>; LANES],
}

/// A pair of cache lines for one value: processors fetch them in pairs.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Line<T>(pub(crate) T);

impl Segment {
    /// Makes the memory for some ranks. The file is to be kept until all have mapped it.
    pub(crate) fn create(ranks: usize) -> io::Result<(Self, File, Address)> {
        let (map, file, address) = file::create(bytes(ranks))?;
        Ok((Self { map, ranks }, file, address))
    }

    /// Maps what another rank made.
    pub(crate) fn open(address: Address, ranks: usize) -> io::Result<Self> {
        Ok(Self { map: file::open(address, bytes(ranks))?, ranks })
    }

    /// For how many ranks.
    pub(crate) fn ranks(&self) -> usize {
        self.ranks
    }

    /// What a rank tells.
    ///
    /// # Panics
    /// When there is no such rank.
    pub(crate) fn words(&self, rank: usize) -> &Words {
        assert!(rank < self.ranks, "rank {rank} of {}", self.ranks);
        // SAFETY: inside the mapping, which is aligned to a page and the words to their size; every
        // bit pattern is valid, and all processes touch them as atomics only.
        unsafe { &*self.map.as_mut_ptr().cast::<Words>().add(rank) }
    }

    /// The first byte of a rank's slot, aligned to a page. Who may touch it when is the lane's
    /// affair.
    ///
    /// # Panics
    /// When there is no such rank or slot.
    pub(crate) fn slot(&self, rank: usize, slot: usize) -> *mut u8 {
        assert!(rank < self.ranks && slot < SLOTS, "slot {slot} of rank {rank}");
        let offset = words_bytes(self.ranks) + (rank * SLOTS + slot) * SLOT_BYTES;
        // SAFETY: inside the mapping.
        unsafe { self.map.as_mut_ptr().add(offset) }
    }
}

fn words_bytes(ranks: usize) -> usize {
    (ranks * size_of::<Words>()).next_multiple_of(PAGE_BYTES)
}

fn bytes(ranks: usize) -> usize {
    words_bytes(ranks) + ranks * SLOTS * SLOT_BYTES
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn two_mappings_are_one_memory() {
        let (made, file, address) = Segment::create(3).unwrap();
        let found = Segment::open(address, 3).unwrap();
        made.words(2).finished[1].0.store(7, Ordering::Release);
        assert_eq!(found.words(2).finished[1].0.load(Ordering::Acquire), 7);
        let last = |segment: &Segment| segment.slot(2, SLOTS - 1).wrapping_add(SLOT_BYTES - 1);
        // SAFETY: the last byte of the mapping, and nobody else's.
        unsafe { last(&made).write(9) };
        // SAFETY: as above.
        assert_eq!(unsafe { last(&found).read() }, 9);
        drop((made, file));
        // SAFETY: as above.
        assert_eq!(unsafe { last(&found).read() }, 9, "a mapping outlives its maker");
    }
}
