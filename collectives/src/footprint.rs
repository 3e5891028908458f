//! What moving buffers between ranks takes of memory, beside the buffers.

/// Of one rank, in bytes. A page that the ranks of a node share is of the rank that made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    /// What others send to be added up.
    pub received: usize,
    /// What the MPI library holds, with the rank's share of what the node holds once.
    pub library: usize,
}

/// Pieces of a buffer that are exchanged with other nodes at a time. Each has its place for what
/// is received.
pub(crate) const PLACES: usize = 4;

/// Most of one message of such a piece, in bytes, among some ranks: what all send is to be in a
/// cache still when it is added up. Where ranks are so many that messages would become small for a
/// network, it may be larger; where they are very many, messages are small.
pub(crate) fn message_bytes(ranks: usize) -> usize {
    let others = ranks.saturating_sub(1).max(1);
    let share = |bytes: usize| (bytes / others).next_multiple_of(PAGE_BYTES);
    share(CACHED_BYTES).max(SMALL_BYTES).min(share(PIECE_BYTES_MAX))
}

const CACHED_BYTES: usize = 1 << 20;
const SMALL_BYTES: usize = 64 << 10;
const PIECE_BYTES_MAX: usize = 16 << 20;
const PAGE_BYTES: usize = 4 << 10;

/// Runs of `smoke` on 2, 4 and 8 ranks of Open MPI 4.1 held 3.1 MiB more per rank than one alone,
/// and of the pages of files 4, 7 and 8 MiB more together.
const LIBRARY_BYTES: usize = 7 << 19;
const LIBRARY_SHARED_BYTES: usize = 3 << 20;

impl Footprint {
    /// Of one of `world` ranks, of which `local` are on each node, that reduce buckets of at most
    /// `bucket_bytes`; whether ranks of a node share memory is what
    /// [`Collective::shares_memory`](crate::Collective::shares_memory) says, or a guess.
    ///
    /// Where they do, what is received is from ranks of the same index on other nodes, or for one
    /// rank of each where nodes differ in size; else it is from all ranks. The latter is
    /// approximate: no other rank receives anything, and sizes that `local` divides pass for equal.
    ///
    /// The slots of a node are not in it: hardly a page of them is touched, but where a rank may
    /// not make memory for others, which shows when it makes its first buffer. Then its buffers go
    /// through 1.75 MiB of slots.
    pub fn new((world, local): (usize, usize), shares_memory: bool, bucket_bytes: usize) -> Self {
        if world <= 1 {
            return Self { received: 0, library: 0 };
        }
        let library = LIBRARY_BYTES + LIBRARY_SHARED_BYTES / local;
        let local = if shares_memory { local } else { 1 };
        let nodes = world.div_ceil(local);
        let talking = if world.is_multiple_of(local) { world } else { nodes };
        let message = (bucket_bytes / talking).next_multiple_of(PAGE_BYTES);
        let message = message.min(message_bytes(nodes));
        Self { received: PLACES * (nodes - 1) * message, library }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_received_comes_from_other_nodes() {
        let bucket = 96 << 10;
        let of = |world, local, shares| Footprint::new((world, local), shares, bucket);
        assert_eq!(of(1, 1, true), Footprint { received: 0, library: 0 });
        let received = |world, local| of(world, local, true).received;
        assert_eq!(received(4, 4), 0, "the node's memory does");
        assert_eq!(received(8, 4), PLACES * bucket / 8, "each rank its part");
        assert_eq!(received(6, 4), PLACES * bucket / 2, "one rank of the node the whole");
        assert_eq!(received(4, 1), PLACES * 3 * bucket / 4);
        assert_eq!(of(4, 2, false).received, received(4, 1), "all is received");
        let large = Footprint::new((3, 1), true, 1 << 30).received;
        assert_eq!(large, PLACES * 2 * message_bytes(3), "a piece at a time");
        let small = Footprint::new((2, 1), true, 10_000).received;
        assert_eq!(small, PLACES * 2 * PAGE_BYTES, "whole pages");
    }

    #[test]
    fn pages_of_the_library_that_a_node_shares_count_once() {
        for shares_memory in [false, true] {
            let library = |local| Footprint::new((8, local), shares_memory, 1).library;
            let of_node = |local| local * (library(local) - LIBRARY_BYTES);
            assert_eq!([1, 2, 8].map(of_node), [LIBRARY_SHARED_BYTES; 3]);
        }
    }

    #[test]
    fn messages_are_neither_too_large_nor_too_small() {
        let sizes = [1, 2, 3, 5, 17, 257, 1025, 100_000].map(message_bytes);
        assert_eq!(sizes, [1024, 1024, 512, 256, 64, 64, 16, 4].map(|kibibytes| kibibytes << 10));
    }
}
