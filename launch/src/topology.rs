//! Which ranks share a node, and which share its cores.
//!
//! Ranks exchange a [`Presence`] each. A node is a host name on a running kernel: two pods on one
//! machine are two nodes, two machines that are both called `localhost` are two nodes as well.
//! Cores belong to the machine, whatever its pods are called: a running kernel.

use serde::{Deserialize, Serialize};

use crate::host;
use crate::threads;

/// Where a rank is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Rank of this process, 0 to world - 1.
    pub rank: usize,
    /// R, number of ranks.
    pub world: usize,
    /// Name of this rank's host.
    pub host: String,
    /// Rank among those on this node.
    pub local_rank: usize,
    /// Number of ranks on this node.
    pub local_world: usize,
    /// Index of this node, in the order of the nodes' first ranks.
    pub node: usize,
    /// Number of nodes.
    pub nodes: usize,
}

/// What a rank tells the others about where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Presence {
    /// Name of the host.
    pub host: String,
    /// Identity of the running kernel; may be empty.
    pub boot: String,
    /// Cores that the process may run on, in a fixed order.
    pub cores: Vec<usize>,
}

/// Position of a rank among those on its machine that may run on the very same cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// 0 to count - 1.
    pub index: usize,
    /// Ranks that share the cores, this one included.
    pub count: usize,
    /// Where other ranks may run on some of the cores and not on all: how many threads fill what is
    /// this rank's part of each. Then no cores are this rank's alone.
    pub overlapping: Option<usize>,
}

const HOST_BYTES: usize = 64; // Linux: HOST_NAME_MAX
const BOOT_BYTES: usize = 64;
const MASK_BYTES: usize = threads::CORES_MAX / 8;

impl Presence {
    /// Size of an encoded presence in bytes.
    pub const BYTES: usize = HOST_BYTES + BOOT_BYTES + MASK_BYTES;

    /// Of this process; call it before any thread is bound.
    pub fn of_this_process() -> Self {
        Self { host: host::host_name(), boot: host::boot_id(), cores: threads::allowed_cores() }
    }

    /// Writes it to `bytes`, of length [`Presence::BYTES`]. Text that is too long is cut.
    ///
    /// # Panics
    /// When `bytes` has another length.
    pub fn encode(&self, bytes: &mut [u8]) {
        assert_eq!(bytes.len(), Self::BYTES, "length of an encoded presence");
        bytes.fill(0);
        let (host, rest) = bytes.split_at_mut(HOST_BYTES);
        let (boot, mask) = rest.split_at_mut(BOOT_BYTES);
        for (field, text) in [(host, &self.host), (boot, &self.boot)] {
            let len = text.len().min(field.len());
            field[..len].copy_from_slice(&text.as_bytes()[..len]);
        }
        for &core in self.cores.iter().filter(|&&core| core < threads::CORES_MAX) {
            mask[core / 8] |= 1 << (core % 8);
        }
    }

    /// Reads what [`Presence::encode`] wrote; cores come in ascending order.
    ///
    /// # Panics
    /// When `bytes` has not the length [`Presence::BYTES`].
    pub fn decode(bytes: &[u8]) -> Self {
        assert_eq!(bytes.len(), Self::BYTES, "length of an encoded presence");
        let text = |field: &[u8]| String::from_utf8_lossy(field).trim_end_matches('\0').to_owned();
        let mask = &bytes[HOST_BYTES + BOOT_BYTES..];
        let is_set = |core: &usize| mask[core / 8] & (1 << (core % 8)) != 0;
        Self {
            host: text(&bytes[..HOST_BYTES]),
            boot: text(&bytes[HOST_BYTES..HOST_BYTES + BOOT_BYTES]),
            cores: (0..threads::CORES_MAX).filter(is_set).collect(),
        }
    }

    pub(crate) fn node(&self) -> (&str, &str) {
        (&self.host, &self.boot)
    }

    /// Whether both run on one kernel, perhaps in two pods; by their hosts where that is hidden.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        self.boot == other.boot && (!self.boot.is_empty() || self.host == other.host)
    }
}

impl Placement {
    /// Of one rank among all; `presences` has one entry per rank.
    ///
    /// # Panics
    /// When there is no such rank.
    pub fn new(rank: usize, presences: &[Presence]) -> Self {
        let mine = &presences[rank];
        let mut nodes = Vec::new();
        for presence in presences {
            if !nodes.contains(&presence.node()) {
                nodes.push(presence.node());
            }
        }
        let is_local = |presence: &&Presence| presence.node() == mine.node();
        Self {
            rank,
            world: presences.len(),
            host: mine.host.clone(),
            local_rank: presences[..rank].iter().filter(is_local).count(),
            local_world: presences.iter().filter(is_local).count(),
            node: nodes.iter().take_while(|&&node| node != mine.node()).count(),
            nodes: nodes.len(),
        }
    }
}

impl Share {
    /// Of one rank among all; `presences` has one entry per rank.
    ///
    /// # Panics
    /// When there is no such rank.
    pub fn new(rank: usize, presences: &[Presence]) -> Self {
        let mine = &presences[rank];
        let is_same =
            |other: &&Presence| mine.is_beside(other) && same_cores(&mine.cores, &other.cores);
        let count = presences.iter().filter(is_same).count();
        let beside: Vec<_> = presences.iter().filter(|other| mine.is_beside(other)).collect();
        let ranks_on = |core| beside.iter().filter(|other| other.cores.contains(core)).count();
        let ranks: Vec<_> = mine.cores.iter().map(ranks_on).collect();
        let part: f64 = ranks.iter().map(|&ranks| 1.0 / ranks as f64).sum();
        let overlaps = ranks.iter().any(|&ranks| ranks > count);
        Self {
            index: presences[..rank].iter().filter(is_same).count(),
            count,
            // Three thirds may be just short of a whole.
            overlapping: overlaps.then_some((part + 1e-6) as usize),
        }
    }
}

fn same_cores(a: &[usize], b: &[usize]) -> bool {
    a.len() == b.len() && a.iter().all(|core| b.contains(core))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn presence(host: &str, boot: &str, cores: &[usize]) -> Presence {
        Presence { host: host.to_owned(), boot: boot.to_owned(), cores: cores.to_vec() }
    }

    #[test]
    fn encoding_round_trips() {
        let last = threads::CORES_MAX - 1;
        let original = presence("worker-0.job", "b-1", &[0, 7, 8, last]);
        let mut bytes = vec![0xFF; Presence::BYTES];
        original.encode(&mut bytes);
        assert_eq!(Presence::decode(&bytes), original);
    }

    #[test]
    fn a_long_name_is_cut_and_not_a_panic() {
        let mut bytes = vec![0; Presence::BYTES];
        presence(&"n".repeat(300), "", &[]).encode(&mut bytes);
        assert_eq!(Presence::decode(&bytes).host.len(), HOST_BYTES);
    }

    #[test]
    fn ranks_are_placed_by_host_round_robin_or_not() {
        let ranks = ["b", "a", "b", "a", "c"].map(|host| presence(host, "", &[0]));
        let places: Vec<_> = (0..5).map(|rank| Placement::new(rank, &ranks)).collect();
        let locals: Vec<_> = places.iter().map(|p| (p.node, p.local_rank, p.local_world)).collect();
        assert_eq!(locals, [(0, 0, 2), (1, 0, 2), (0, 1, 2), (1, 1, 2), (2, 0, 1)]);
        assert!(places.iter().all(|p| p.nodes == 3 && p.world == 5));
        assert_eq!(places[2].host, "b");
    }

    #[test]
    fn machines_of_one_name_are_several_nodes() {
        let ranks = [presence("localhost", "x", &[0]), presence("localhost", "y", &[0])];
        let place = Placement::new(1, &ranks);
        assert_eq!((place.nodes, place.node, place.local_world), (2, 1, 1));
    }

    fn shares(presences: &[Presence]) -> Vec<(usize, usize, Option<usize>)> {
        let share = |rank| Share::new(rank, presences);
        (0..presences.len()).map(share).map(|s| (s.index, s.count, s.overlapping)).collect()
    }

    #[test]
    fn only_ranks_with_the_same_cores_on_the_same_machine_share_them() {
        let ranks = [
            presence("a", "x", &[0, 1]),
            presence("a", "x", &[1, 0]),
            presence("a", "x", &[2, 3]),
            presence("b", "y", &[0, 1]),
        ];
        assert_eq!(shares(&ranks), [(0, 2, None), (1, 2, None), (0, 1, None), (0, 1, None)]);
    }

    #[test]
    fn pods_of_one_machine_share_its_cores_and_are_two_nodes() {
        let pods = [presence("pod-0", "x", &[0, 1]), presence("pod-1", "x", &[0, 1])];
        assert_eq!(shares(&pods), [(0, 2, None), (1, 2, None)]);
        assert_eq!(Placement::new(1, &pods).nodes, 2, "memory is another matter");
        // Where the kernel hides which it is, a host is all that is known.
        let hidden = [presence("pod-0", "", &[0, 1]), presence("pod-1", "", &[0, 1])];
        assert_eq!(shares(&hidden), [(0, 1, None), (0, 1, None)]);
        let one = [presence("pod-0", "", &[0, 1]), presence("pod-0", "", &[0, 1])];
        assert_eq!(shares(&one), [(0, 2, None), (1, 2, None)]);
    }

    #[test]
    fn cores_that_overlap_in_part_are_nobody_s_alone() {
        let ranks = [presence("a", "x", &[0, 1]), presence("a", "x", &[1])];
        assert_eq!(shares(&ranks), [(0, 1, Some(1)), (0, 1, Some(0))]);
        let three = [
            presence("a", "x", &[0, 1, 2, 3, 4, 5]),
            presence("a", "x", &[0, 1, 2, 3, 4, 5]),
            presence("b", "x", &[3, 4, 5]),
        ];
        assert_eq!(shares(&three), [(0, 2, Some(2)), (1, 2, Some(2)), (0, 1, Some(1))]);
    }
}
