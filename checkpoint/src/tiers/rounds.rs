//! Rounds in which ranks send each other chunks: a function of what all ranks want, which every
//! rank computes for itself.
//!
//! In a round no rank sends more than a number of bytes, nor receives more, whatever the world.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use crate::restore::ShardId;

/// Pieces that fill a round, so that several ranks read their disks for it at the same time.
const PIECES: u64 = 16;

/// Chunk that is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ChunkId {
    pub(super) shard: ShardId,
    pub(super) chunk: u64,
}

/// Ranks that receive a chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Receivers {
    /// All ranks, by a broadcast.
    All,
    /// These ranks, by a message to each.
    Ranks(Rc<[usize]>),
}

impl Receivers {
    /// Chooses how a chunk reaches those that want it. A broadcast is right where at least half of
    /// the ranks do: ranks together then receive at most twice what they want, and otherwise no
    /// rank sends a chunk to more than half of them.
    pub(super) fn of(wanting: &[usize], world: usize) -> Self {
        if 2 * wanting.len() >= world { Self::All } else { Self::Ranks(wanting.into()) }
    }

    /// Number of messages by which the sender sends it.
    fn messages(&self) -> u64 {
        match self {
            Self::All => 1,
            Self::Ranks(ranks) => ranks.len() as u64,
        }
    }
}

/// Chunk that a rank has to send.
#[derive(Debug, Clone)]
pub(super) struct Transfer {
    pub(super) id: ChunkId,
    pub(super) bytes: u64,
    pub(super) receivers: Receivers,
}

/// Part of a chunk that is sent in a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) sender: usize,
    pub(super) id: ChunkId,
    /// Bytes of the chunk.
    pub(super) range: Range<u64>,
    pub(super) receivers: Receivers,
}

impl Piece {
    pub(super) fn is_broadcast(&self) -> bool {
        self.receivers == Receivers::All
    }

    pub(super) fn len(&self) -> usize {
        (self.range.end - self.range.start) as usize
    }
}

/// The rounds that are left.
#[derive(Debug)]
pub(super) struct Rounds {
    /// Chunks of each sender.
    streams: Vec<Stream>,
    world: usize,
    round_bytes: u64,
}

/// Chunks that one rank has to send.
#[derive(Debug)]
struct Stream {
    sender: usize,
    /// Chunks that are left, the next one last.
    transfers: Vec<Transfer>,
    /// Bytes of the next one that have been sent.
    sent: u64,
    /// Bytes of all that are left.
    left: u64,
}

/// Bytes that ranks may still send and receive in a round.
struct Budget {
    round_bytes: u64,
    sent: Vec<u64>,
    received: Vec<u64>,
}

impl Rounds {
    /// Rounds in which a rank sends and receives at most `round_bytes`, of the chunks that each
    /// sender has to send.
    pub(super) fn new(
        world: usize,
        round_bytes: usize,
        transfers: BTreeMap<usize, Vec<Transfer>>,
    ) -> Self {
        let mut streams = Vec::new();
        for (sender, mut transfers) in transfers {
            transfers.reverse();
            let left = transfers.iter().map(|transfer| transfer.bytes).sum();
            streams.push(Stream { sender, transfers, sent: 0, left });
        }
        Self { streams, world, round_bytes: round_bytes as u64 }
    }
}

impl Iterator for Rounds {
    type Item = Vec<Piece>;

    /// Returns the pieces of the next round, by sender and in the order in which they are sent. The
    /// senders take turns, first those that have most left.
    fn next(&mut self) -> Option<Vec<Piece>> {
        self.streams.retain(|stream| stream.left > 0);
        self.streams.sort_by_key(|stream| (Reverse(stream.left), stream.sender));
        let mut budget = Budget::new(self.world, self.round_bytes);
        let mut pieces = vec![Vec::new(); self.streams.len()];
        let mut is_full = false;
        while !is_full {
            is_full = true;
            for (stream, pieces) in self.streams.iter_mut().zip(&mut pieces) {
                is_full &= !stream.take_piece(self.round_bytes, &mut budget, pieces);
            }
        }
        let pieces = pieces.concat();
        (!pieces.is_empty()).then_some(pieces)
    }
}

impl Stream {
    /// Adds the next piece to those of a round, if there is room for it.
    fn take_piece(
        &mut self,
        round_bytes: u64,
        budget: &mut Budget,
        pieces: &mut Vec<Piece>,
    ) -> bool {
        let Some(Transfer { id, bytes, receivers }) = self.transfers.last() else { return false };
        let largest = (round_bytes / PIECES.max(receivers.messages())).max(1);
        let len = largest.min(bytes - self.sent);
        if !budget.take(self.sender, receivers, len) {
            return false;
        }
        let range = self.sent..self.sent + len;
        match pieces.last_mut() {
            Some(last) if last.id == *id => last.range.end = range.end,
            _ => {
                let (sender, id, receivers) = (self.sender, *id, receivers.clone());
                pieces.push(Piece { sender, id, range, receivers });
            }
        }
        self.sent += len;
        self.left -= len;
        if self.sent == *bytes {
            self.transfers.pop();
            self.sent = 0;
        }
        true
    }
}

impl Budget {
    fn new(world: usize, round_bytes: u64) -> Self {
        let all = vec![round_bytes; world];
        Self { round_bytes, sent: all.clone(), received: all }
    }

    /// Takes the bytes of one piece; returns whether there were enough of them. To however many
    /// ranks it goes, a sender may send at least one piece.
    fn take(&mut self, sender: usize, receivers: &Receivers, len: u64) -> bool {
        let sent = receivers.messages() * len;
        let is_first = self.sent[sender] == self.round_bytes;
        let fits = |left: &u64| *left >= len;
        let can_receive = match receivers {
            Receivers::All => self.received.iter().all(fits),
            Receivers::Ranks(ranks) => ranks.iter().all(|&rank| fits(&self.received[rank])),
        };
        if !can_receive || self.sent[sender] < sent && !is_first {
            return false;
        }
        self.sent[sender] = self.sent[sender].saturating_sub(sent);
        match receivers {
            Receivers::All => self.received.iter_mut().for_each(|left| *left -= len),
            Receivers::Ranks(ranks) => ranks.iter().for_each(|&rank| self.received[rank] -= len),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn transfer(file: usize, chunk: u64, bytes: u64, receivers: Receivers) -> Transfer {
        let id = ChunkId { shard: ShardId { rank: 0, file }, chunk };
        Transfer { id, bytes, receivers }
    }

    /// Bytes of a rank, of one round or of all.
    #[derive(Debug, Default, Clone, Copy)]
    struct Traffic {
        sent: u64,
        received: u64,
    }

    /// All rounds of an exchange.
    struct Done {
        /// Traffic of each rank.
        traffic: Vec<Traffic>,
        rounds: u64,
    }

    /// Runs all rounds. Checks that each is within its bounds, and that no byte is sent twice or
    /// left out.
    fn run(rounds: Rounds, world: usize, round_bytes: u64) -> Done {
        let mut done = Done { traffic: vec![Traffic::default(); world], rounds: 0 };
        let mut sent: BTreeMap<ChunkId, u64> = BTreeMap::new();
        for pieces in rounds {
            let mut of_round = vec![Traffic::default(); world];
            for piece in &pieces {
                let start = sent.insert(piece.id, piece.range.end).unwrap_or(0);
                assert_eq!(start, piece.range.start);
                let len = piece.len() as u64;
                of_round[piece.sender].sent += len * piece.receivers.messages();
                let receives = |rank: &usize| match &piece.receivers {
                    Receivers::All => *rank != piece.sender,
                    Receivers::Ranks(ranks) => ranks.contains(rank),
                };
                (0..world).filter(receives).for_each(|rank| of_round[rank].received += len);
            }
            for (all, round) in done.traffic.iter_mut().zip(&of_round) {
                assert!(round.sent <= round_bytes && round.received <= round_bytes, "{round:?}");
                all.sent += round.sent;
                all.received += round.received;
            }
            done.rounds += 1;
        }
        done
    }

    /// 70 billion parameters on 64 ranks: a node of eight is new, and the next node has the copies
    /// of its files, 13 GB a rank.
    #[test]
    fn a_lost_node_receives_what_it_wants_and_others_nothing() {
        let chunks = 13_000 / 16;
        let of_sender = |rank: usize| {
            let chunk = |chunk| transfer(rank, chunk, 16 * MIB, Receivers::of(&[rank], 64));
            (rank + 8, (0..chunks).map(chunk).collect())
        };
        let rounds = Rounds::new(64, 64 << 20, (0..8).map(of_sender).collect());
        let done = run(rounds, 64, 64 * MIB);
        for (rank, Traffic { sent, received }) in done.traffic.into_iter().enumerate() {
            assert_eq!(received, if rank < 8 { chunks * 16 * MIB } else { 0 });
            assert_eq!(sent, if (8..16).contains(&rank) { chunks * 16 * MIB } else { 0 });
        }
        assert_eq!(done.rounds, (chunks * 16).div_ceil(64), "all links are busy in each round");
    }

    /// Without a sharded optimizer every rank wants everything that its node does not have.
    #[test]
    fn a_chunk_that_most_want_is_sent_once() {
        let of_sender = |sender: usize| {
            let others: Vec<_> = (0..64).filter(|rank| rank / 8 != sender / 8).collect();
            let chunk = |chunk| transfer(sender, chunk, 16 * MIB, Receivers::of(&others, 64));
            (sender, (0..10).map(chunk).collect())
        };
        let rounds = Rounds::new(64, 64 << 20, (0..64).map(of_sender).collect());
        let Done { traffic, rounds } = run(rounds, 64, 64 * MIB);
        assert!(traffic.iter().all(|rank| rank.sent == 160 * MIB), "{traffic:?}");
        assert!(traffic.iter().all(|rank| rank.received == 63 * 160 * MIB), "{traffic:?}");
        assert_eq!(rounds, 160, "rounds are full");
    }

    #[test]
    fn senders_of_one_receiver_take_turns() {
        let of_sender = |sender: usize| {
            let chunk = |chunk| transfer(sender, chunk, 16 * MIB, Receivers::of(&[0], 64));
            (sender, (0..sender as u64).map(chunk).collect())
        };
        let mut rounds = Rounds::new(64, 64 << 20, (1..9).map(of_sender).collect());
        let first = rounds.next().unwrap();
        let senders: Vec<_> = first.iter().map(|piece| piece.sender).collect();
        assert_eq!(senders, [8, 7, 6, 5, 4, 3, 2, 1], "those with most left first");
        assert!(first.iter().all(|piece| piece.len() == 8 << 20), "{first:?}");
    }

    /// Sizes that nothing divides: chunks larger than rounds, rounds of a byte, worlds with more
    /// ranks than a round has bytes.
    #[test]
    fn rounds_end_whatever_the_sizes() {
        for (world, round_bytes) in [(2_usize, 1), (3, 5), (8, 17), (70, 20), (5, 100)] {
            for wanting in [1, world.div_ceil(3), world / 2, world - 1] {
                let of_sender = |sender: usize| {
                    let wanting: Vec<_> =
                        (1..=wanting).map(|distance| (sender + distance) % world).collect();
                    let chunk = |chunk| {
                        transfer(sender, chunk, 100 - chunk * 7, Receivers::of(&wanting, world))
                    };
                    (sender, (0..5).map(chunk).collect())
                };
                let rounds = Rounds::new(world, round_bytes, (0..world).map(of_sender).collect());
                let allowed = round_bytes.max(wanting) as u64; // at least a byte to each
                let Done { traffic, .. } = run(rounds, world, allowed);
                let is_broadcast = 2 * wanting >= world;
                let received = 430 * if is_broadcast { world - 1 } else { wanting } as u64;
                assert!(traffic.iter().all(|rank| rank.received == received), "{traffic:?}");
            }
        }
    }
}
