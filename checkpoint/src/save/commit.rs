//! The end of a save: rank 0 publishes the manifest, or all ranks abort.

use std::io::{self, ErrorKind};

use super::rank_writer::Written;
use super::request::Save;
use crate::agreement::{Abort, agree};
use crate::durable::{IoError, Published};
use crate::error::{Error, Result};
use crate::failpoints::{Failpoint, Failpoints};
use crate::format::FORMAT;
use crate::format::index::index_file;
use crate::format::manifest::{MANIFEST, Manifest, RankEntry};
use crate::format::name::CheckpointName;
use crate::format::sealed::seal;
use crate::peers::Peers;
use crate::store::Store;

/// A save that has a name.
pub(super) struct Commit<'a> {
    pub(super) store: &'a Store,
    pub(super) name: &'a CheckpointName,
    pub(super) request: &'a Save<'a>,
    pub(super) peers: &'a dyn Peers,
    pub(super) failpoints: &'a dyn Failpoints,
}

impl Commit<'_> {
    /// Rank 0 publishes the manifest, the others wait for it (third gather). Returns what failed
    /// after the commit and does not affect it.
    pub(super) fn commit(&self, written: &[Written]) -> Result<Vec<String>> {
        let mut fenced_by = Ok(None);
        let mut warnings = Vec::new();
        if self.peers.rank() == 0 {
            self.failpoints.hit(Failpoint::VoteBeforeManifest);
            fenced_by = self.publish(written);
            if let Ok(None) = fenced_by {
                self.failpoints.hit(Failpoint::ManifestBeforeLatest);
                warnings.extend(self.write_latest().err().map(|error| error.to_string()));
            }
        }
        match agree(self.peers, fenced_by)? {
            Ok(fenced_by) => match &fenced_by[0] {
                Some(newer) => Err(self.store.fenced(self.request.attempt, newer)),
                None => Ok(warnings),
            },
            Err(abort) => Err(self.abort(abort)),
        }
    }

    /// After all ranks know that the save failed: rank 0 frees its space.
    pub(super) fn abort(&self, abort: Abort) -> Error {
        let mut failures = abort.failures;
        if self.peers.rank() == 0
            && let Err(error) = self.store.discard(self.name)
            && let Some(first) = failures.first_mut()
        {
            first.reason = format!("{}; and cleaning up: {error}", first.reason);
        }
        Error::SaveFailed { step: self.name.step, failures }
    }

    /// Commits, unless a newer attempt exists: then returns what that has written.
    fn publish(&self, written: &[Written]) -> Result<Option<String>> {
        if let Some(newer) = self.store.newer_attempt(self.name.attempt)? {
            drop(self.store.discard(self.name)); // the newer attempt may be removing it, too
            return Ok(Some(newer));
        }
        let manifest = self.manifest(written);
        self.check_not_removed(&manifest)?;
        let mut midway = || self.failpoints.hit(Failpoint::MidManifest);
        let key = self.name.key(MANIFEST);
        Ok(match self.store.tier().publish(&key, &seal(&manifest).0, &mut midway)? {
            Published::Ours => None,
            Published::Taken => Some(self.name.to_string()),
        })
    }

    /// A manifest must not bring back a folder that someone has removed: it would have no data.
    fn check_not_removed(&self, manifest: &Manifest) -> Result<()> {
        let tier = self.store.tier();
        let index = manifest.rank_key(self.name, 0, &index_file(0));
        if tier.exists(&index)? {
            return Ok(());
        }
        let removed = io::Error::new(ErrorKind::NotFound, format!("{index} was removed"));
        Err(IoError::at(&tier.path(&self.name.key(MANIFEST)), "create")(removed).into())
    }

    fn manifest(&self, written: &[Written]) -> Manifest {
        let identity = self.store.identity();
        let rank = |rank: &Written| RankEntry { index: rank.index.clone(), bytes: rank.bytes };
        Manifest {
            format: FORMAT,
            run: identity.run.clone(),
            workload: identity.workload.clone(),
            checkpoint: self.name.to_string(),
            step: self.request.step,
            attempt: self.request.attempt,
            parent: self.request.parent.map(str::to_owned),
            software: env!("CARGO_PKG_VERSION").to_owned(),
            world: written.len(),
            ranks_per_folder: self.store.options().ranks_per_folder,
            bytes: written.iter().map(|rank| rank.bytes).sum(),
            ranks: written.iter().map(rank).collect(),
            state: self.request.state.clone(),
        }
    }

    fn write_latest(&self) -> Result<()> {
        let text = format!("{}\n", self.name);
        Ok(self.store.tier().replace("LATEST", text.as_bytes())?)
    }
}
