//! One try to restore a checkpoint from the sources that are left: the manifest, the indexes, then
//! the data, with a gather after each.
//!
//! What fails on a source is gathered as well, so that all ranks agree on what is left for the
//! next try. An error that has nothing to do with a source ends the restore.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::time::Instant;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::View;
use super::exchange::Exchange;
use super::plan::{Flaw, Source, Version};
use super::survey::Own;
use crate::agreement::agree;
use crate::error::{Error, Result};
use crate::format::index::index_file;
use crate::format::manifest::{Manifest, rank_folder};
use crate::format::name::CheckpointName;
use crate::peers::Peers;
use crate::restore::{Conflict, CopyRange, OpenCheckpoint, ReadPlan, ShardId, retry_while_absent};
use crate::store::Store;
use crate::tensor::PartMut;

/// A copy that a rank could not use.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Failure {
    pub(super) rank: usize,
    pub(super) source: Source,
    /// The saved ranks whose files these are; `None` for all that the source has.
    pub(super) saved: Option<Range<usize>>,
    pub(super) flaw: Flaw,
    /// Bytes that a rank had verified and sent arrived damaged: the copy is not to blame.
    pub(super) is_of_transport: bool,
}

impl Failure {
    /// Marks it as a failure of the transport, of data that another rank sent.
    pub(super) fn of_transport(self) -> Self {
        let flaw = Flaw { is_transient: true, ..self.flaw };
        Self { flaw, is_of_transport: true, ..self }
    }
}

/// A world's failures, which are never none.
pub(super) type Tried<T> = std::result::Result<T, Vec<Failure>>;

/// A restored checkpoint.
pub(super) struct Filled {
    pub(super) manifest: Manifest,
    /// The manifest as it was read.
    pub(super) text: String,
    pub(super) bytes: Vec<TierBytes>,
}

/// Bytes of one tier.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TierBytes {
    pub(super) read: u64,
    pub(super) received: u64,
    /// Bytes read only for other ranks.
    pub(super) sent: u64,
}

/// Chunks of a shard that a rank needs and cannot read.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Wanted {
    pub(super) shard: ShardId,
    pub(super) chunks: Vec<Range<u64>>,
}

/// Result of one rank, and its failures.
#[derive(Debug, Serialize, Deserialize)]
struct Report<T> {
    done: T,
    failures: Vec<Failure>,
}

/// A try to restore one version of a checkpoint.
pub(super) struct Trial<'a> {
    pub(super) views: &'a [View<'a>],
    pub(super) name: &'a CheckpointName,
    pub(super) version: &'a Version,
    /// Start of the restore.
    pub(super) started: Instant,
    pub(super) peers: &'a dyn Peers,
}

impl Trial<'_> {
    /// Fills the parts, on all ranks or on none. Collective.
    pub(super) fn run(&self, parts: &mut [PartMut<'_>], own: &mut Own) -> Result<Tried<Filled>> {
        let source = self.version.manifest;
        let text = send_manifest(self.views, self.name, source, own, self.peers)?;
        let store = self.views[source.tier].store;
        let read = store.parse_manifest(self.name, text.as_bytes()).and_then(|manifest| {
            let texts = self.index_texts(&manifest, own)?;
            Ok((manifest, texts))
        });
        let (manifest, texts) = split(read);
        let texts = match self.gather(texts)? {
            Ok(texts) => texts,
            Err(failures) => return Ok(Err(failures)),
        };
        let manifest = manifest.expect("no rank aborted, so it was parsed here too");
        let mut bytes = vec![TierBytes::default(); self.views.len()];
        let filled = self.open(store, &manifest, &texts).and_then(|checkpoint| {
            if let Err(conflict) = checkpoint.check_ownership() {
                let failures = vec![self.conflict(conflict, own)?];
                return Ok((None, Report { done: Vec::new(), failures }));
            }
            let (here, wanted) = self.divide(checkpoint.plan(parts, self.peers.rank())?);
            let failures = self.fill(&checkpoint, &here, parts, &mut bytes, own)?;
            let done = wanted.iter().map(|(shard, chunks)| want(*shard, chunks)).collect();
            Ok((Some((checkpoint, wanted)), Report { done, failures }))
        });
        let (state, report) = split(filled);
        let wanted: Vec<Vec<Wanted>> = match self.gather(report)? {
            Ok(wanted) => wanted,
            Err(failures) => return Ok(Err(failures)),
        };
        if wanted.iter().any(|wanted| !wanted.is_empty()) {
            let (checkpoint, copies) = state.flatten().expect("no rank failed");
            let exchange = Exchange { trial: self, checkpoint: &checkpoint, copies: &copies };
            let report = match exchange.run(&wanted, parts, &mut bytes, own) {
                Err(error @ Error::Peers(_)) => return Err(error),
                failures => failures.map(|failures| Report { done: (), failures }),
            };
            if let Err(failures) = self.gather(report)? {
                return Ok(Err(failures));
            }
        }
        Ok(Ok(Filled { manifest, text, bytes }))
    }

    /// Gathers the results of all ranks, or all of their failures.
    fn gather<T: Serialize + DeserializeOwned>(
        &self,
        own: Result<Report<T>>,
    ) -> Result<Tried<Vec<T>>> {
        let path = self.views[self.version.manifest.tier].store.tier().path(&self.name.to_string());
        let reports = agree(self.peers, own)?.map_err(|abort| abort.into_error(&path))?;
        let mut all = Vec::new();
        let mut failures = Vec::new();
        for report in reports {
            all.push(report.done);
            failures.extend(report.failures);
        }
        Ok(if failures.is_empty() { Ok(all) } else { Err(failures) })
    }

    /// The indexes that this rank reads for all.
    fn index_texts(&self, manifest: &Manifest, own: &mut Own) -> Result<Report<Vec<String>>> {
        let mut report = Report { done: Vec::new(), failures: Vec::new() };
        for saved in 0..manifest.world {
            let (reader, source) = self.version.index_source(saved, self.peers.world());
            if reader != self.peers.rank() || is_hopeless(&report.failures, source, saved) {
                continue;
            }
            let store = self.views[source.tier].store;
            let read = || store.read_index(self.name, manifest, saved);
            match retry_while_absent(self.wait_until(source), read) {
                Ok(index) => report.done.push(index.text),
                Err(error) => {
                    let lost = self.lost_with(&error, store, manifest, saved);
                    report.failures.push(self.failure(source, lost, error, own)?);
                }
            }
        }
        Ok(report)
    }

    /// Returns the saved ranks whose files are lost if the index of one cannot be read: where its
    /// folder does not exist, also those after it without a folder. They are not checked one by
    /// one.
    fn lost_with(
        &self,
        error: &Error,
        store: &Store,
        manifest: &Manifest,
        saved: usize,
    ) -> Range<usize> {
        let checkpoint = self.name.to_string();
        let listed = if error.is_absence() { store.tier().list(&checkpoint).ok() } else { None };
        let Some(listed) = listed else { return just(saved) };
        let folders: HashSet<String> =
            listed.into_iter().map(|entry| self.name.key(&entry.name)).collect();
        let has_folder = |rank: &usize| {
            folders.contains(&rank_folder(self.name, *rank, manifest.ranks_per_folder))
        };
        if has_folder(&saved) {
            return just(saved);
        }
        saved..(saved..manifest.world).find(has_folder).unwrap_or(manifest.world)
    }

    fn open<'c>(
        &'c self,
        store: &'c Store,
        manifest: &'c Manifest,
        texts: &[Vec<String>],
    ) -> Result<OpenCheckpoint<'c>> {
        let mut texts: Vec<_> = texts.iter().map(|texts| texts.iter()).collect();
        let mut indexes = Vec::new();
        for saved in 0..manifest.world {
            let (reader, _) = self.version.index_source(saved, self.peers.world());
            let text = texts[reader].next().ok_or_else(|| {
                let path =
                    store.tier().path(&manifest.rank_key(self.name, saved, &index_file(saved)));
                Error::damaged(&path, 0, "an index from each rank", "fewer")
            })?;
            indexes.push(store.parse_index(self.name, manifest, saved, text)?);
        }
        Ok(OpenCheckpoint { store, name: self.name, manifest, indexes })
    }

    /// Returns the failure of an index that contradicts those of other ranks. All ranks find the
    /// same.
    fn conflict(&self, Conflict { rank, error }: Conflict, own: &mut Own) -> Result<Failure> {
        let (_, source) = self.version.index_source(rank, self.peers.world());
        self.failure(source, just(rank), error, own)
    }

    /// Divides a plan into the copies that this rank reads itself, and those that others have to
    /// send.
    fn divide(&self, plan: ReadPlan) -> (Copies, Copies) {
        let rank = self.peers.rank();
        let is_here = |shard: &ShardId| self.source(shard).node_of.is_none_or(|node| node == rank);
        plan.0.into_iter().partition(|(shard, _)| is_here(shard))
    }

    /// Returns the source from which this rank gets a shard.
    pub(super) fn source(&self, shard: &ShardId) -> Source {
        self.version.source(shard.rank, self.peers.rank())
    }

    /// Reads what this rank can read itself, each chunk verified before it is copied. After damage
    /// it continues with other saved ranks, so that one try finds all of it.
    fn fill(
        &self,
        checkpoint: &OpenCheckpoint<'_>,
        copies: &Copies,
        parts: &mut [PartMut<'_>],
        bytes: &mut [TierBytes],
        own: &mut Own,
    ) -> Result<Vec<Failure>> {
        let mut failures = Vec::new();
        for (shard, chunks) in copies {
            let source = self.source(shard);
            if is_hopeless(&failures, source, shard.rank) {
                continue;
            }
            let read = &mut bytes[source.tier].read;
            if let Err(error) = self.fill_from(checkpoint, *shard, chunks, parts, read) {
                failures.push(self.failure(source, just(shard.rank), error, own)?);
            }
        }
        Ok(failures)
    }

    fn fill_from(
        &self,
        checkpoint: &OpenCheckpoint<'_>,
        shard: ShardId,
        chunks: &BTreeMap<u64, Vec<CopyRange>>,
        parts: &mut [PartMut<'_>],
        bytes: &mut u64,
    ) -> Result<()> {
        let source = self.source(&shard);
        let entry = &checkpoint.indexes[shard.rank].files[shard.file];
        let store = self.views[source.tier].store;
        let reader = checkpoint.reader(store, shard.rank, entry, self.wait_until(source))?;
        reader.read_chunks(chunks.keys().copied(), |chunk, data| {
            *bytes += data.len() as u64;
            let start = chunk * entry.chunk_bytes;
            chunks[&chunk].iter().for_each(|copy| copy.fill(data, start, parts));
        })
    }

    /// Returns the deadline of waits for files, all of them together: only files that other
    /// machines wrote may become visible late.
    pub(super) fn wait_until(&self, source: Source) -> Instant {
        let options = self.views[source.tier].store.options();
        match source.node_of {
            Some(_) => self.started,
            None => self.started + options.visibility_timeout,
        }
    }

    /// Returns the failure that is sent to other ranks for an error on a source.
    ///
    /// # Errors
    /// An error that says nothing about the source.
    pub(super) fn failure(
        &self,
        source: Source,
        saved: Range<usize>,
        error: Error,
        own: &mut Own,
    ) -> Result<Failure> {
        if !matches!(error, Error::Damaged { .. } | Error::Io(_)) {
            return Err(error);
        }
        let flaw = own.flaw(error);
        // Storage that does not answer is not asked again.
        let saved = (!flaw.is_transient).then_some(saved);
        Ok(Failure { rank: self.peers.rank(), source, saved, flaw, is_of_transport: false })
    }
}

/// Copies to make, by shard and chunk.
pub(super) type Copies = BTreeMap<ShardId, BTreeMap<u64, Vec<CopyRange>>>;

/// The manifest as the rank that keeps it has read it. Collective.
pub(super) fn send_manifest(
    views: &[View<'_>],
    name: &CheckpointName,
    source: Source,
    own: &Own,
    peers: &dyn Peers,
) -> Result<String> {
    let is_own = source.owner() == peers.rank();
    let text = if is_own { own.manifest(source.tier, &name.to_string()) } else { String::new() };
    let path = views[source.tier].store.tier().path(&name.to_string());
    let mut texts = agree(peers, Ok(text))?.map_err(|abort| abort.into_error(&path))?;
    Ok(texts.swap_remove(source.owner()))
}

/// The range of one saved rank.
pub(super) fn just(saved: usize) -> Range<usize> {
    saved..saved + 1
}

/// Returns whether a rank has failed on these files already.
fn is_hopeless(failures: &[Failure], source: Source, saved: usize) -> bool {
    let includes =
        |failure: &Failure| failure.saved.as_ref().is_none_or(|failed| failed.contains(&saved));
    failures.iter().any(|failure| failure.source == source && includes(failure))
}

fn want(shard: ShardId, chunks: &BTreeMap<u64, Vec<CopyRange>>) -> Wanted {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for &chunk in chunks.keys() {
        match ranges.last_mut() {
            Some(last) if last.end == chunk => last.end += 1,
            _ => ranges.push(chunk..chunk + 1),
        }
    }
    Wanted { shard, chunks: ranges }
}

/// Splits a result into the part that this rank keeps, and the part that it sends to other ranks.
fn split<K, T>(result: Result<(K, T)>) -> (Option<K>, Result<T>) {
    match result {
        Ok((kept, told)) => (Some(kept), Ok(told)),
        Err(error) => (None, Err(error)),
    }
}
