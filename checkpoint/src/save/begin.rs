//! The first gather of a save: all ranks receive the checkpoint's name, and find out whether they
//! save the same step and whether one of them has a veto.

use serde::{Deserialize, Serialize};

use super::request::Save;
use crate::agreement::agree;
use crate::durable::{create_folder, random, sync_folder};
use crate::error::{Error, RankFailure, Result};
use crate::format::digest::Digest;
use crate::format::manifest::rank_folder;
use crate::format::name::CheckpointName;
use crate::peers::Peers;
use crate::store::Store;

/// What a rank is about to save.
#[derive(Debug, Serialize, Deserialize)]
struct Opening {
    step: u64,
    attempt: u64,
    state: Digest,
    veto: Option<String>,
    /// From rank 0, unless it has a veto.
    prepared: Option<Prepared>,
}

/// What rank 0 has done or found.
#[derive(Debug, Serialize, Deserialize)]
enum Prepared {
    /// The folder of this name exists.
    Folder(String),
    /// A newer attempt exists, which has written this.
    Fenced(String),
}

impl Store {
    /// The name of the checkpoint, whose folders exist. That a newer attempt exists takes
    /// precedence over any veto.
    pub(super) fn begin(&self, request: &Save<'_>, peers: &dyn Peers) -> Result<CheckpointName> {
        let is_coordinator = peers.rank() == 0;
        let prepared = if is_coordinator { self.prepare(request, peers.world()) } else { Ok(None) };
        let opening = prepared.map(|prepared| Opening {
            step: request.step,
            attempt: request.attempt,
            state: Digest::of(request.state.to_string().as_bytes()),
            veto: request.veto.map(str::to_owned),
            prepared,
        });
        let step = request.step;
        let openings = agree(peers, opening)?
            .map_err(|abort| Error::SaveFailed { step, failures: abort.failures })?;
        let refusal = vetoes(step, &openings).or_else(|| disagreement(&openings));
        match (&openings[0].prepared, refusal) {
            (Some(Prepared::Fenced(newer)), _) => Err(self.fenced(request.attempt, newer)),
            (Some(Prepared::Folder(name)), None) => self.parse_name(name),
            (Some(Prepared::Folder(name)), Some(refusal)) => {
                if is_coordinator {
                    drop(self.discard(&self.parse_name(name)?)); // else before the next save
                }
                Err(refusal)
            }
            (None, refusal) => Err(refusal.expect("rank 0 prepares, unless it has a veto")),
        }
    }

    /// Rank 0: removes leftovers, and creates the folders of the checkpoint.
    fn prepare(&self, request: &Save<'_>, world: usize) -> Result<Option<Prepared>> {
        if let Some(newer) = self.newer_attempt(request.attempt)? {
            return Ok(Some(Prepared::Fenced(newer)));
        }
        if request.veto.is_some() {
            return Ok(None);
        }
        self.remove_leftovers(request.attempt);
        let name =
            CheckpointName { attempt: request.attempt, step: request.step, nonce: random()? };
        create_folder(&self.folder(&name))?;
        self.begun().push(name.clone());
        self.create_rank_folders(&name, world).inspect_err(|_| drop(self.discard(&name)))?;
        Ok(Some(Prepared::Folder(name.to_string())))
    }

    fn create_rank_folders(&self, name: &CheckpointName, world: usize) -> Result<()> {
        let folder = self.folder(name);
        let ranks_per_folder = self.options().ranks_per_folder;
        for rank in (0..world).step_by(ranks_per_folder) {
            create_folder(&folder.join(rank_folder(rank, ranks_per_folder)))?;
        }
        sync_folder(&folder)?;
        Ok(sync_folder(self.root())?)
    }

    /// The error of an attempt that a newer one has fenced.
    pub(super) fn fenced(&self, attempt: u64, newer: &str) -> Error {
        Error::Fenced { path: self.root().join(newer), attempt, found: newer.to_owned() }
    }
}

fn vetoes(step: u64, openings: &[Opening]) -> Option<Error> {
    let mut failures = Vec::new();
    for (rank, opening) in openings.iter().enumerate() {
        failures.extend(opening.veto.clone().map(|reason| RankFailure { rank, reason }));
    }
    (!failures.is_empty()).then_some(Error::SaveFailed { step, failures })
}

/// The first difference between ranks that should save the same thing.
fn disagreement(openings: &[Opening]) -> Option<Error> {
    let first = &openings[0];
    openings.iter().enumerate().find_map(|(rank, other)| {
        let differs = |what, first: String, other: String| {
            (first != other).then_some(Error::Disagree { what, first, rank, other })
        };
        differs("step", first.step.to_string(), other.step.to_string())
            .or_else(|| differs("attempt", first.attempt.to_string(), other.attempt.to_string()))
            .or_else(|| differs("state", first.state.to_string(), other.state.to_string()))
    })
}
