//! Files that only other nodes have: traffic between ranks, and ranks that fail meanwhile. Ranks
//! are threads, nodes are folders.

use std::cell::{Cell, RefCell};
use std::time::Instant;

use checkpoint::{Error, Peers, PeersError, Restored};

use crate::partner;
use crate::support::*;
use crate::tiers::{Cluster, NVME, Placement, ShareOf, share_of};

/// Two ranks on each of four nodes.
const PLACEMENT: Placement<'static> = &[0, 0, 1, 1, 2, 2, 3, 3];
const WORLD: usize = PLACEMENT.len();

/// Messages of a rank.
#[derive(Debug, Default, Clone)]
struct Traffic {
    /// Bytes of messages to it.
    received: u64,
    /// Bytes of messages from it, and of those that it broadcast.
    sent: u64,
    /// Bytes that others broadcast.
    broadcast: u64,
    /// Length of the longest message.
    longest: usize,
    /// Payloads of gathers that carry no JSON.
    statuses: Vec<Vec<u8>>,
}

/// Counts the messages of a rank, which dies at one of them.
struct Counted<'a> {
    peers: &'a Thread,
    traffic: RefCell<Traffic>,
    /// Messages before it dies.
    left: Cell<usize>,
}

impl<'a> Counted<'a> {
    fn new(peers: &'a Thread, messages: usize) -> Self {
        Self { peers, traffic: RefCell::default(), left: Cell::new(messages) }
    }

    fn count(&self, longest: usize) -> Result<(), PeersError> {
        let left = self.left.get().checked_sub(1).ok_or_else(|| PeersError::new("killed"))?;
        self.left.set(left);
        let mut traffic = self.traffic.borrow_mut();
        traffic.longest = traffic.longest.max(longest);
        Ok(())
    }
}

impl Peers for Counted<'_> {
    fn rank(&self) -> usize {
        self.peers.rank()
    }

    fn world(&self) -> usize {
        self.peers.world()
    }

    fn all_gather(&self, payload: &[u8]) -> Result<Vec<Vec<u8>>, PeersError> {
        if !payload.starts_with(b"{") {
            self.traffic.borrow_mut().statuses.push(payload.to_vec());
        }
        self.peers.all_gather(payload)
    }

    fn broadcast(&self, root: usize, bytes: &mut [u8]) -> Result<(), PeersError> {
        self.count(bytes.len())?;
        let mut traffic = self.traffic.borrow_mut();
        let is_own = root == self.rank();
        *(if is_own { &mut traffic.sent } else { &mut traffic.broadcast }) += bytes.len() as u64;
        self.peers.broadcast(root, bytes)
    }

    fn send_receive(
        &self,
        to: usize,
        sent: &mut [u8],
        from: usize,
        received: &mut [u8],
        deadline: Instant,
    ) -> Result<(), PeersError> {
        self.count(sent.len().max(received.len()))?;
        let mut traffic = self.traffic.borrow_mut();
        traffic.sent += sent.len() as u64;
        traffic.received += received.len() as u64;
        self.peers.send_receive(to, sent, from, received, deadline)
    }
}

/// Restore on a rank, and its traffic.
struct Resumed {
    restored: Restored,
    traffic: Traffic,
}

impl Resumed {
    /// Bytes that it received of what it wants.
    fn wanted(&self) -> u64 {
        self.restored.sources[0].from_peers
    }
}

/// Restores a share on each rank, all bytes checked.
fn resume(
    cluster: &Cluster,
    placement: Placement<'_>,
    share: impl Fn(usize) -> ShareOf + Sync,
) -> Vec<Resumed> {
    on_ranks(placement.len(), |peers| {
        let rank = peers.rank();
        let counted = Counted::new(peers, usize::MAX);
        let restored = share(rank).resume(&cluster.tiers(placement[rank]), &counted);
        let traffic = counted.traffic.into_inner();
        assert!(traffic.longest <= SMALL.round_bytes, "{traffic:?}");
        assert!(traffic.statuses.iter().all(|status| status == &[0]), "{traffic:?}");
        Resumed { restored: restored.unwrap().unwrap(), traffic }
    })
}

#[test]
fn only_a_lost_node_receives_and_only_what_it_wants() {
    let mut cluster = Cluster::new(4, false);
    partner::save(&cluster, PLACEMENT, 10);
    cluster.replace(3);
    let all = resume(&cluster, PLACEMENT, |rank| share_of(WORLD, rank));
    for (rank, resumed) in all.iter().enumerate() {
        let Traffic { received, sent, broadcast, .. } = resumed.traffic;
        assert_eq!((received, broadcast), (resumed.wanted(), 0), "rank {rank}");
        assert_eq!(received > 0, rank >= 6, "rank {rank}: {received}");
        assert_eq!(sent > 0, rank < 2, "the next node has the copies: rank {rank}");
    }
}

#[test]
fn ranks_that_want_different_chunks_receive_no_others() {
    let cluster = Cluster::new(4, false);
    cluster.save(PLACEMENT, 10, NVME);
    // The share of a rank on another node; and a part of one that two ranks want.
    let shares: [fn(usize) -> ShareOf; 2] = [
        |rank| share_of(WORLD, (rank + 3) % WORLD),
        |rank| share_of(2 * WORLD, [4, 12, 0, 8][rank % 4]),
    ];
    for share in shares {
        let all = resume(&cluster, PLACEMENT, share);
        for (rank, resumed) in all.iter().enumerate() {
            let Traffic { received, broadcast, .. } = resumed.traffic;
            assert!(received > 0, "rank {rank}");
            assert_eq!((received, broadcast), (resumed.wanted(), 0), "rank {rank}");
        }
    }
}

#[test]
fn what_all_want_is_sent_once() {
    let cluster = Cluster::new(4, false);
    cluster.save(PLACEMENT, 10, NVME);
    let all = resume(&cluster, PLACEMENT, |_| share_of(1, 0));
    let bytes: u64 = model(10).iter().map(|tensor| tensor.len() as u64).sum();
    let sent: u64 = all.iter().map(|resumed| resumed.traffic.sent).sum();
    assert_eq!(sent, bytes, "no matter how many want it");
    for resumed in &all {
        let Traffic { received, sent, broadcast, .. } = resumed.traffic;
        assert_eq!((received, broadcast), (0, bytes - sent));
        assert!((bytes / 2..=broadcast).contains(&resumed.wanted()));
    }
}

/// A chunk that goes to all and chunks that go to one rank share the rounds.
#[test]
fn some_want_all_and_others_a_part() {
    let cluster = Cluster::new(4, false);
    cluster.save(PLACEMENT, 10, NVME);
    for whole in 0..=WORLD {
        let share = |rank| if rank < whole { share_of(1, 0) } else { share_of(5, rank % 5) };
        let all = resume(&cluster, PLACEMENT, share);
        let sum = |of: fn(&Resumed) -> u64| all.iter().map(of).sum::<u64>();
        let arrived = sum(|resumed| resumed.traffic.received + resumed.traffic.broadcast);
        assert!(arrived <= 2 * sum(Resumed::wanted), "{whole} ranks want all");
    }
}

/// The other rank of its node sees the same disk, and does not try again.
#[test]
fn a_rank_that_cannot_read_ends_the_round_for_all() {
    let mut cluster = Cluster::new(4, false);
    let old = partner::save(&cluster, PLACEMENT, 10);
    let new = partner::save(&cluster, PLACEMENT, 20);
    partner::damage(cluster.nvme(0), &new, 6);
    cluster.replace(3);
    let all = on_ranks(WORLD, |peers| {
        let rank = peers.rank();
        share_of(WORLD, rank).resume(&cluster.tiers(PLACEMENT[rank]), peers).unwrap().unwrap()
    });
    for restored in all {
        assert_eq!(restored.checkpoint, old);
        let [rejected] = &restored.rejected[..] else { panic!("{restored:?}") };
        let [damaged] = &rejected.failures[..] else { panic!("{rejected:?}") };
        assert!(damaged.rank < 2 && damaged.reason.contains("r00006-000"), "{damaged:?}");
    }
}

#[test]
fn a_rank_that_dies_between_messages_is_an_error_on_all() {
    let cluster = Cluster::new(4, false);
    cluster.save(PLACEMENT, 10, NVME);
    let shares: [fn(usize) -> ShareOf; 2] =
        [|rank| share_of(WORLD, (rank + 3) % WORLD), |_| share_of(1, 0)];
    for share in shares {
        for messages in [0, 1, 7] {
            let results = on_ranks(WORLD, |peers| {
                let rank = peers.rank();
                let left = if rank == 2 { messages } else { usize::MAX };
                let counted = Counted::new(peers, left);
                share(rank).resume(&cluster.tiers(PLACEMENT[rank]), &counted).map(|_| ())
            });
            for result in results {
                assert!(matches!(result, Err(Error::Peers(_))), "{result:?}");
            }
        }
    }
}
