//! Writing what one rank contributes: shards, its state, and its index last.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use crc_fast::CrcAlgorithm;
use serde_json::Value;

use crate::durable;
use crate::format::index::{self, BoxEntry, Index, RankState, ShardEntry, StateEntry};
use crate::format::sealed::seal;
use crate::format::shard;
use crate::{Crc64, Digest, Error, FORMAT, Identity, Observer, Options, Part, Point, Result};

/// Size of a write: large enough for the disk, small enough that the digest finds it in a cache.
const PIECE_BYTES: usize = 4 << 20;

/// Where and as what a rank writes.
pub(crate) struct Job<'a> {
    /// The rank's `dNN`.
    pub(crate) folder: PathBuf,
    pub(crate) identity: &'a Identity,
    pub(crate) options: &'a Options,
    pub(crate) checkpoint: &'a str,
    pub(crate) step: u64,
    pub(crate) rank: usize,
    pub(crate) observer: &'a dyn Observer,
}

/// What a rank wrote.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Written {
    /// Digest inside of its index.
    pub(crate) index: Digest,
    /// Bytes of tensor data.
    pub(crate) bytes: u64,
}

impl Job<'_> {
    /// Writes everything of this rank, durably.
    pub(crate) fn write(&self, parts: &[Part<'_>], rank_state: &Value) -> Result<Written> {
        let mut midway = Midway::new(parts, self.observer);
        let mut files = Vec::new();
        for (number, group) in self.groups(parts).iter().enumerate() {
            files.push(self.write_shard(number, group, &mut midway)?);
        }
        let state = self.write_state(rank_state)?;
        self.observer.reached(Point::ShardBeforeIndex);
        let bytes = files.iter().map(ShardEntry::data_bytes).sum();
        let index = Index {
            format: FORMAT,
            run: self.identity.run.clone(),
            checkpoint: self.checkpoint.to_owned(),
            rank: self.rank,
            files,
            state,
        };
        let (text, digest) = seal(&index);
        durable::write(&self.folder.join(index::index_file(self.rank)), &text)?;
        durable::sync_folder(&self.folder)?;
        Ok(Written { index: digest, bytes })
    }

    /// Parts by file. Wide elements come first, so that all are aligned; order stays otherwise.
    fn groups<'p, 'd>(&self, parts: &'p [Part<'d>]) -> Vec<Vec<&'p Part<'d>>> {
        let mut sorted: Vec<_> = parts.iter().filter(|part| !part.data.is_empty()).collect();
        sorted.sort_by_key(|part| std::cmp::Reverse(part.tensor.dtype.size_bytes()));
        let mut groups: Vec<Vec<&Part<'_>>> = Vec::new();
        let mut bytes = 0;
        for part in sorted {
            bytes += part.data.len() as u64;
            match groups.last_mut() {
                Some(group) if bytes <= self.options.file_bytes_max => group.push(part),
                _ => {
                    bytes = part.data.len() as u64;
                    groups.push(vec![part]);
                }
            }
        }
        groups
    }

    fn write_shard(
        &self,
        number: usize,
        parts: &[&Part<'_>],
        midway: &mut Midway<'_>,
    ) -> Result<ShardEntry> {
        let file = index::shard_file(self.rank, number);
        let path = self.folder.join(&file);
        let staged = durable::temporary(&path);
        let boxes = place(parts);
        let header = shard::header(&self.metadata(), &boxes);
        let chunk_bytes = self.options.chunk_bytes;
        let mut sink = Sink::new(durable::create(&staged)?, chunk_bytes);
        let write = || Error::io::<std::io::Error>(&staged, "write");
        sink.writer.write_all(&header).map_err(write())?;
        for part in parts {
            sink.write(part.data, midway).map_err(write())?;
        }
        let (written, chunk_crc64) = sink.finish().map_err(write())?;
        durable::finish(written, &staged)?;
        durable::rename(&staged, &path)?;
        let data_bytes = boxes.last().map_or(0, |entry| entry.range[1]);
        Ok(ShardEntry {
            file,
            bytes: header.len() as u64 + data_bytes,
            header_bytes: header.len() as u64,
            header_crc64: Crc64::of(&header),
            chunk_bytes,
            chunk_crc64,
            boxes,
        })
    }

    fn write_state(&self, rank_state: &Value) -> Result<StateEntry> {
        let file = index::state_file(self.rank);
        let (text, digest) = seal(&RankState {
            format: FORMAT,
            checkpoint: self.checkpoint.to_owned(),
            rank: self.rank,
            state: rank_state.clone(),
        });
        durable::write(&self.folder.join(&file), &text)?;
        Ok(StateEntry { file, digest })
    }

    /// What each shard says about itself, so that a stray file can be told.
    fn metadata(&self) -> BTreeMap<&'static str, String> {
        BTreeMap::from([
            ("format", FORMAT.to_string()),
            ("run", self.identity.run.clone()),
            ("checkpoint", self.checkpoint.to_owned()),
            ("step", self.step.to_string()),
            ("rank", self.rank.to_string()),
        ])
    }
}

/// Lays parts one behind the other.
fn place(parts: &[&Part<'_>]) -> Vec<BoxEntry> {
    let mut end = 0;
    let place = |part: &&Part<'_>| {
        let start = end;
        end += part.data.len() as u64;
        BoxEntry { tensor: part.tensor.clone(), range: [start, end] }
    };
    parts.iter().map(place).collect()
}

/// Announces [`Point::MidShard`] when half of a rank's bytes are with the system.
struct Midway<'a> {
    /// Bytes left to the middle; `None` when passed.
    left: Option<usize>,
    observer: &'a dyn Observer,
}

impl<'a> Midway<'a> {
    fn new(parts: &[Part<'_>], observer: &'a dyn Observer) -> Self {
        let total: usize = parts.iter().map(|part| part.data.len()).sum();
        Self { left: (total > 0).then_some(total.div_ceil(2)), observer }
    }

    fn limit(&self, bytes: usize) -> usize {
        self.left.map_or(bytes, |left| bytes.min(left))
    }

    fn advance(&mut self, bytes: usize, writer: &mut BufWriter<File>) -> std::io::Result<()> {
        self.left = match self.left {
            Some(left) if left == bytes => {
                writer.flush()?;
                self.observer.reached(Point::MidShard);
                None
            }
            left => left.map(|left| left - bytes),
        };
        Ok(())
    }
}

/// A shard's data on its way to the file, digested chunk by chunk.
struct Sink {
    writer: BufWriter<File>,
    digest: crc_fast::Digest,
    chunk_bytes: usize,
    /// Bytes left in this chunk.
    left: usize,
    chunks: Vec<Crc64>,
}

impl Sink {
    fn new(file: File, chunk_bytes: u64) -> Self {
        let chunk_bytes = chunk_bytes as usize;
        Self {
            writer: BufWriter::with_capacity(PIECE_BYTES, file),
            digest: crc_fast::Digest::new(CrcAlgorithm::Crc64Nvme),
            chunk_bytes,
            left: chunk_bytes,
            chunks: Vec::new(),
        }
    }

    fn write(&mut self, mut data: &[u8], midway: &mut Midway<'_>) -> std::io::Result<()> {
        while !data.is_empty() {
            let bytes = midway.limit(data.len().min(PIECE_BYTES).min(self.left));
            let (piece, rest) = data.split_at(bytes);
            self.digest.update(piece);
            self.writer.write_all(piece)?;
            self.left -= bytes;
            if self.left == 0 {
                self.close_chunk();
            }
            midway.advance(bytes, &mut self.writer)?;
            data = rest;
        }
        Ok(())
    }

    fn close_chunk(&mut self) {
        self.chunks.push(Crc64(self.digest.finalize_reset()));
        self.left = self.chunk_bytes;
    }

    fn finish(mut self) -> std::io::Result<(File, Vec<Crc64>)> {
        if self.left < self.chunk_bytes {
            self.close_chunk();
        }
        let file = self.writer.into_inner().map_err(|error| error.into_error())?;
        Ok((file, self.chunks))
    }
}
