//! Partner copies: on a tier of node scope, each rank's files are on the disk of another node too.
//!
//! When all ranks have written, and before the manifest is published, ranks exchange their files in
//! rounds. Between two rounds a thread writes the bytes of the last round to the tier, under the
//! names that their owner gave them, and reads those of the next one, while training continues. The
//! pieces of the staging memory carry them: the state that was in these is written by then.

mod incoming;
mod outgoing;

use std::mem::ManuallyDrop;
use std::time::Instant;

use super::protocol::{Participant, Written};
use super::staging::{Loan, PIECE_BYTES, Piece};
use crate::error::Result;
use crate::failpoints::Failpoint;
use crate::format::manifest::Manifest;
use crate::peers::Peers;

use incoming::Incoming;
use outgoing::Outgoing;

/// Most pieces that a rank sends in one round, 512 MiB: a slow link then does not stop training for
/// long at once.
const ROUND_PIECES_MAX: usize = 128;

/// The ranks with which a rank exchanges copies, both on other nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partner {
    /// The rank whose node keeps a copy of this rank's files.
    pub keeper: usize,
    /// The rank whose files this rank's node keeps a copy of.
    pub kept: usize,
}

impl Partner {
    /// Returns the partners of a rank, given the node of every rank: in the order of nodes, ranks
    /// that are as far apart as the largest node has ranks. `None` if the job is on one node, or
    /// more than half of its ranks are: no permutation then brings each file to another node.
    ///
    /// # Panics
    /// When there is no such rank.
    pub fn of(rank: usize, node_of_rank: &[usize]) -> Option<Self> {
        Some(Self::of_all(node_of_rank)?[rank])
    }

    /// Returns the partners of all ranks, by rank; `None` as of [`Partner::of`].
    pub fn of_all(node_of_rank: &[usize]) -> Option<Vec<Self>> {
        let world = node_of_rank.len();
        let mut order: Vec<usize> = (0..world).collect();
        order.sort_by_key(|&rank| node_of_rank[rank]);
        let nodes = order.chunk_by(|&a, &b| node_of_rank[a] == node_of_rank[b]);
        let distance = nodes.map(<[usize]>::len).max().unwrap_or(0);
        if 2 * distance > world {
            return None;
        }
        let mut partners = vec![Self { keeper: 0, kept: 0 }; world];
        for (position, &rank) in order.iter().enumerate() {
            partners[rank].keeper = order[(position + distance) % world];
            partners[rank].kept = order[(position + world - distance) % world];
        }
        Some(partners)
    }
}

/// Division of the ranks' files into rounds; the same on all ranks.
#[derive(Debug, Clone, Copy)]
struct Rounds {
    /// Bytes of a rank in one round.
    bytes: u64,
    count: u64,
}

impl Rounds {
    /// Half of the pieces of the smallest staging memory are sent at once, as the other half
    /// receives.
    fn of(votes: &[Written]) -> Self {
        let pieces = votes.iter().map(|vote| vote.staging_pieces / 2).min().unwrap_or(0);
        let bytes = (pieces.clamp(1, ROUND_PIECES_MAX) * PIECE_BYTES) as u64;
        let longest = votes.iter().map(|vote| vote.files.stored_bytes).max().unwrap_or(0);
        Self { bytes, count: longest.div_ceil(bytes) }
    }

    /// Returns the sizes of the pieces of a round, of so many bytes in all rounds.
    fn pieces(self, round: u64, total_bytes: u64) -> impl Iterator<Item = usize> {
        let bytes = total_bytes.saturating_sub(round * self.bytes).min(self.bytes) as usize;
        (0..bytes).step_by(PIECE_BYTES).map(move |start| (bytes - start).min(PIECE_BYTES))
    }
}

/// Exchange of the files of one save.
#[derive(Debug)]
pub(super) struct PartnerCopy {
    partner: Partner,
    rounds: Rounds,
    /// Rounds that were exchanged.
    exchanged: u64,
    manifest: Manifest,
    outgoing: Outgoing,
    incoming: Incoming,
    /// Bytes that this rank sends and receives, over all rounds.
    sent_bytes: u64,
    received_bytes: u64,
    /// Bytes of the next round.
    sent: Vec<Piece>,
    /// Bytes of the last one.
    received: Vec<Piece>,
    staging: Loan,
}

impl PartnerCopy {
    /// Plans the exchange of what all ranks have written.
    pub(super) fn new(
        partner: Partner,
        participant: &Participant<'_>,
        votes: &[Written],
        staging: Loan,
    ) -> Self {
        let stored_bytes = |rank: usize| votes[rank].files.stored_bytes;
        Self {
            partner,
            rounds: Rounds::of(votes),
            exchanged: 0,
            manifest: participant.manifest(votes),
            outgoing: Outgoing::new(participant.rank),
            incoming: Incoming::new(partner.kept, votes[partner.kept].files.index_bytes),
            sent_bytes: stored_bytes(participant.rank),
            received_bytes: stored_bytes(partner.kept),
            sent: Vec::new(),
            received: Vec::new(),
            staging,
        }
    }

    /// Returns whether all rounds were exchanged.
    pub(super) fn is_exchanged(&self) -> bool {
        self.exchanged == self.rounds.count
    }

    /// Writes the bytes of the last round, and reads those of the next one. After the last round
    /// the copy is durable when this returns.
    pub(super) fn work(&mut self, participant: &Participant<'_>) -> Result<()> {
        for piece in self.received.drain(..) {
            self.incoming.take(participant, &self.manifest, piece.bytes())?;
        }
        if self.exchanged == 1 {
            participant.failpoints.hit(Failpoint::MidPartnerCopy);
        }
        if self.is_exchanged() {
            self.incoming.finish(participant, &self.manifest)?;
            participant.failpoints.hit(Failpoint::PartnerCopyBeforeVote);
            return Ok(());
        }
        for len in self.rounds.pieces(self.exchanged, self.sent_bytes) {
            let mut piece = self.staging.take_piece(len);
            self.outgoing.fill(participant, &self.manifest, piece.bytes_mut())?;
            self.sent.push(piece);
        }
        Ok(())
    }

    /// Exchanges one round, until the deadline. For the thread that talks to other ranks.
    ///
    /// # Errors
    /// [`Error::Peers`](crate::Error::Peers). The memory stays with the operation, which may still
    /// use it.
    pub(super) fn exchange(mut self, peers: &dyn Peers, deadline: Instant) -> Result<Self> {
        let sizes = self.rounds.pieces(self.exchanged, self.received_bytes);
        self.received.extend(sizes.map(|len| self.staging.take_piece(len)));
        // Not freed after an error, as the network may still access it.
        let mut copy = ManuallyDrop::new(self);
        let Self { partner, sent, received, .. } = &mut *copy;
        for index in 0..sent.len().max(received.len()) {
            let sent = sent.get_mut(index).map_or(&mut [][..], Piece::bytes_mut);
            let received = received.get_mut(index).map_or(&mut [][..], Piece::bytes_mut);
            peers.send_receive(partner.keeper, sent, partner.kept, received, deadline)?;
        }
        let mut copy = ManuallyDrop::into_inner(copy);
        copy.exchanged += 1;
        copy.sent.clear();
        Ok(copy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that each rank's copy is on another node, and that ranks agree on who keeps whose.
    fn check(node_of_rank: &[usize]) {
        let partners: Vec<_> = (0..node_of_rank.len())
            .map(|rank| Partner::of(rank, node_of_rank).unwrap_or_else(|| panic!("{rank}")))
            .collect();
        for (rank, partner) in partners.iter().enumerate() {
            assert_ne!(node_of_rank[rank], node_of_rank[partner.keeper], "{node_of_rank:?}");
            assert_eq!(partners[partner.keeper].kept, rank, "{node_of_rank:?}");
        }
    }

    #[test]
    fn each_copy_is_on_another_node() {
        for nodes in 2..6 {
            for ranks in 1..5 {
                check(&(0..nodes * ranks).map(|rank| rank / ranks).collect::<Vec<_>>());
                check(&(0..nodes * ranks).map(|rank| rank % nodes).collect::<Vec<_>>());
            }
        }
        check(&[0, 0, 0, 1, 2, 2]);
        check(&[2, 1, 0, 0, 0, 1, 2]);
    }

    #[test]
    fn a_shard_group_on_a_node_has_its_copy_in_the_next_replica() {
        let node_of_rank = [0, 0, 1, 1, 2, 2];
        let keepers = (0..6).map(|rank| Partner::of(rank, &node_of_rank).unwrap().keeper);
        assert!(keepers.eq([2, 3, 4, 5, 0, 1]), "the same coordinate in the shard group");
    }

    #[test]
    fn a_node_with_more_than_half_of_the_ranks_has_no_partners() {
        for node_of_rank in [&[0][..], &[0, 0], &[0, 1, 0], &[0, 1, 1, 1, 2]] {
            assert_eq!(Partner::of(0, node_of_rank), None, "{node_of_rank:?}");
        }
    }

    #[test]
    fn rounds_carry_every_byte_once() {
        let rounds = Rounds { bytes: 3 * PIECE_BYTES as u64, count: 3 };
        let piece = PIECE_BYTES as u64;
        for total in [0, 1, piece, 3 * piece, 3 * piece + 1, 7 * piece - 1, 9 * piece] {
            let carried = (0..3).flat_map(|round| rounds.pieces(round, total));
            assert_eq!(carried.map(|len| len as u64).sum::<u64>(), total);
        }
    }
}
