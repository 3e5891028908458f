//! Preview of the reads of a restore, as one machine sees the tiers.

use std::collections::BTreeSet;

use serde::Serialize;

use super::plan::{Plan, Version};
use super::survey::Survey;
use super::{Tiers, View};
use crate::error::Result;
use crate::format::manifest::Manifest;
use crate::peers::SingleRank;
use crate::tier::Scope;

/// Restore that has not happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Preview {
    /// The checkpoint that would be restored; `None` when none is covered.
    pub checkpoint: Option<String>,
    /// Ranks that saved it.
    pub saved_by: usize,
    /// Bytes of its tensor data.
    pub bytes: u64,
    /// Sources by tier, the nearest first.
    pub sources: Vec<PreviewSource>,
    /// Newer checkpoints that are passed over, and why.
    pub passed_over: Vec<SkippedCheckpoint>,
}

/// Reads of a restore from one tier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PreviewSource {
    /// Name of the tier.
    pub tier: String,
    /// Shard files that are read.
    pub files: usize,
    /// Bytes of tensor data in them.
    pub bytes: u64,
    /// Bytes that the ranks read together, each file as often as a rank needs all of it.
    pub read_bytes: u64,
    /// Bytes that ranks receive from other ranks, which read them on their nodes.
    pub from_peers_bytes: u64,
}

/// Checkpoint that is committed somewhere and cannot be restored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SkippedCheckpoint {
    /// Name of the checkpoint.
    pub checkpoint: String,
    /// Reason why it cannot be restored.
    pub reason: String,
}

/// Ranks that read from the same places, as those of a node do.
struct Readers {
    /// Representative of the ranks: 0 for those on this machine, 1 for all others.
    rank: usize,
    count: usize,
}

impl Tiers {
    /// Previews the reads of [`Tiers::resume`] with `ranks` ranks, each of them all tensors, if the
    /// first `here` of them ran on this machine and the nodes of the others had nothing. Reads
    /// manifests and indexes only: only [`Store::verify`](crate::Store::verify) finds out whether
    /// data is intact. Not collective; changes nothing.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) and [`Error::Damaged`](crate::Error::Damaged) when the
    /// manifest or an index of the checkpoint that would be restored cannot be read.
    pub fn preview(&self, ranks: usize, here: usize) -> Result<Preview> {
        let views = self.views(None);
        let survey = Survey::gather(&views, None, &SingleRank)?;
        let scopes: Vec<Scope> = views.iter().map(|view| view.store.scope()).collect();
        let inventories = [survey.inventories.concat(), Vec::new()];
        let here = here.clamp(1, ranks.max(1));
        let readers =
            [Readers { rank: 0, count: here }, Readers { rank: 1, count: ranks.max(1) - here }];
        let mut passed_over = Vec::new();
        for candidate in Plan::new(&scopes, &inventories).candidates {
            let is_covered = |version: &&Version| version.missing().is_empty();
            if let Some(version) = candidate.versions.iter().find(is_covered) {
                return preview(&views, &candidate.checkpoint, version, &readers, passed_over);
            }
            let reason = match candidate.versions.first() {
                Some(version) => {
                    let missing = version.missing().len();
                    format!("the files of {missing} of {} ranks are not visible", version.world())
                }
                None => candidate.flawed.first().map_or_else(
                    || "of another run, workload or format".to_owned(),
                    |(_, flaw)| flaw.reason.clone(),
                ),
            };
            passed_over.push(SkippedCheckpoint { checkpoint: candidate.checkpoint, reason });
        }
        Ok(Preview { checkpoint: None, saved_by: 0, bytes: 0, sources: Vec::new(), passed_over })
    }
}

fn preview(
    views: &[View<'_>],
    checkpoint: &str,
    version: &Version,
    readers: &[Readers],
    passed_over: Vec<SkippedCheckpoint>,
) -> Result<Preview> {
    let store = views[version.manifest.tier].store;
    let name = store.parse_name(checkpoint)?;
    let manifest = store.manifest(&name)?;
    let mut sources = Vec::new();
    for (tier, view) in views.iter().enumerate() {
        let mut source = PreviewSource {
            tier: view.name.clone(),
            files: 0,
            bytes: 0,
            read_bytes: 0,
            from_peers_bytes: 0,
        };
        for saved in read_from(tier, version, &manifest, readers, &mut source) {
            source.files += view.store.index(&name, &manifest, saved)?.files.len();
            source.bytes += manifest.ranks[saved].bytes;
        }
        sources.push(source);
    }
    Ok(Preview {
        checkpoint: Some(checkpoint.to_owned()),
        saved_by: manifest.world,
        bytes: manifest.bytes,
        sources,
        passed_over,
    })
}

/// The saved ranks whose files are read on a tier; adds up how often.
fn read_from(
    tier: usize,
    version: &Version,
    manifest: &Manifest,
    readers: &[Readers],
    into: &mut PreviewSource,
) -> BTreeSet<usize> {
    let mut read = BTreeSet::new();
    for (saved, entry) in manifest.ranks.iter().enumerate() {
        for Readers { rank, count } in readers.iter().filter(|readers| readers.count > 0) {
            let source = version.source(saved, *rank);
            if source.tier != tier {
                continue;
            }
            read.insert(saved);
            let bytes = entry.bytes * *count as u64;
            if source.node_of.is_none_or(|node| node == *rank) {
                into.read_bytes += bytes;
            } else {
                into.from_peers_bytes += bytes;
            }
        }
    }
    read
}
