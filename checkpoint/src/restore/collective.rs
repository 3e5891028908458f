//! Restoring one checkpoint on all ranks: three gathers, fewer when one of them aborts.

use serde_json::Value;

use super::open_checkpoint::OpenCheckpoint;
use super::retry::retry_while_absent;
use crate::agreement::{Agreed, agree};
use crate::error::{Rejected, Result};
use crate::format::manifest::{MANIFEST, Manifest};
use crate::format::name::CheckpointName;
use crate::peers::Peers;
use crate::store::Store;
use crate::tensor::PartMut;

/// A checkpoint that all ranks have restored.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Restored {
    /// Name of its folder.
    pub checkpoint: String,
    /// Steps done.
    pub step: u64,
    /// Attempt of the run that wrote it.
    pub attempt: u64,
    /// State that does not depend on the world.
    pub state: Value,
    /// Newer checkpoints that could not be used, newest first: each is worth a warning.
    pub rejected: Vec<Rejected>,
    /// Bytes of shards that this rank read.
    pub bytes_read: u64,
}

/// The manifest and the texts of all indexes, the same on all ranks.
struct Metadata {
    manifest: Manifest,
    /// By the rank that read them: rank r of R reads those of the saved ranks r, r + R, ...
    index_texts: Vec<Vec<String>>,
}

impl Metadata {
    fn index_text(&self, saved_rank: usize) -> &str {
        let world = self.index_texts.len();
        &self.index_texts[saved_rank % world][saved_rank / world]
    }
}

impl Store {
    pub(super) fn restore_on_all_ranks(
        &self,
        checkpoint: &str,
        parts: &mut [PartMut<'_>],
        peers: &dyn Peers,
    ) -> Result<Agreed<Restored>> {
        parts.iter().for_each(|part| part.tensor.assert_valid(part.data.len()));
        let name = self.parse_name(checkpoint)?;
        let metadata = match self.gather_metadata(&name, peers)? {
            Ok(metadata) => metadata,
            Err(abort) => return Ok(Err(abort)),
        };
        let bytes_read = match agree(peers, self.fill(&name, &metadata, parts, peers.rank()))? {
            Ok(bytes_read) => bytes_read[peers.rank()],
            Err(abort) => return Ok(Err(abort)),
        };
        Ok(Ok(Restored {
            checkpoint: checkpoint.to_owned(),
            step: metadata.manifest.step,
            attempt: metadata.manifest.attempt,
            state: metadata.manifest.state,
            rejected: Vec::new(),
            bytes_read,
        }))
    }

    fn gather_metadata(
        &self,
        name: &CheckpointName,
        peers: &dyn Peers,
    ) -> Result<Agreed<Metadata>> {
        let text = if peers.rank() == 0 { self.manifest_text(name) } else { Ok(String::new()) };
        let texts = match agree(peers, text)? {
            Ok(texts) => texts,
            Err(abort) => return Ok(Err(abort)),
        };
        let mut parsed = None;
        let index_texts = self.parse_manifest(name, texts[0].as_bytes()).and_then(|manifest| {
            let texts = self.index_texts(name, &manifest, peers);
            parsed = Some(manifest);
            texts
        });
        Ok(agree(peers, index_texts)?.map(|index_texts| {
            let manifest = parsed.expect("no rank aborted, so it was parsed here too");
            Metadata { manifest, index_texts }
        }))
    }

    /// Rank 0 reads the manifest for all ranks, so that all have the same one.
    fn manifest_text(&self, name: &CheckpointName) -> Result<String> {
        self.read_text(&name.key(MANIFEST))
    }

    /// The indexes that this rank reads: every R-th, starting at its own.
    fn index_texts(
        &self,
        name: &CheckpointName,
        manifest: &Manifest,
        peers: &dyn Peers,
    ) -> Result<Vec<String>> {
        let timeout = self.options().visibility_timeout;
        (peers.rank()..manifest.world)
            .step_by(peers.world())
            .map(|rank| retry_while_absent(timeout, || self.index_text(name, manifest, rank)))
            .collect()
    }

    fn fill(
        &self,
        name: &CheckpointName,
        metadata: &Metadata,
        parts: &mut [PartMut<'_>],
        rank: usize,
    ) -> Result<u64> {
        let manifest = &metadata.manifest;
        let parse = |rank| self.parse_index(name, manifest, rank, metadata.index_text(rank));
        let indexes = (0..manifest.world).map(parse).collect::<Result<_>>()?;
        let timeout = self.options().visibility_timeout;
        OpenCheckpoint { store: self, name, manifest, indexes, timeout }.fill(parts, rank)
    }
}
