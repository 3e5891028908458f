//! The first gather of a save: all ranks receive the checkpoint's name, and find out whether they
//! save the same step and whether one of them has a veto.

use serde::{Deserialize, Serialize};

use super::request::Save;
use crate::agreement::agree;
use crate::durable::random;
use crate::error::{Error, RankFailure, Result};
use crate::format::digest::Digest;
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
    /// The checkpoint has this name.
    Name(String),
    /// A newer attempt exists, which has written this.
    Fenced(String),
}

impl Store {
    /// The name of the checkpoint. That a newer attempt exists takes
    /// precedence over any veto.
    pub(super) fn begin(&self, request: &Save<'_>, peers: &dyn Peers) -> Result<CheckpointName> {
        let is_coordinator = peers.rank() == 0;
        let prepared = if is_coordinator { self.prepare(request) } else { Ok(None) };
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
            (Some(Prepared::Name(name)), None) => self.parse_name(name),
            (Some(Prepared::Name(name)), Some(refusal)) => {
                if is_coordinator {
                    drop(self.discard(&self.parse_name(name)?)); // else before the next save
                }
                Err(refusal)
            }
            (None, refusal) => Err(refusal.expect("rank 0 prepares, unless it has a veto")),
        }
    }

    /// Rank 0: removes leftovers, and names the checkpoint.
    fn prepare(&self, request: &Save<'_>) -> Result<Option<Prepared>> {
        if let Some(newer) = self.newer_attempt(request.attempt)? {
            return Ok(Some(Prepared::Fenced(newer)));
        }
        if request.veto.is_some() {
            return Ok(None);
        }
        self.remove_leftovers(request.attempt);
        let name =
            CheckpointName { attempt: request.attempt, step: request.step, nonce: random()? };
        self.begun().push(name.clone());
        Ok(Some(Prepared::Name(name.to_string())))
    }

    /// The error of an attempt that a newer one has fenced.
    pub(super) fn fenced(&self, attempt: u64, newer: &str) -> Error {
        Error::Fenced { path: self.tier().path(newer), attempt, found: newer.to_owned() }
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
