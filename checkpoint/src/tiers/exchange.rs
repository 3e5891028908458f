//! Chunks that only another rank's node has: that rank reads and verifies them, and sends them to
//! the ranks that want them.
//!
//! A chunk that most ranks want is broadcast, any other is a message to each rank that wants it.
//! All ranks know what all want, and compute the same [rounds](Rounds). A small gather precedes
//! each, so that a rank that cannot read a chunk ends the exchange before anybody waits for it.
//! Receivers check the digest of every chunk once more.

use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::ops::Range;

use super::plan::Source;
use super::rounds::{ChunkId, Piece, Receivers, Rounds, Transfer};
use super::survey::Own;
use super::trial::{Copies, Failure, TierBytes, Trial, Wanted, just};
use crate::error::{Error, Result};
use crate::format::digest::Crc64Stream;
use crate::format::index::ShardEntry;
use crate::restore::{OpenCheckpoint, ShardId, ShardReader};
use crate::tensor::PartMut;

/// Status of a rank before a round.
const CONTINUES: u8 = 0;
const HAS_FAILED: u8 = 1;

pub(super) struct Exchange<'a> {
    pub(super) trial: &'a Trial<'a>,
    pub(super) checkpoint: &'a OpenCheckpoint<'a>,
    /// Copies that this rank makes from what is sent.
    pub(super) copies: &'a Copies,
}

/// Chunks that a rank wants.
struct Want<'a> {
    rank: usize,
    chunks: &'a Range<u64>,
}

/// A chunk of a shard could not be read, or arrived damaged.
struct ShardFailure {
    shard: ShardId,
    error: Error,
}

impl Exchange<'_> {
    /// Sends and receives all that is wanted. Returns this rank's failures. Collective.
    pub(super) fn run(
        &self,
        wanted: &[Vec<Wanted>],
        parts: &mut [PartMut<'_>],
        bytes: &mut [TierBytes],
        own: &mut Own,
    ) -> Result<Vec<Failure>> {
        let peers = self.trial.peers;
        let round_bytes = self.checkpoint.store.options().round_bytes.max(1);
        let mut outgoing = Outgoing::new(self);
        let mut incoming = Incoming::new(self);
        // Not freed after an error, as the network may still access it.
        let mut memory = ManuallyDrop::new(Memory::default());
        let mut failures = Vec::new();
        for pieces in Rounds::new(peers.world(), round_bytes, self.transfers(wanted)) {
            let filled = outgoing.fill(&pieces, &mut memory.sent, bytes);
            let status = if filled.is_ok() { CONTINUES } else { HAS_FAILED };
            let statuses = peers.all_gather(&[status])?;
            if let Err(ShardFailure { shard, error }) = filled {
                let source = self.source(shard);
                failures.push(self.trial.failure(source, just(shard.rank), error, own)?);
            }
            if statuses.iter().any(|status| status[..] != [CONTINUES]) {
                break;
            }
            self.send(&pieces, &mut memory, &mut |piece, data| {
                incoming.take(piece, data, parts, bytes);
            })?;
            for ShardFailure { shard, error } in incoming.damaged.drain(..) {
                let source = self.source(shard);
                let failure = self.trial.failure(source, just(shard.rank), error, own)?;
                failures.push(failure.of_transport());
            }
        }
        drop(ManuallyDrop::into_inner(memory));
        Ok(failures)
    }

    /// Returns what each sender has to send: every chunk that any rank wants, once.
    fn transfers(&self, wanted: &[Vec<Wanted>]) -> BTreeMap<usize, Vec<Transfer>> {
        let mut wants: BTreeMap<ShardId, Vec<Want<'_>>> = BTreeMap::new();
        for (rank, wanted) in wanted.iter().enumerate() {
            for Wanted { shard, chunks } in wanted {
                let of_rank = chunks.iter().map(|chunks| Want { rank, chunks });
                wants.entry(*shard).or_default().extend(of_rank);
            }
        }
        let world = self.trial.peers.world();
        let mut transfers: BTreeMap<usize, Vec<Transfer>> = BTreeMap::new();
        for (shard, wants) in wants {
            let mut ranks: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
            for Want { rank, chunks } in wants {
                chunks.clone().for_each(|chunk| ranks.entry(chunk).or_default().push(rank));
            }
            let of_sender = transfers.entry(self.source(shard).owner()).or_default();
            of_sender.extend(ranks.into_iter().map(|(chunk, ranks)| {
                let id = ChunkId { shard, chunk };
                let receivers = Receivers::of(&ranks, world);
                Transfer { id, bytes: self.chunk_bytes(id), receivers }
            }));
        }
        transfers
    }

    /// Exchanges the pieces of a round, and passes those that arrive to `take`.
    fn send(
        &self,
        pieces: &[Piece],
        memory: &mut Memory,
        take: &mut dyn FnMut(&Piece, &[u8]),
    ) -> Result<()> {
        let peers = self.trial.peers;
        let (rank, world) = (peers.rank(), peers.world());
        let deadline = peers.deadline();
        let pieces = place(pieces, rank);
        for Placed { piece, own } in pieces.iter().filter(|it| it.piece.is_broadcast()) {
            if let Some(own) = own {
                peers.broadcast(rank, &mut memory.sent[own.clone()])?;
            } else {
                let received = memory.split(None, piece.len()).received;
                peers.broadcast(piece.sender, received)?;
                take(piece, received);
            }
        }
        // Ranks at the same distance exchange messages at the same time, the nearest first: none
        // waits for a message that comes after its own.
        for (distance, Messages { sent, received }) in by_distance(&pieces, rank, world) {
            let (to, from) = ((rank + distance) % world, (rank + world - distance) % world);
            for index in 0..sent.len().max(received.len()) {
                let piece = received.get(index);
                let buffers = memory.split(sent.get(index), piece.map_or(0, |piece| piece.len()));
                peers.send_receive(to, buffers.sent, from, buffers.received, deadline)?;
                if let Some(piece) = piece {
                    take(piece, buffers.received);
                }
            }
        }
        Ok(())
    }

    /// The source from which a shard is sent.
    fn source(&self, shard: ShardId) -> Source {
        self.trial.version.sender(shard.rank)
    }

    fn entry(&self, shard: ShardId) -> &ShardEntry {
        &self.checkpoint.indexes[shard.rank].files[shard.file]
    }

    fn chunk_bytes(&self, id: ChunkId) -> u64 {
        let entry = self.entry(id.shard);
        entry.chunk_bytes.min(entry.data_bytes() - id.chunk * entry.chunk_bytes)
    }
}

/// Piece of a round.
struct Placed<'a> {
    piece: &'a Piece,
    /// Its place in the memory for what is sent, if this rank sends it.
    own: Option<Range<usize>>,
}

/// Places the pieces that this rank sends one after another.
fn place(pieces: &[Piece], rank: usize) -> Vec<Placed<'_>> {
    let mut end = 0;
    let mut place = |piece: &Piece| {
        let start = end;
        end += piece.len();
        start..end
    };
    let placed = |piece| Placed { piece, own: (piece.sender == rank).then(|| place(piece)) };
    pieces.iter().map(placed).collect()
}

/// Messages of a round with the ranks at a distance, in the order in which they are sent.
#[derive(Default)]
struct Messages<'a> {
    /// Places in the memory for what is sent.
    sent: Vec<Range<usize>>,
    received: Vec<&'a Piece>,
}

/// Lists the messages of a rank to ranks that are so many places after it, and from those that are
/// as many before it.
fn by_distance<'a>(
    pieces: &[Placed<'a>],
    rank: usize,
    world: usize,
) -> BTreeMap<usize, Messages<'a>> {
    let mut messages: BTreeMap<usize, Messages<'_>> = BTreeMap::new();
    for Placed { piece, own } in pieces {
        let Receivers::Ranks(receivers) = &piece.receivers else { continue };
        if let Some(own) = own {
            for to in receivers.iter() {
                let distance = (to + world - rank) % world;
                messages.entry(distance).or_default().sent.push(own.clone());
            }
        } else if receivers.contains(&rank) {
            let distance = (rank + world - piece.sender) % world;
            messages.entry(distance).or_default().received.push(piece);
        }
    }
    messages
}

/// Memory that messages use.
#[derive(Default)]
struct Memory {
    /// The pieces of a round that this rank sends.
    sent: Vec<u8>,
    /// One piece that it receives. Only grows.
    received: Vec<u8>,
}

/// Buffers of one message each way.
struct Buffers<'a> {
    sent: &'a mut [u8],
    received: &'a mut [u8],
}

impl Memory {
    fn split(&mut self, sent: Option<&Range<usize>>, received: usize) -> Buffers<'_> {
        if self.received.len() < received {
            self.received.resize(received, 0);
        }
        let sent = sent.map_or(&mut [][..], |range| &mut self.sent[range.clone()]);
        Buffers { sent, received: &mut self.received[..received] }
    }
}

/// Chunks that this rank receives.
struct Incoming<'a> {
    exchange: &'a Exchange<'a>,
    /// Digests of chunks of which a part has arrived.
    digests: BTreeMap<ChunkId, Crc64Stream>,
    /// Those that arrived damaged.
    damaged: Vec<ShardFailure>,
}

impl<'a> Incoming<'a> {
    fn new(exchange: &'a Exchange<'a>) -> Self {
        Self { exchange, digests: BTreeMap::new(), damaged: Vec::new() }
    }

    /// Copies what this rank wants of a piece, and checks the chunk that ends with it.
    fn take(
        &mut self,
        piece: &Piece,
        data: &[u8],
        parts: &mut [PartMut<'_>],
        bytes: &mut [TierBytes],
    ) {
        let Exchange { checkpoint, copies, .. } = self.exchange;
        let id @ ChunkId { shard, chunk } = piece.id;
        let Some(copies) = copies.get(&shard).and_then(|chunks| chunks.get(&chunk)) else { return };
        let entry = self.exchange.entry(shard);
        let start = chunk * entry.chunk_bytes + piece.range.start;
        copies.iter().for_each(|copy| copy.fill(data, start, parts));
        bytes[self.exchange.source(shard).tier].received += data.len() as u64;
        let mut digest = self.digests.remove(&id).unwrap_or_else(Crc64Stream::new);
        digest.update(data);
        if piece.range.end < self.exchange.chunk_bytes(id) {
            self.digests.insert(id, digest);
            return;
        }
        let (found, expected) = (digest.finish(), entry.chunk_crc64[chunk as usize]);
        if found != expected {
            let expected = format!("CRC64/NVME {expected} as sent");
            let error = Error::damaged(&checkpoint.path(shard), chunk, expected, found);
            self.damaged.push(ShardFailure { shard, error });
        }
    }
}

/// Chunks that this rank sends.
struct Outgoing<'a> {
    exchange: &'a Exchange<'a>,
    open: Option<OpenShard<'a>>,
    /// The chunk that was read last, verified.
    chunk: Option<ChunkId>,
    buffer: Vec<u8>,
}

struct OpenShard<'a> {
    id: ShardId,
    reader: ShardReader<'a>,
}

impl<'a> Outgoing<'a> {
    fn new(exchange: &'a Exchange<'a>) -> Self {
        Self { exchange, open: None, chunk: None, buffer: Vec::new() }
    }

    /// Replaces the content of `sent` by this rank's pieces of a round.
    fn fill(
        &mut self,
        pieces: &[Piece],
        sent: &mut Vec<u8>,
        bytes: &mut [TierBytes],
    ) -> std::result::Result<(), ShardFailure> {
        sent.clear();
        let rank = self.exchange.trial.peers.rank();
        for Piece { id, range, .. } in pieces.iter().filter(|piece| piece.sender == rank) {
            if self.chunk != Some(*id) {
                let shard = id.shard;
                self.read(*id).map_err(|error| ShardFailure { shard, error })?;
                bytes[self.exchange.source(shard).tier].sent += self.buffer.len() as u64;
            }
            sent.extend_from_slice(&self.buffer[range.start as usize..range.end as usize]);
        }
        Ok(())
    }

    fn read(&mut self, id: ChunkId) -> Result<()> {
        let Exchange { trial, checkpoint, .. } = self.exchange;
        let OpenShard { reader, .. } = match self.open.take() {
            Some(open) if open.id == id.shard => self.open.insert(open),
            _ => {
                let source = self.exchange.source(id.shard);
                let store = trial.views[source.tier].store;
                let entry = self.exchange.entry(id.shard);
                let until = trial.wait_until(source);
                let reader = checkpoint.reader(store, id.shard.rank, entry, until)?;
                self.open.insert(OpenShard { id: id.shard, reader })
            }
        };
        self.chunk = None;
        reader.read_chunk(id.chunk, &mut self.buffer)?;
        self.chunk = Some(id);
        Ok(())
    }
}
