//! Saving: every rank writes, all vote, rank 0 commits.
//!
//! Collective, and the same number of gathers on every rank whatever happens on one: (1) rank 0
//! creates the attempt's folder and says its name, (2) the vote, (3) rank 0 says whether the
//! manifest is durable. Between (2) and (3) nothing may be removed by a rank that lost its peers:
//! rank 0 may have committed.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::agree::{Objection, agree};
use crate::durable::{self, Published};
use crate::format::manifest::{MANIFEST, Manifest, RankEntry, rank_folder};
use crate::format::sealed::seal;
use crate::name::Name;
use crate::write::{Job, Written};
use crate::{Digest, Error, FORMAT, Observer, Part, Peers, Point, RankFailure, Result, Store};

/// What to save.
#[derive(Debug, Clone, Copy)]
pub struct Save<'a> {
    /// Steps done.
    pub step: u64,
    /// Number of this attempt of the run, larger than that of any earlier one: fences zombies.
    /// What [`Store::claim`] returned.
    pub epoch: u64,
    /// This rank's boxes. All ranks together should hold each element once.
    pub parts: &'a [Part<'a>],
    /// State that does not depend on the world; the same on all ranks.
    pub state: &'a Value,
    /// State of this rank, given back when the same number of ranks restores.
    pub rank_state: &'a Value,
    /// Name of the checkpoint that the state descends from, for those who trace it back.
    pub parent: Option<&'a str>,
    /// Why this rank must not save, if it must not: then all ranks learn it and none saves.
    pub unable: Option<&'a str>,
}

/// How a save went, as this rank saw it.
#[derive(Debug, Clone)]
pub struct SaveReport {
    /// Name of the checkpoint.
    pub checkpoint: String,
    /// Bytes of tensor data of this rank.
    pub bytes: u64,
    /// Bytes of tensor data of all ranks.
    pub bytes_total: u64,
    /// From the start until everything of this rank was durable.
    pub write: Duration,
    /// Waiting for the slowest rank.
    pub vote: Duration,
    /// Until the manifest was durable.
    pub commit: Duration,
    /// What went wrong after the commit and does not matter for it (rank 0).
    pub warnings: Vec<String>,
}

/// First gather.
#[derive(Debug, Serialize, Deserialize)]
struct Opening {
    step: u64,
    epoch: u64,
    state: Digest,
    /// Why this rank must not save.
    unable: Option<String>,
    lead: Lead,
}

/// What rank 0 did; the others, and rank 0 when it must not save, say [`Lead::Follows`].
#[derive(Debug, Serialize, Deserialize)]
enum Lead {
    Follows,
    Done(String),
    /// A newer attempt exists.
    Fenced(String),
}

impl Store {
    /// Saves a checkpoint. It is committed when this returns `Ok`, on every rank that it does.
    ///
    /// # Errors
    /// [`Error::SaveFailed`] on all ranks alike when one of them failed: nothing is left of the
    /// attempt and training can go on. [`Error::Fenced`] when a newer attempt of the run writes
    /// here: stop. [`Error::Disagree`] when the ranks do not save the same thing.
    /// [`Error::Peers`] when a rank is lost: the checkpoint may be committed or not, and a
    /// restart will know.
    ///
    /// # Panics
    /// When a part's data does not have the size of its box, or a box lies outside its tensor.
    pub fn save(
        &self,
        request: &Save<'_>,
        peers: &dyn Peers,
        observer: &dyn Observer,
    ) -> Result<SaveReport> {
        request.parts.iter().for_each(|part| part.tensor.check(part.data.len()));
        let started = Instant::now();
        let name = self.begin(request, peers)?;
        let written = self.write_rank(&name, request, peers.rank(), observer);
        let write = started.elapsed();
        let votes = match agree(peers, written)? {
            Ok(votes) => votes,
            Err(objection) => return Err(self.give_up(&name, objection, peers)),
        };
        let vote = started.elapsed() - write;
        let mut warnings = Vec::new();
        self.commit(&name, request, &votes, peers, observer, &mut warnings)?;
        let commit = started.elapsed() - vote - write;
        let bytes = votes[peers.rank()].bytes;
        let bytes_total = votes.iter().map(|vote| vote.bytes).sum();
        let checkpoint = name.to_string();
        Ok(SaveReport { checkpoint, bytes, bytes_total, write, vote, commit, warnings })
    }

    /// Gather 1: all ranks learn the attempt's name, and find out if they differ. That a newer
    /// attempt exists counts more than anything that a rank objects.
    fn begin(&self, request: &Save<'_>, peers: &dyn Peers) -> Result<Name> {
        let lead = if peers.rank() == 0 { self.lead(request, peers) } else { Ok(Lead::Follows) };
        let opening = lead.map(|lead| Opening {
            step: request.step,
            epoch: request.epoch,
            state: Digest::of(request.state.to_string().as_bytes()),
            unable: request.unable.map(str::to_owned),
            lead,
        });
        let step = request.step;
        let openings = agree(peers, opening)?
            .map_err(|Objection { failures, .. }| Error::SaveFailed { step, failures })?;
        if let Lead::Fenced(found) = &openings[0].lead {
            return Err(self.fenced(request.epoch, found));
        }
        let refusal = match objections(&openings) {
            failures if failures.is_empty() => disagreement(&openings),
            failures => Some(Error::SaveFailed { step, failures }),
        };
        let Lead::Done(name) = &openings[0].lead else {
            return Err(refusal.expect("rank 0 leads, or says why it must not"));
        };
        let name = self.parse_name(name)?;
        let Some(refusal) = refusal else { return Ok(name) };
        if peers.rank() == 0 {
            drop(self.discard(&name)); // what stays is swept before the next save
        }
        Err(refusal)
    }

    /// Rank 0: makes room, and creates the folders of a new attempt.
    fn lead(&self, request: &Save<'_>, peers: &dyn Peers) -> Result<Lead> {
        if let Some(found) = self.newer_attempt(request.epoch)? {
            return Ok(Lead::Fenced(found));
        }
        if request.unable.is_some() {
            return Ok(Lead::Follows);
        }
        self.sweep(request.epoch);
        let (epoch, step) = (request.epoch, request.step);
        let name = Name { epoch, step, attempt: durable::random()? };
        let folder = self.folder(&name);
        durable::create_folder(&folder)?;
        self.created().push(name.clone());
        let create = || {
            for rank in (0..peers.world()).step_by(self.options().ranks_per_folder) {
                let sub_folder = rank_folder(rank, self.options().ranks_per_folder);
                durable::create_folder(&folder.join(sub_folder))?;
            }
            durable::sync_folder(&folder)?;
            durable::sync_folder(self.root())
        };
        create().inspect_err(|_| drop(self.discard(&name)))?;
        Ok(Lead::Done(name.to_string()))
    }

    fn write_rank(
        &self,
        name: &Name,
        request: &Save<'_>,
        rank: usize,
        observer: &dyn Observer,
    ) -> Result<Written> {
        observer.reached(Point::BeforeShard);
        let job = Job {
            folder: self.folder(name).join(rank_folder(rank, self.options().ranks_per_folder)),
            identity: self.identity(),
            options: self.options(),
            checkpoint: &name.to_string(),
            step: request.step,
            rank,
            observer,
        };
        let written = job.write(request.parts, request.rank_state)?;
        observer.reached(Point::IndexBeforeVote);
        Ok(written)
    }

    /// Gather 3: rank 0 publishes the manifest, the others wait for it.
    fn commit(
        &self,
        name: &Name,
        request: &Save<'_>,
        votes: &[Written],
        peers: &dyn Peers,
        observer: &dyn Observer,
        warnings: &mut Vec<String>,
    ) -> Result<()> {
        let mut lead = Ok(Lead::Follows);
        if peers.rank() == 0 {
            observer.reached(Point::VoteBeforeManifest);
            lead = self.publish(name, self.manifest_of(name, request, votes), observer);
            if let Ok(Lead::Done(checkpoint)) = &lead {
                observer.reached(Point::ManifestBeforeLatest);
                let hint = self.write_latest(name, checkpoint);
                warnings.extend(hint.err().map(|error| error.to_string()));
            }
        }
        match agree(peers, lead)? {
            Err(objection) => Err(self.give_up(name, objection, peers)),
            Ok(leads) => match &leads[0] {
                Lead::Fenced(found) => Err(self.fenced(request.epoch, found)),
                _ => Ok(()),
            },
        }
    }

    fn publish(&self, name: &Name, manifest: Manifest, observer: &dyn Observer) -> Result<Lead> {
        if let Some(found) = self.newer_attempt(name.epoch)? {
            drop(self.discard(name)); // the newer attempt may be removing it, too
            return Ok(Lead::Fenced(found));
        }
        let path = self.folder(name).join(MANIFEST);
        let tag = format!("{:08x}", name.attempt);
        let midway = || observer.reached(Point::MidManifest);
        match durable::publish(&path, &tag, &seal(&manifest).0, midway)? {
            Published::New | Published::Same => Ok(Lead::Done(name.to_string())),
            Published::Other(_) => Ok(Lead::Fenced(name.to_string())),
        }
    }

    fn manifest_of(&self, name: &Name, request: &Save<'_>, votes: &[Written]) -> Manifest {
        let rank = |vote: &Written| RankEntry { index: vote.index.clone(), bytes: vote.bytes };
        Manifest {
            format: FORMAT,
            run: self.identity().run.clone(),
            workload: self.identity().workload.clone(),
            checkpoint: name.to_string(),
            step: request.step,
            epoch: request.epoch,
            parent: request.parent.map(str::to_owned),
            software: env!("CARGO_PKG_VERSION").to_owned(),
            world: votes.len(),
            ranks_per_folder: self.options().ranks_per_folder,
            bytes: votes.iter().map(|vote| vote.bytes).sum(),
            root: Digest::merkle(votes.iter().map(|vote| &vote.index)),
            ranks: votes.iter().map(rank).collect(),
            state: request.state.clone(),
        }
    }

    fn write_latest(&self, name: &Name, checkpoint: &str) -> Result<()> {
        let staged = self.root().join(format!("LATEST.{:08x}", name.attempt));
        durable::write(&staged, format!("{checkpoint}\n").as_bytes())?;
        durable::rename(&staged, &self.root().join("LATEST"))
    }

    fn fenced(&self, epoch: u64, found: &str) -> Error {
        let (expected, found) = (format!("epoch {epoch}"), found.to_owned());
        Error::Fenced { path: self.root().join(&found), expected, found }
    }

    /// After all ranks know that the attempt failed: frees its space.
    fn give_up(&self, name: &Name, objection: Objection, peers: &dyn Peers) -> Error {
        let mut failures = objection.failures;
        if peers.rank() == 0
            && let Err(error) = self.discard(name)
            && let Some(first) = failures.first_mut()
        {
            first.reason = format!("{}; and cleaning up: {error}", first.reason);
        }
        Error::SaveFailed { step: name.step, failures }
    }
}

/// Why ranks must not save.
fn objections(openings: &[Opening]) -> Vec<RankFailure> {
    let failure = |(rank, opening): (usize, &Opening)| {
        opening.unable.clone().map(|reason| RankFailure { rank, reason })
    };
    openings.iter().enumerate().filter_map(failure).collect()
}

/// The first difference between ranks that should save the same thing.
fn disagreement(openings: &[Opening]) -> Option<Error> {
    let first = &openings[0];
    openings.iter().enumerate().find_map(|(rank, other)| {
        let differs = |what, first: String, other: String| {
            (first != other).then_some(Error::Disagree { what, first, rank, other })
        };
        differs("step", first.step.to_string(), other.step.to_string())
            .or_else(|| differs("epoch", first.epoch.to_string(), other.epoch.to_string()))
            .or_else(|| differs("state", first.state.to_string(), other.state.to_string()))
    })
}
