//! Committed checkpoint whose metadata is read: plans and checks reads of boxes from it.

use std::path::PathBuf;
use std::time::Instant;

use super::plan::{Coverage, ReadPlan, SavedBox, ShardId, boxes_by_tensor};
use super::retry::retry_while_absent;
use super::shard_reader::ShardReader;
use crate::error::{Error, Result};
use crate::format::index::{Index, ShardEntry};
use crate::format::manifest::Manifest;
use crate::format::name::CheckpointName;
use crate::store::Store;
use crate::tensor::{PartMut, Region, TensorBox};

/// A committed checkpoint whose manifest and indexes are read and checked.
pub(crate) struct OpenCheckpoint<'a> {
    /// Store that has it, for messages.
    pub(crate) store: &'a Store,
    pub(crate) name: &'a CheckpointName,
    pub(crate) manifest: &'a Manifest,
    /// Indexes, by saved rank.
    pub(crate) indexes: Vec<Index>,
}

impl OpenCheckpoint<'_> {
    /// Opens a shard on a store, and checks its size and header; waits for a file that does not
    /// exist yet, until a moment that all files of an operation have in common.
    pub(crate) fn reader<'s>(
        &self,
        store: &'s Store,
        rank: usize,
        shard: &'s ShardEntry,
        until: Instant,
    ) -> Result<ShardReader<'s>> {
        let key = self.manifest.rank_key(self.name, rank, &shard.file);
        retry_while_absent(until, || ShardReader::open(store, &key, shard))
    }

    /// Returns the path of a shard, for messages.
    pub(crate) fn path(&self, shard: ShardId) -> PathBuf {
        let file = &self.indexes[shard.rank].files[shard.file].file;
        self.store.tier().path(&self.manifest.rank_key(self.name, shard.rank, file))
    }

    /// Plans the reads that fill the parts. Where several saved ranks have the same elements, the
    /// files of `nearest` are preferred.
    pub(crate) fn plan(&self, parts: &[PartMut<'_>], nearest: usize) -> Result<ReadPlan> {
        let sources = boxes_by_tensor(&self.indexes, nearest);
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

    /// Assigns the elements of a box to sources.
    fn cover<'s>(
        &self,
        requested: &TensorBox,
        sources: &[SavedBox<'s>],
    ) -> Result<Vec<(SavedBox<'s>, Region)>> {
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

    fn check_type(&self, requested: &TensorBox, sources: &[SavedBox<'_>]) -> Result<()> {
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
