//! Memory that communication needs, in addition to the buffers that are exchanged.

/// Memory of one rank, in bytes. A page shared on a node counts for the rank that allocated it.
///
/// An estimate, and not what constructors allocate: the backend is opened before the buckets are
/// known, and of what it reserves only pages that a message reaches become resident.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    /// Receive buffers for other ranks' addends of sums.
    pub received: usize,
    /// Memory of the MPI library, including the rank's share of what it allocates once per node.
    pub library: usize,
}

/// Chunks of a buffer that are exchanged at a time. Each has its own memory for received addends.
pub(crate) const PIPELINE_DEPTH: usize = 4;

/// Most bytes of one message of a chunk, in a group of ranks: what all ranks send of it together
/// shall still be in a cache when it is summed. With many ranks it may be larger, so that messages
/// do not become too small for a network; with very many ranks, messages are small.
pub(crate) fn message_bytes(ranks: usize) -> usize {
    let others = ranks.saturating_sub(1).max(1);
    let share = |bytes: usize| (bytes / others).next_multiple_of(PAGE_BYTES);
    share(CACHED_BYTES).max(MESSAGE_BYTES_MIN).min(share(CHUNK_BYTES_MAX))
}

const CACHED_BYTES: usize = 1 << 20;
const MESSAGE_BYTES_MIN: usize = 64 << 10;
const CHUNK_BYTES_MAX: usize = 16 << 20;
const PAGE_BYTES: usize = 4 << 10;

/// Measured with `smoke` on Open MPI 4.1: each of 2, 4 and 8 ranks used 3.1 MiB more than a single
/// rank, and their node 4, 7 and 8 MiB more of file pages.
const LIBRARY_BYTES: usize = 7 << 19;
const LIBRARY_SHARED_BYTES: usize = 3 << 20;

impl Footprint {
    /// Estimates the memory of one of `world` ranks, `local` of them on each node, that reduce
    /// buckets of at most `bucket_bytes`. `shares_memory` is the result of
    /// [`Collective::shares_memory`](crate::Collective::shares_memory), or assumed.
    ///
    /// With shared memory, addends arrive from the ranks with the same index on the other nodes,
    /// or, where nodes differ in size, from one rank of each node; otherwise from all ranks.
    /// Different sizes are approximated: ranks other than that one receive nothing, and nodes pass
    /// for equal where `local` divides `world`.
    pub fn estimate(world: usize, local: usize, shares_memory: bool, bucket_bytes: usize) -> Self {
        if world <= 1 {
            return Self { received: 0, library: 0 };
        }
        let library = library_bytes(local);
        let local = if shares_memory { local } else { 1 };
        let nodes = world.div_ceil(local);
        let owners = if world.is_multiple_of(local) { world } else { nodes };
        let message = (bucket_bytes / owners).next_multiple_of(PAGE_BYTES);
        let message = message.min(message_bytes(nodes));
        Self { received: PIPELINE_DEPTH * (nodes - 1) * message, library }
    }

    /// Estimates the memory of one rank of a [grid](crate::GridPlan) of lines of `inner` and of
    /// `outer` ranks, `local` of all on each node. Addends arrive from the other ranks of both of
    /// its lines, also from those of its node.
    pub fn of_grid(inner: usize, outer: usize, local: usize, bucket_bytes: usize) -> Self {
        let of_line = |ranks: usize, bytes: usize| {
            let message = (bytes / ranks).next_multiple_of(PAGE_BYTES).min(message_bytes(ranks));
            PIPELINE_DEPTH * (ranks - 1) * message
        };
        let received = of_line(inner, bucket_bytes) + of_line(outer, bucket_bytes / inner);
        Self { received, library: library_bytes(local) }
    }
}

fn library_bytes(local: usize) -> usize {
    LIBRARY_BYTES + LIBRARY_SHARED_BYTES / local
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addends_are_received_from_other_nodes() {
        let bucket = 96 << 10;
        let of = |world, local, shares| Footprint::estimate(world, local, shares, bucket);
        assert_eq!(of(1, 1, true), Footprint { received: 0, library: 0 });
        let received = |world, local| of(world, local, true).received;
        assert_eq!(received(4, 4), 0, "one node reduces in place");
        assert_eq!(received(8, 4), PIPELINE_DEPTH * bucket / 8, "each rank its part");
        assert_eq!(received(6, 4), PIPELINE_DEPTH * bucket / 2, "one rank of the node the whole");
        assert_eq!(received(4, 1), PIPELINE_DEPTH * 3 * bucket / 4);
        assert_eq!(of(4, 2, false).received, received(4, 1), "all addends");
        let large = Footprint::estimate(3, 1, true, 1 << 30).received;
        assert_eq!(large, PIPELINE_DEPTH * 2 * message_bytes(3), "a chunk at a time");
        let small = Footprint::estimate(2, 1, true, 10_000).received;
        assert_eq!(small, PIPELINE_DEPTH * 2 * PAGE_BYTES, "whole pages");
    }

    #[test]
    fn addends_of_a_grid_are_received_from_both_lines() {
        let bucket = 96 << 10;
        let received = |inner, outer| Footprint::of_grid(inner, outer, 4, bucket).received;
        assert_eq!(received(4, 2), PIPELINE_DEPTH * (3 * bucket / 4 + bucket / 8));
        assert_eq!(received(2, 3), PIPELINE_DEPTH * (bucket / 2 + 2 * bucket / 6));
        let large = Footprint::of_grid(2, 3, 4, 1 << 30).received;
        assert_eq!(large, PIPELINE_DEPTH * (message_bytes(2) + 2 * message_bytes(3)));
        let library = Footprint::of_grid(2, 3, 4, bucket).library;
        assert_eq!(library, Footprint::estimate(6, 4, true, bucket).library);
    }

    #[test]
    fn pages_of_the_library_that_a_node_shares_count_once() {
        for shares_memory in [false, true] {
            let library = |local| Footprint::estimate(8, local, shares_memory, 1).library;
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
