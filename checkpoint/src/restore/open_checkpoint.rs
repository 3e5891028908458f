//! A committed checkpoint whose metadata is read: filling boxes from it, and checking it.
//!
//! Data is read one chunk at a time, and nothing is copied from a chunk before its digest has been
//! found right.

use std::time::Duration;

use super::plan::{Coverage, ReadPlan, Source, sources_by_tensor};
use super::retry::retry_while_absent;
use super::shard_reader::ShardReader;
use crate::error::{Error, Result};
use crate::format::index::{Index, ShardEntry};
use crate::format::manifest::Manifest;
use crate::format::name::CheckpointName;
use crate::store::Store;
use crate::tensor::{PartMut, Region, TensorBox};

/// A committed checkpoint whose manifest and indexes are read and checked.
pub(super) struct OpenCheckpoint<'a> {
    pub(super) store: &'a Store,
    pub(super) name: &'a CheckpointName,
    pub(super) manifest: &'a Manifest,
    /// By saved rank.
    pub(super) indexes: Vec<Index>,
    /// How long to wait for each file that does not exist.
    pub(super) timeout: Duration,
}

impl OpenCheckpoint<'_> {
    /// Fills the parts, and returns how many bytes were read. Where several saved ranks have the
    /// same elements, `nearest` is the one whose files are preferred.
    pub(super) fn fill(&self, parts: &mut [PartMut<'_>], nearest: usize) -> Result<u64> {
        let plan = self.plan(parts, nearest)?;
        let mut buffer = Vec::new();
        let mut bytes_read = 0;
        for (shard, chunks) in plan.0 {
            let entry = &self.indexes[shard.rank].files[shard.file];
            let reader = self.reader(shard.rank, entry)?;
            for (chunk, copies) in chunks {
                let start = chunk * entry.chunk_bytes;
                reader.read_chunk(chunk, &mut buffer)?;
                bytes_read += buffer.len() as u64;
                for copy in copies {
                    let from = (copy.source - start) as usize;
                    parts[copy.part].data[copy.target..copy.target + copy.bytes]
                        .copy_from_slice(&buffer[from..from + copy.bytes]);
                }
            }
        }
        Ok(bytes_read)
    }

    /// Opens a shard and checks its size and header.
    pub(super) fn reader<'s>(&self, rank: usize, shard: &'s ShardEntry) -> Result<ShardReader<'s>> {
        let key = self.manifest.rank_key(self.name, rank, &shard.file);
        retry_while_absent(self.timeout, || ShardReader::open(self.store.tier(), &key, shard))
    }

    /// Fails if no rank has saved some box of a tensor of which other boxes are saved.
    pub(super) fn check_coverage(&self) -> Result<()> {
        for (name, sources) in sources_by_tensor(&self.indexes, 0) {
            let first = &sources[0].entry.tensor;
            let whole = TensorBox::whole(name, first.dtype, &first.shape);
            self.cover(&whole, &sources)?;
        }
        Ok(())
    }

    fn plan(&self, parts: &[PartMut<'_>], nearest: usize) -> Result<ReadPlan> {
        let sources = sources_by_tensor(&self.indexes, nearest);
        let mut plan = ReadPlan::default();
        for (part, requested) in parts.iter().enumerate() {
            let requested = &requested.tensor;
            let of_tensor = sources.get(requested.name.as_str()).map_or(&[][..], Vec::as_slice);
            self.check_type(requested, of_tensor)?;
            for (source, common) in self.cover(requested, of_tensor)? {
                let saved = source.entry.tensor.region();
                for run in common.contiguous_runs(&saved, &requested.region()) {
                    plan.add(part, &source, &run, requested.dtype.size_bytes());
                }
            }
        }
        Ok(plan)
    }

    /// Which source supplies which elements of a box.
    fn cover<'s>(
        &self,
        requested: &TensorBox,
        sources: &[Source<'s>],
    ) -> Result<Vec<(Source<'s>, Region)>> {
        let coverage = Coverage::of(&requested.region(), sources);
        match coverage.missing.into_iter().next() {
            None => Ok(coverage.pieces),
            Some(Region { offset, extent }) => Err(Error::Uncovered {
                checkpoint: self.name.to_string(),
                tensor: requested.name.clone(),
                offset,
                extent,
            }),
        }
    }

    fn check_type(&self, requested: &TensorBox, sources: &[Source<'_>]) -> Result<()> {
        for source in sources {
            let saved = &source.entry.tensor;
            if saved.dtype != requested.dtype || saved.shape != requested.shape {
                let key = self.manifest.rank_key(self.name, source.rank, &source.shard.file);
                let describe =
                    |tensor: &TensorBox| format!("{:?} {:?}", tensor.dtype, tensor.shape);
                return Err(Error::Mismatch {
                    path: self.store.tier().path(&key),
                    what: requested.name.clone(),
                    expected: describe(requested),
                    found: describe(saved),
                });
            }
        }
        Ok(())
    }
}
