//! Writing the files of one rank: shards, and its index last.

use std::collections::BTreeMap;

use super::chunk_writer::{ChunkWriter, Midway};
use crate::error::Result;
use crate::failpoints::{Failpoint, Failpoints};
use crate::format::FORMAT;
use crate::format::digest::{Crc64, Digest};
use crate::format::index::{BoxEntry, Index, ShardEntry, index_file, shard_file};
use crate::format::manifest::rank_folder;
use crate::format::name::CheckpointName;
use crate::format::sealed::seal;
use crate::format::shard;
use crate::store::{Identity, Options, Store};
use crate::tensor::Part;
use crate::tier::Tier;

/// Where and as what a rank writes.
pub(super) struct RankWriter<'a> {
    tier: &'a dyn Tier,
    /// Key of the rank's `dNN`.
    folder: String,
    identity: &'a Identity,
    options: &'a Options,
    checkpoint: String,
    step: u64,
    rank: usize,
    failpoints: &'a dyn Failpoints,
}

/// What a rank has written.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Written {
    /// Digest inside of its index.
    pub(super) index: Digest,
    /// Bytes of tensor data.
    pub(super) bytes: u64,
}

impl<'a> RankWriter<'a> {
    pub(super) fn new(
        store: &'a Store,
        name: &CheckpointName,
        step: u64,
        rank: usize,
        failpoints: &'a dyn Failpoints,
    ) -> Self {
        let options = store.options();
        Self {
            tier: store.tier(),
            folder: rank_folder(name, rank, options.ranks_per_folder),
            identity: store.identity(),
            options,
            checkpoint: name.to_string(),
            step,
            rank,
            failpoints,
        }
    }

    /// Writes all files of this rank, durably.
    pub(super) fn write(&self, parts: &[Part<'_>]) -> Result<Written> {
        self.failpoints.hit(Failpoint::BeforeShard);
        let mut midway = Midway::new(parts, self.failpoints);
        let mut files = Vec::new();
        for (number, group) in self.group_by_file(parts).iter().enumerate() {
            files.push(self.write_shard(number, group, &mut midway)?);
        }
        self.failpoints.hit(Failpoint::ShardBeforeIndex);
        let bytes = files.iter().map(ShardEntry::data_bytes).sum();
        let (text, index) = seal(&Index {
            format: FORMAT,
            run: self.identity.run.clone(),
            checkpoint: self.checkpoint.clone(),
            rank: self.rank,
            files,
        });
        self.tier.replace(&format!("{}/{}", self.folder, index_file(self.rank)), &text)?;
        self.failpoints.hit(Failpoint::IndexBeforeVote);
        Ok(Written { index, bytes })
    }

    /// Wide elements come first, so that all are aligned; otherwise the order stays.
    fn group_by_file<'p, 'd>(&self, parts: &'p [Part<'d>]) -> Vec<Vec<&'p Part<'d>>> {
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
        let file = shard_file(self.rank, number);
        let boxes = lay_out(parts);
        let header = shard::header(&self.metadata(), &boxes);
        let chunk_bytes = self.options.chunk_bytes;
        let upload = self.tier.create(&format!("{}/{file}", self.folder))?;
        let mut writer = ChunkWriter::new(upload, chunk_bytes);
        writer.write_header(&header)?;
        for part in parts {
            writer.write_data(part.data, midway)?;
        }
        let chunk_crc64 = writer.finish()?;
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

    /// What each shard's header says of it, so that a stray file can be identified.
    fn metadata(&self) -> BTreeMap<&'static str, String> {
        BTreeMap::from([
            ("format", FORMAT.to_string()),
            ("run", self.identity.run.clone()),
            ("checkpoint", self.checkpoint.clone()),
            ("step", self.step.to_string()),
            ("rank", self.rank.to_string()),
        ])
    }
}

/// Gives each part its range in the file, one after the other.
fn lay_out(parts: &[&Part<'_>]) -> Vec<BoxEntry> {
    let mut end = 0;
    let next = |part: &&Part<'_>| {
        let start = end;
        end += part.data.len() as u64;
        BoxEntry { tensor: part.tensor.clone(), range: [start, end] }
    };
    parts.iter().map(next).collect()
}
