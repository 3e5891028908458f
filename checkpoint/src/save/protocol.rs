//! The two phases of a save, apart from the gathers between ranks: each rank writes, rank 0
//! commits, or on a tier of node scope each rank on its node.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::bytes::ByteSource;
use super::rank_writer::{RankFiles, RankWriter};
use super::request::Save;
use crate::agreement::agree;
use crate::error::{Error, RankFailure, Result};
use crate::failpoints::{Failpoint, Failpoints};
use crate::format::FORMAT;
use crate::format::digest::Digest;
use crate::format::index::index_file;
use crate::format::limits::{MANIFEST_BYTES_MAX, check_size};
use crate::format::manifest::{MANIFEST, Manifest, RankEntry};
use crate::format::name::CheckpointName;
use crate::format::sealed::seal;
use crate::peers::Peers;
use crate::store::Store;
use crate::tensor::TensorBox;
use crate::tier::Scope;
use record::files::{IoError, Published};

/// Vote of a rank: its files, and the checkpoint and state that they belong to.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Written {
    name: String,
    parent: Option<String>,
    state: Digest,
    pub(super) files: RankFiles,
    pub(super) took: Duration,
    /// Pieces of staging memory that the rank has for [copies](super::partner) after it.
    pub(super) staging_pieces: usize,
    /// Path that a newer attempt has written, if there is one, on a rank that commits. Nothing was
    /// written then.
    fenced_by: Option<String>,
}

/// Result of a rank's commit.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Publication {
    /// Path that a newer attempt has written: then nothing is committed.
    fenced_by: Option<String>,
    /// Failures after the commit.
    pub(super) warnings: Vec<String>,
}

/// Rank of a save.
pub(super) struct Participant<'a> {
    pub(super) store: &'a Store,
    pub(super) request: &'a Save,
    pub(super) rank: usize,
    pub(super) failpoints: &'a dyn Failpoints,
}

impl Participant<'_> {
    pub(super) fn name(&self) -> CheckpointName {
        let Save { step, claim, number, .. } = self.request;
        CheckpointName {
            attempt: claim.attempt,
            step: *step,
            nonce: claim.nonce.wrapping_add(*number),
        }
    }

    /// First phase: writes the boxes of this rank, durably.
    pub(super) fn write(
        &self,
        boxes: &[&TensorBox],
        source: &mut dyn ByteSource,
    ) -> Result<Written> {
        let started = Instant::now();
        let name = self.name();
        self.store.set_at(Some(""));
        let mut fenced_by = None;
        if self.commits() {
            fenced_by = self.store.newer_attempt(name.attempt)?;
            if fenced_by.is_none() {
                self.store.remove_leftovers(name.attempt);
                self.store.begun().push(name.clone());
            }
        }
        let files = if fenced_by.is_some() {
            RankFiles::default()
        } else {
            RankWriter::new(self.store, &name, self.rank, self.failpoints).write(boxes, source)?
        };
        let state = Digest::of(self.request.state.to_string().as_bytes());
        let parent = self.request.parent.clone();
        let took = started.elapsed();
        let (name, staging_pieces) = (name.to_string(), 0);
        Ok(Written { name, parent, state, files, took, staging_pieces, fenced_by })
    }

    /// The gather after the first phase: what all ranks have written.
    pub(super) fn vote(&self, own: Result<Written>, peers: &dyn Peers) -> Result<Vec<Written>> {
        let votes = match agree(peers, own)? {
            Ok(votes) => votes,
            Err(abort) => return Err(self.failed(abort.failures)),
        };
        if let Some(newer) = votes.iter().find_map(|vote| vote.fenced_by.as_ref()) {
            return Err(self.fenced(newer));
        }
        disagreement(&votes).map_or(Ok(votes), Err)
    }

    /// Gathers whether the last round of copies is written, and the next one read, on all ranks.
    pub(super) fn agree_on_copies(&self, own: Result<()>, peers: &dyn Peers) -> Result<()> {
        agree(peers, own)?.map(drop).map_err(|abort| self.failed(abort.failures))
    }

    /// Returns whether this rank commits.
    pub(super) fn commits(&self) -> bool {
        self.store.is_committed_by(self.rank)
    }

    /// Second phase, on a rank that commits: commits, unless a newer attempt exists.
    pub(super) fn publish(&self, votes: &[Written]) -> Result<Publication> {
        self.failpoints.hit(Failpoint::VoteBeforeManifest);
        let name = self.name();
        self.store.set_at(Some(&name.key(MANIFEST)));
        let fenced = |newer| Publication { fenced_by: Some(newer), warnings: Vec::new() };
        if let Some(newer) = self.store.newer_attempt(name.attempt)? {
            return Ok(fenced(newer));
        }
        let manifest = self.manifest(votes);
        self.check_not_removed(&manifest)?;
        let mut midway = || self.failpoints.hit(Failpoint::MidManifest);
        let (text, _) = seal(&manifest);
        check_size(&self.store.tier().path(&name.key(MANIFEST)), &text, MANIFEST_BYTES_MAX)?;
        let published = self.store.tier().publish(&name.key(MANIFEST), &text, &mut midway)?;
        if published == Published::Taken {
            return Ok(fenced(name.to_string()));
        }
        self.failpoints.hit(Failpoint::ManifestBeforeLatest);
        // Ranks of a node would write it at once.
        let has_latest = self.store.scope() == Scope::Shared;
        let latest = if has_latest { self.store.write_latest(&name) } else { Ok(()) };
        let warnings = latest.err().map(|error| error.to_string()).into_iter().collect();
        Ok(Publication { fenced_by: None, warnings })
    }

    /// Checks that the folder still exists: a manifest must not bring back one without data.
    fn check_not_removed(&self, manifest: &Manifest) -> Result<()> {
        let tier = self.store.tier();
        let index = manifest.rank_key(&self.name(), self.rank, &index_file(self.rank));
        if tier.exists(&index)? {
            return Ok(());
        }
        let removed = io::Error::new(ErrorKind::NotFound, format!("{index} was removed"));
        Err(IoError::at(&tier.path(&self.name().key(MANIFEST)), "create")(removed).into())
    }

    /// The gather after the second phase: whether the checkpoint is committed, and warnings of
    /// this rank.
    pub(super) fn settle(
        &self,
        own: Result<Publication>,
        peers: &dyn Peers,
    ) -> Result<Publication> {
        let mut published = match agree(peers, own)? {
            Ok(published) => published,
            Err(abort) => return Err(self.failed(abort.failures)),
        };
        match published.iter_mut().find_map(|published| published.fenced_by.take()) {
            Some(newer) => Err(self.fenced(&newer)),
            None => Ok(published.swap_remove(self.rank)),
        }
    }

    /// Returns whether this rank removes the files of a save that failed: a rank that commits those
    /// of the checkpoint, a rank that disagrees its own.
    pub(super) fn has_to_discard(&self, error: &Error) -> bool {
        match error {
            Error::SaveFailed { .. } | Error::Fenced { .. } => self.commits(),
            Error::Disagree { rank, .. } => self.commits() || self.rank == *rank,
            _ => false,
        }
    }

    /// Frees the space of this save. What stays is removed before the next one, also if this rank
    /// failed before it wrote anything.
    pub(super) fn discard(&self) -> Result<()> {
        let name = self.name();
        self.store.discard(&name).inspect_err(|_| self.store.begun().push(name.clone()))
    }

    pub(super) fn checkpoint(&self) -> String {
        self.name().to_string()
    }

    fn failed(&self, failures: Vec<RankFailure>) -> Error {
        Error::SaveFailed { step: self.request.step, failures }
    }

    /// The error of an attempt that a newer one has fenced.
    fn fenced(&self, newer: &str) -> Error {
        let attempt = self.request.claim.attempt;
        Error::Fenced { path: self.store.tier().path(newer), attempt, found: newer.to_owned() }
    }

    pub(super) fn manifest(&self, votes: &[Written]) -> Manifest {
        let identity = self.store.identity();
        let entry =
            |vote: &Written| RankEntry { index: vote.files.index.clone(), bytes: vote.files.bytes };
        Manifest {
            format: FORMAT,
            run: identity.run.clone(),
            workload: identity.workload.clone(),
            checkpoint: self.name().to_string(),
            step: self.request.step,
            attempt: self.request.claim.attempt,
            parent: self.request.parent.clone(),
            software: env!("CARGO_PKG_VERSION").to_owned(),
            world: votes.len(),
            ranks_per_folder: self.store.options().ranks_per_folder,
            bytes: votes.iter().map(|vote| vote.files.bytes).sum(),
            ranks: votes.iter().map(entry).collect(),
            state: self.request.state.clone(),
        }
    }
}

/// The first difference between ranks that should save the same thing.
fn disagreement(votes: &[Written]) -> Option<Error> {
    let first = &votes[0];
    votes.iter().enumerate().find_map(|(rank, other)| {
        let differs = |what, first: &str, other: &str| {
            let (first, other) = (first.to_owned(), other.to_owned());
            (first != other).then_some(Error::Disagree { what, first, rank, other })
        };
        differs("checkpoint", &first.name, &other.name)
            .or_else(|| differs("state", &first.state.0, &other.state.0))
            .or_else(|| differs("parent", describe(&first.parent), describe(&other.parent)))
    })
}

fn describe(parent: &Option<String>) -> &str {
    parent.as_deref().unwrap_or("none")
}
