//! What moving buffers between ranks takes of memory, beside the buffers.

/// Of one rank, in bytes. A page that the ranks of a node share is of the rank that made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    /// The rank's slots in the memory of its node.
    pub node: usize,
    /// What the MPI library holds.
    pub library: usize,
}

/// A rank's slots: what is not in a buffer of the backend's own goes through them.
pub(crate) const SLOTS_BYTES: usize = 7 * (256 << 10);

/// A run of `smoke` on two ranks of Open MPI 4.1 held 2.5 to 3 MiB more per rank than one alone.
const LIBRARY_BYTES: usize = 3 << 20;

impl Footprint {
    /// Of one of `world` ranks, of which `local` are on each node, that reduce `bytes` in all, with
    /// all buckets under way at once.
    ///
    /// MPI libraries reduce through a temporary buffer as large as the message. Where ranks of a
    /// node share memory, MPI reduces between nodes alone: of each rank its part, or all of it on
    /// one rank where nodes differ in size.
    pub fn new((world, local): (usize, usize), bytes: usize) -> Self {
        if world <= 1 {
            return Self { node: 0, library: 0 };
        }
        let (is_one_node, is_even) = (world <= local, world.is_multiple_of(local));
        let reduced = match (is_one_node, is_even) {
            (true, _) => 0,
            (false, true) => bytes / local,
            (false, false) => bytes,
        };
        let node = if local > 1 { SLOTS_BYTES } else { 0 };
        Self { node, library: LIBRARY_BYTES.saturating_add(reduced) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mpi_reduces_what_is_between_nodes() {
        let of = |world, local| Footprint::new((world, local), 12 << 20);
        assert_eq!(of(1, 1), Footprint { node: 0, library: 0 });
        let reduced = |world, local| of(world, local).library - LIBRARY_BYTES;
        assert_eq!(reduced(4, 4), 0, "the node's memory does");
        assert_eq!(reduced(8, 4), 3 << 20, "each rank its part");
        assert_eq!(reduced(6, 4), 12 << 20, "one rank all of it");
        assert_eq!(reduced(4, 1), 12 << 20);
        assert_eq!((of(4, 1).node, of(4, 2).node), (0, SLOTS_BYTES));
    }
}
