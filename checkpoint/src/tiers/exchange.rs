//! Chunks that only another rank's node has: that rank reads and verifies them, and sends them to
//! all.
//!
//! Without a sharded optimizer every rank needs everything, so a broadcast is right. Each sender's
//! chunks are one stream of bytes, of which every round carries the same share, so that memory is
//! bounded whatever the world and however an all-gather is implemented. Receivers check the digest
//! of every chunk once more.

use std::collections::{BTreeMap, BTreeSet};

use super::plan::Source;
use super::survey::Own;
use super::trial::{Copies, Failure, TierBytes, Trial, Wanted, just};
use crate::error::{Error, Result};
use crate::format::digest::Crc64Stream;
use crate::format::index::ShardEntry;
use crate::peers::PeersError;
use crate::restore::{OpenCheckpoint, ShardId, ShardReader};
use crate::tensor::PartMut;

/// First byte of a rank's payload.
const CONTINUES: u8 = 0;
const HAS_FAILED: u8 = 1;

pub(super) struct Exchange<'a> {
    pub(super) trial: &'a Trial<'a>,
    pub(super) checkpoint: &'a OpenCheckpoint<'a>,
    /// Copies that this rank makes from what is sent.
    pub(super) copies: &'a Copies,
}

/// Chunk that is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ChunkId {
    shard: ShardId,
    chunk: u64,
}

/// Chunks that one rank sends, as all ranks know them.
struct Stream {
    source: Source,
    /// Chunks that are left, the next one last.
    chunks: Vec<ChunkId>,
    /// Bytes of the next one that have been sent.
    sent: u64,
    digest: Crc64Stream,
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
        let share = (self.checkpoint.store.options().round_bytes / peers.world()).max(1) as u64;
        let mut streams = self.streams(wanted);
        let mut failures = Vec::new();
        let mut outgoing = streams.get(&peers.rank()).map(|stream| Outgoing::new(self, stream));
        while streams.values().any(|stream| !stream.chunks.is_empty()) {
            let mut payload = vec![CONTINUES];
            if let Some(outgoing) = &mut outgoing
                && let Err((shard, error)) = outgoing.fill(share, &mut payload, bytes)
            {
                payload = vec![HAS_FAILED];
                failures.push(self.trial.failure(outgoing.source, just(shard.rank), error, own)?);
            }
            let payloads = peers.all_gather(&payload)?;
            if payloads.iter().any(|payload| payload.first() == Some(&HAS_FAILED)) {
                break;
            }
            for (&sender, stream) in &mut streams {
                let received = payloads[sender].get(1..).unwrap_or_default();
                let damaged = self.receive(stream, received, share, parts, bytes)?;
                for (shard, error) in damaged {
                    let failure =
                        self.trial.failure(stream.source, just(shard.rank), error, own)?;
                    failures.push(failure.of_transport());
                }
            }
        }
        Ok(failures)
    }

    /// Returns the stream of each sender: every chunk that any rank wants, once.
    fn streams(&self, wanted: &[Vec<Wanted>]) -> BTreeMap<usize, Stream> {
        let mut chunks = BTreeSet::new();
        for Wanted { shard, chunks: ranges } in wanted.iter().flatten() {
            let ids = ranges.iter().cloned().flatten();
            chunks.extend(ids.map(|chunk| ChunkId { shard: *shard, chunk }));
        }
        let mut streams: BTreeMap<usize, Stream> = BTreeMap::new();
        for id in chunks.into_iter().rev() {
            let source = self.trial.version.sender(id.shard.rank);
            let stream = streams.entry(source.owner()).or_insert_with(|| Stream {
                source,
                chunks: Vec::new(),
                sent: 0,
                digest: Crc64Stream::new(),
            });
            stream.chunks.push(id);
        }
        streams
    }

    fn entry(&self, shard: ShardId) -> &ShardEntry {
        &self.checkpoint.indexes[shard.rank].files[shard.file]
    }

    fn chunk_bytes(&self, id: ChunkId) -> u64 {
        let entry = self.entry(id.shard);
        entry.chunk_bytes.min(entry.data_bytes() - id.chunk * entry.chunk_bytes)
    }

    /// Takes the share of one stream: copies what this rank wants, and checks chunks as they end.
    /// Returns those that arrived damaged.
    fn receive(
        &self,
        stream: &mut Stream,
        mut received: &[u8],
        share: u64,
        parts: &mut [PartMut<'_>],
        bytes: &mut [TierBytes],
    ) -> Result<Vec<(ShardId, Error)>> {
        let mut damaged = Vec::new();
        let mut left = share;
        while left > 0
            && let Some(&id) = stream.chunks.last()
        {
            let size = self.chunk_bytes(id);
            let now = left.min(size - stream.sent);
            let Some((piece, rest)) = received.split_at_checked(now as usize) else {
                let rank = stream.source.owner();
                return Err(PeersError::new(format!("rank {rank} sent too few bytes")).into());
            };
            let entry = self.entry(id.shard);
            let copies = self.copies.get(&id.shard).and_then(|chunks| chunks.get(&id.chunk));
            if let Some(copies) = copies {
                let start = id.chunk * entry.chunk_bytes + stream.sent;
                copies.iter().for_each(|copy| copy.fill(piece, start, parts));
                stream.digest.update(piece);
                bytes[stream.source.tier].received += now;
            }
            stream.sent += now;
            left -= now;
            received = rest;
            if stream.sent == size {
                stream.chunks.pop();
                stream.sent = 0;
                let found = stream.digest.finish();
                let expected = entry.chunk_crc64[id.chunk as usize];
                if copies.is_some() && found != expected {
                    let path = self.checkpoint.path(id.shard);
                    let expected = format!("CRC64/NVME {expected} as sent");
                    damaged.push((id.shard, Error::damaged(&path, id.chunk, expected, found)));
                }
            }
        }
        Ok(damaged)
    }
}

/// Chunks that this rank sends.
struct Outgoing<'a> {
    exchange: &'a Exchange<'a>,
    source: Source,
    /// Chunks that are left, the next one last.
    chunks: Vec<ChunkId>,
    open: Option<(ShardId, ShardReader<'a>)>,
    /// A verified chunk, and how much of it has been sent.
    buffer: Vec<u8>,
    sent: usize,
}

impl<'a> Outgoing<'a> {
    fn new(exchange: &'a Exchange<'a>, stream: &Stream) -> Self {
        let Stream { source, chunks, .. } = stream;
        let chunks = chunks.clone();
        Self { exchange, source: *source, chunks, open: None, buffer: Vec::new(), sent: 0 }
    }

    /// Appends this rank's share of a round.
    fn fill(
        &mut self,
        share: u64,
        payload: &mut Vec<u8>,
        bytes: &mut [TierBytes],
    ) -> std::result::Result<(), (ShardId, Error)> {
        let mut left = share as usize;
        while left > 0 {
            if self.sent == self.buffer.len() {
                let Some(next) = self.chunks.pop() else { break };
                self.read(next).map_err(|error| (next.shard, error))?;
                bytes[self.source.tier].sent += self.buffer.len() as u64;
            }
            let now = left.min(self.buffer.len() - self.sent);
            payload.extend_from_slice(&self.buffer[self.sent..self.sent + now]);
            self.sent += now;
            left -= now;
        }
        Ok(())
    }

    fn read(&mut self, ChunkId { shard, chunk }: ChunkId) -> Result<()> {
        let Exchange { trial, checkpoint, .. } = self.exchange;
        let reader = match self.open.take() {
            Some((open, reader)) if open == shard => reader,
            _ => {
                let store = trial.views[self.source.tier].store;
                let entry = self.exchange.entry(shard);
                checkpoint.reader(store, shard.rank, entry, trial.wait_until(self.source))?
            }
        };
        self.sent = 0;
        self.buffer.clear();
        reader.read_chunk(chunk, &mut self.buffer)?;
        self.open = Some((shard, reader));
        Ok(())
    }
}
