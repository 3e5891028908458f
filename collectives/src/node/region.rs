//! Buffers that every rank of the node reaches: no copy on the way, and no slots.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::{AddAssign, Range};
use std::ptr;
use std::slice;

use memmap2::MmapRaw;

use super::file::{self, Address};
use super::{Kind, stream};
use crate::{Dtype, Element, Memory};

/// Elements that are worked on at a time: small enough to stay in the first-level cache.
const TILE: usize = 1024;

/// One buffer per rank of a node, all mapped here. They stay mapped as long as the node is.
#[derive(Debug)]
pub(crate) struct Region {
    /// By local rank.
    maps: Vec<MmapRaw>,
    local: usize,
}

/// A region under way to being one.
#[derive(Debug)]
pub(crate) struct Offer {
    map: MmapRaw,
    bytes: usize,
    file: File,
    pub(crate) address: Address,
}

impl Offer {
    /// This rank's buffer, of zeros.
    pub(crate) fn new(bytes: usize) -> io::Result<Self> {
        let (map, file, address) = file::create(bytes)?;
        Ok(Self { map, bytes, file, address })
    }

    /// Maps the others' buffers, whose addresses are given by local rank. The file is to be kept
    /// until all have done so.
    pub(crate) fn map(self, local: usize, addresses: &[Address]) -> io::Result<(Region, File)> {
        let mut own = Some(self.map);
        let mut maps = Vec::with_capacity(addresses.len());
        for (rank, &address) in addresses.iter().enumerate() {
            maps.push(match own.take_if(|_| rank == local) {
                Some(own) => own,
                None => file::open(address, self.bytes)?,
            });
        }
        Ok((Region { maps, local }, self.file))
    }
}

impl Region {
    /// First byte of this rank's buffer.
    pub(crate) fn own(&self) -> *mut u8 {
        self.maps[self.local].as_mut_ptr()
    }

    /// Where some memory begins in this rank's buffer, if it lies there.
    pub(super) fn offset(&self, memory: Memory) -> Option<usize> {
        let start = memory.pointer().addr().get().checked_sub(self.own().addr())?;
        (start + memory.bytes() <= self.maps[self.local].len()).then_some(start)
    }

    /// Does what a task does with one piece: for [`Kind::Gather`] a piece of `owner`'s part, else
    /// of this rank's own.
    ///
    /// # Safety
    /// The elements lie in the buffers at that offset, and until all ranks have met again
    /// - to reduce: nobody else touches this range in any of the buffers;
    /// - to gather: nobody writes it in the owner's, and nobody else touches it in this rank's.
    pub(super) unsafe fn work(
        &self,
        kind: Kind,
        dtype: Dtype,
        offset: usize,
        range: Range<usize>,
        owner: usize,
    ) {
        // SAFETY: the caller's promise; the element type is the memory's, and aligned for it.
        unsafe {
            match (kind, dtype) {
                (Kind::Gather, _) => {
                    let (start, bytes) = (range.start * dtype.bytes(), range.len() * dtype.bytes());
                    let at = |rank: usize| self.maps[rank].as_mut_ptr().add(offset + start);
                    let from = slice::from_raw_parts(at(owner).cast_const(), bytes);
                    stream::copy(from, slice::from_raw_parts_mut(at(self.local), bytes));
                }
                (_, Dtype::F32) => self.add::<f32>(kind, offset, range),
                (_, Dtype::F64) => self.add::<f64>(kind, offset, range),
                (_, Dtype::U8 | Dtype::Bf16) => unreachable!("refused by Operation::check"),
            }
        }
    }

    /// Adds up in the order of the ranks, and writes to this rank's buffer, or to all.
    unsafe fn add<E: Element + AddAssign>(&self, kind: Kind, offset: usize, range: Range<usize>) {
        let mut sums = [E::default(); TILE];
        for start in range.clone().step_by(TILE) {
            let sums = &mut sums[..TILE.min(range.end - start)];
            // SAFETY: the caller's promise.
            unsafe {
                let at =
                    |rank: usize| self.maps[rank].as_mut_ptr().add(offset).cast::<E>().add(start);
                let len = sums.len();
                let of = |rank: usize| slice::from_raw_parts(at(rank).cast_const(), len);
                match self.maps.len() {
                    1 => sums.copy_from_slice(of(0)),
                    _ => {
                        let pairs = of(0).iter().zip(of(1));
                        sums.iter_mut().zip(pairs).for_each(|(sum, (first, second))| {
                            *sum = *first;
                            *sum += *second;
                        });
                    }
                }
                for rank in 2..self.maps.len() {
                    sums.iter_mut().zip(of(rank)).for_each(|(sum, addend)| *sum += *addend);
                }
                let everybody = kind == Kind::ReduceAndGather;
                for rank in (0..self.maps.len()).filter(|&rank| everybody || rank == self.local) {
                    ptr::copy_nonoverlapping(sums.as_ptr(), at(rank), sums.len());
                }
            }
        }
    }
}
