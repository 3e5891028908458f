//! Plan of the reads that fill boxes from the shards of any number of ranks.
//!
//! Each requested box is intersected with the saved ones, and the result becomes copies within
//! chunks.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use crate::format::index::{BoxEntry, Index, ShardEntry};
use crate::tensor::{ContiguousRun, PartMut, Region};

/// A saved box and where it is.
#[derive(Clone, Copy)]
pub(super) struct SavedBox<'a> {
    pub(super) rank: usize,
    /// Number of the file among those of the rank.
    pub(super) file: usize,
    pub(super) shard: &'a ShardEntry,
    pub(super) entry: &'a BoxEntry,
}

/// Groups all saved boxes by tensor. Those of the saved rank `nearest` are first, then those of the
/// ranks after it.
pub(super) fn boxes_by_tensor(
    indexes: &[Index],
    nearest: usize,
) -> HashMap<&str, Vec<SavedBox<'_>>> {
    let mut sources: HashMap<&str, Vec<SavedBox<'_>>> = HashMap::new();
    let world = indexes.len();
    for rank in (0..world).map(|distance| (nearest + distance) % world) {
        for (file, shard) in indexes[rank].files.iter().enumerate() {
            for entry in &shard.boxes {
                let of_tensor = sources.entry(entry.tensor.name.as_str()).or_default();
                of_tensor.push(SavedBox { rank, file, shard, entry });
            }
        }
    }
    sources
}

/// Assignment of elements to sources, each element once, and the elements that no source has.
pub(super) struct Coverage<'a> {
    pub(super) pieces: Vec<(SavedBox<'a>, Region)>,
    pub(super) missing: Vec<Region>,
}

impl<'a> Coverage<'a> {
    /// Takes each element of `wanted` from the first source that has it.
    pub(super) fn of(wanted: &Region, sources: &[SavedBox<'a>]) -> Self {
        let is_empty = wanted.extent.contains(&0);
        let missing = if is_empty { Vec::new() } else { vec![wanted.clone()] };
        let mut coverage = Self { pieces: Vec::new(), missing };
        for &source in sources {
            if coverage.missing.is_empty() {
                break;
            }
            coverage.take_from(source);
        }
        coverage
    }

    fn take_from(&mut self, source: SavedBox<'a>) {
        let saved = source.entry.tensor.region();
        for missing in std::mem::take(&mut self.missing) {
            match missing.intersect(&saved) {
                Some(common) => {
                    self.missing.extend(missing.subtract(&common));
                    self.pieces.push((source, common));
                }
                None => self.missing.push(missing),
            }
        }
    }
}

/// Bytes to copy from one chunk.
#[derive(Debug)]
pub(crate) struct CopyRange {
    /// Index of the requested box that is filled.
    pub(crate) part: usize,
    /// Start in the shard's data.
    pub(crate) source: u64,
    /// Start in the bytes of that box.
    pub(crate) target: usize,
    pub(crate) bytes: usize,
}

impl CopyRange {
    /// Copies what is in `bytes`, which start at `start` in the shard's data.
    pub(crate) fn fill(&self, bytes: &[u8], start: u64, parts: &mut [PartMut<'_>]) {
        let first = self.source.max(start);
        let end = (self.source + self.bytes as u64).min(start + bytes.len() as u64);
        if first < end {
            let len = (end - first) as usize;
            let target = self.target + (first - self.source) as usize;
            let from = (first - start) as usize;
            parts[self.part].data.write(target, &bytes[from..from + len]);
        }
    }
}

/// A shard file among those of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct ShardId {
    pub(crate) rank: usize,
    pub(crate) file: usize,
}

/// Copies by shard, then by chunk: in the order on the disk.
#[derive(Debug, Default)]
pub(crate) struct ReadPlan(pub(crate) BTreeMap<ShardId, BTreeMap<u64, Vec<CopyRange>>>);

impl ReadPlan {
    /// Adds a run of elements, cut where chunks end.
    pub(super) fn add(
        &mut self,
        part: usize,
        source: &SavedBox<'_>,
        run: &ContiguousRun,
        element_bytes: usize,
    ) {
        let chunk_bytes = source.shard.chunk_bytes;
        let shard = ShardId { rank: source.rank, file: source.file };
        let chunks = self.0.entry(shard).or_default();
        let mut start = source.entry.range[0] + (run.source * element_bytes) as u64;
        let end = start + (run.elements * element_bytes) as u64;
        let mut target = run.target * element_bytes;
        while start < end {
            let chunk = start / chunk_bytes;
            let bytes = (end.min((chunk + 1) * chunk_bytes) - start) as usize;
            chunks.entry(chunk).or_default().push(CopyRange { part, source: start, target, bytes });
            start += bytes as u64;
            target += bytes;
        }
    }
}
