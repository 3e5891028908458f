//! Writer of one rank's files: shards, and its index last.

use std::collections::BTreeMap;

use super::bytes::ByteSource;
use super::chunk_writer::{ChunkWriter, Midway};
use crate::error::Result;
use crate::failpoints::{Failpoint, Failpoints};
use crate::format::FORMAT;
use crate::format::digest::{Crc64, Digest};
use crate::format::index::{BoxEntry, Index, ShardEntry, index_file, shard_file};
use crate::format::limits::{INDEX_BYTES_MAX, check_size};
use crate::format::manifest::rank_folder;
use crate::format::name::CheckpointName;
use crate::format::sealed::seal;
use crate::format::shard;
use crate::store::{Identity, Options, Store};
use crate::tensor::TensorBox;

/// Writer of a rank's files in a checkpoint.
pub(super) struct RankWriter<'a> {
    store: &'a Store,
    /// Key of the rank's `dNN`.
    folder: String,
    identity: &'a Identity,
    options: &'a Options,
    checkpoint: String,
    step: u64,
    rank: usize,
    failpoints: &'a dyn Failpoints,
}

/// Files that a rank has written.
#[derive(Debug, Clone, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct RankFiles {
    /// Digest inside of its index.
    pub(super) index: Digest,
    /// Size of its index.
    pub(super) index_bytes: u64,
    /// Bytes of tensor data.
    pub(super) bytes: u64,
    /// Size of all files.
    pub(super) stored_bytes: u64,
}

/// Returns the order in which boxes are written, as positions among those given: wide elements
/// first, so that all are aligned; otherwise the order stays. Empty boxes are left out.
pub(super) fn order<'a>(boxes: impl Iterator<Item = &'a TensorBox>) -> Vec<usize> {
    let mut order: Vec<_> =
        boxes.enumerate().filter(|(_, tensor)| tensor.size_bytes() > 0).collect();
    order.sort_by_key(|(_, tensor)| std::cmp::Reverse(tensor.dtype.size_bytes()));
    order.into_iter().map(|(index, _)| index).collect()
}

impl<'a> RankWriter<'a> {
    pub(super) fn new(
        store: &'a Store,
        name: &CheckpointName,
        rank: usize,
        failpoints: &'a dyn Failpoints,
    ) -> Self {
        let options = store.options();
        Self {
            store,
            folder: rank_folder(name, rank, options.ranks_per_folder),
            identity: store.identity(),
            options,
            checkpoint: name.to_string(),
            step: name.step,
            rank,
            failpoints,
        }
    }

    /// Writes all files of this rank, durably: the boxes in [`order`].
    pub(super) fn write(
        &self,
        boxes: &[&TensorBox],
        source: &mut dyn ByteSource,
    ) -> Result<RankFiles> {
        self.failpoints.hit(Failpoint::BeforeShard);
        let mut midway = Midway::new(boxes, self.failpoints);
        let mut files = Vec::new();
        for (number, group) in self.group_by_file(boxes).iter().enumerate() {
            files.push(self.write_shard(number, group, source, &mut midway)?);
        }
        self.failpoints.hit(Failpoint::ShardBeforeIndex);
        let bytes = files.iter().map(ShardEntry::data_bytes).sum();
        let shard_bytes: u64 = files.iter().map(|shard| shard.bytes).sum();
        let (text, index) = seal(&Index {
            format: FORMAT,
            run: self.identity.run.clone(),
            checkpoint: self.checkpoint.clone(),
            rank: self.rank,
            files,
        });
        let key = format!("{}/{}", self.folder, index_file(self.rank));
        self.store.set_at(Some(&key));
        check_size(&self.store.tier().path(&key), &text, INDEX_BYTES_MAX)?;
        self.store.tier().replace(&key, &text)?;
        self.failpoints.hit(Failpoint::IndexBeforeVote);
        let index_bytes = text.len() as u64;
        Ok(RankFiles { index, index_bytes, bytes, stored_bytes: index_bytes + shard_bytes })
    }

    fn group_by_file<'t>(&self, boxes: &[&'t TensorBox]) -> Vec<Vec<&'t TensorBox>> {
        let mut groups: Vec<Vec<&TensorBox>> = Vec::new();
        let mut bytes = 0;
        for tensor in boxes {
            bytes += tensor.size_bytes() as u64;
            match groups.last_mut() {
                Some(group) if bytes <= self.options.file_bytes_max => group.push(tensor),
                _ => {
                    bytes = tensor.size_bytes() as u64;
                    groups.push(vec![tensor]);
                }
            }
        }
        groups
    }

    fn write_shard(
        &self,
        number: usize,
        tensors: &[&TensorBox],
        source: &mut dyn ByteSource,
        midway: &mut Midway<'_>,
    ) -> Result<ShardEntry> {
        let file = shard_file(self.rank, number);
        let boxes = lay_out(tensors);
        let header = shard::header(&self.metadata(), &boxes);
        let chunk_bytes = self.options.chunk_bytes;
        let key = format!("{}/{file}", self.folder);
        self.store.set_at(Some(&key));
        let upload = self.store.tier().create(&key)?;
        let mut writer = ChunkWriter::new(upload, chunk_bytes);
        writer.write_header(&header)?;
        for tensor in tensors {
            source.take(tensor.size_bytes(), &mut |bytes| Ok(writer.write_data(bytes, midway)?))?;
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

    /// Returns the metadata in each shard's header, which identifies a stray file.
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

/// Gives each box its range in the file, one after the other.
fn lay_out(boxes: &[&TensorBox]) -> Vec<BoxEntry> {
    let mut end = 0;
    let next = |tensor: &&TensorBox| {
        let start = end;
        end += tensor.size_bytes() as u64;
        BoxEntry { tensor: (*tensor).clone(), range: [start, end] }
    };
    boxes.iter().map(next).collect()
}
