//! A buffer on every rank of a node, each mapped by all of these ranks.

use std::fs::File;
use std::io;

use memmap2::MmapRaw;

use super::memfd::{self, Created, Handle};

/// One buffer per rank of a node, zeros at first. They stay mapped as long as this lives.
#[derive(Debug)]
pub(crate) struct SharedBuffer {
    /// Mappings by local rank.
    maps: Vec<MmapRaw>,
    local: usize,
    /// Open, because the other ranks map this rank's buffer through it.
    _file: File,
}

/// This rank's buffer, before those of its peers are mapped.
#[derive(Debug)]
pub(super) struct Export {
    created: Created,
    bytes: usize,
}

impl Export {
    pub(super) fn new(bytes: usize) -> io::Result<Self> {
        Ok(Self { created: memfd::create(bytes)?, bytes })
    }

    /// Handle by which the other ranks find it.
    pub(super) fn handle(&self) -> Handle {
        self.created.handle
    }

    /// Maps the buffers of the other ranks, whose handles are given by local rank. After a failure
    /// too, others can map this rank's buffer until this is dropped.
    pub(super) fn map_peers(&self, local: usize, handles: &[Handle]) -> io::Result<Vec<MmapRaw>> {
        let peers = handles.iter().enumerate().filter(|&(rank, _)| rank != local);
        peers.map(|(_, &handle)| memfd::open(handle, self.bytes)).collect()
    }

    /// Adds this rank's own buffer to the mapped buffers of its peers.
    pub(super) fn join(self, local: usize, peers: Vec<MmapRaw>) -> SharedBuffer {
        let mut maps = peers;
        maps.insert(local, self.created.map);
        SharedBuffer { maps, local, _file: self.created.file }
    }
}

impl SharedBuffer {
    /// Number of ranks.
    pub(crate) fn ranks(&self) -> usize {
        self.maps.len()
    }

    /// This rank's index on the node.
    pub(crate) fn local(&self) -> usize {
        self.local
    }

    /// First byte of a rank's buffer, aligned to a page.
    pub(crate) fn start(&self, local: usize) -> *mut u8 {
        self.maps[local].as_mut_ptr()
    }

    /// Size of each rank's buffer.
    pub(crate) fn bytes(&self) -> usize {
        self.maps[self.local].len()
    }
}

#[cfg(test)]
mod tests {
    #![allow(unsafe_code)]

    use super::*;

    #[test]
    fn every_rank_sees_the_buffers_of_all() {
        let exports = [Export::new(100).unwrap(), Export::new(100).unwrap()];
        let handles = exports.each_ref().map(Export::handle);
        let [first, second] = exports;
        let peers = first.map_peers(0, &handles).unwrap();
        let first = first.join(0, peers);
        let peers = second.map_peers(1, &handles).unwrap();
        let second = second.join(1, peers);
        assert_eq!((second.ranks(), second.local(), second.bytes()), (2, 1, 100));
        for rank in 0..2 {
            // SAFETY: the last byte of the mapping, and nobody else's.
            unsafe { first.start(rank).add(99).write(7 + rank as u8) };
        }
        drop(first);
        for rank in 0..2 {
            // SAFETY: as above.
            let found = unsafe { second.start(rank).add(99).read() };
            assert_eq!(found, 7 + rank as u8, "a mapping outlives the creator's");
        }
    }
}
