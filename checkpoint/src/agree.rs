//! Turning one rank's error into every rank's outcome: an error is a vote, never a hang.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::peers::gather;
use crate::{Error, Peers, RankFailure};

/// What one rank tells the others.
#[derive(Debug, Serialize, Deserialize)]
enum Verdict<T> {
    Good(T),
    /// These bytes are not usable; other bytes may be.
    Damaged(String),
    /// No other bytes would help.
    Refused(String),
}

/// Why a step was given up on all ranks.
#[derive(Debug)]
pub(crate) struct Objection {
    pub(crate) failures: Vec<RankFailure>,
    /// Whether every failure is damage, so that another checkpoint may do.
    pub(crate) is_damage: bool,
    /// This rank's own error, if it has one.
    pub(crate) own: Option<Error>,
}

/// The values of all ranks, or on every rank the same objection.
///
/// # Errors
/// The outer one when the peers cannot be reached.
pub(crate) fn agree<T: Serialize + DeserializeOwned>(
    peers: &dyn Peers,
    own: Result<T, Error>,
) -> Result<Result<Vec<T>, Objection>, Error> {
    let (verdict, own) = match own {
        Ok(value) => (Verdict::Good(value), None),
        Err(error) if error.is_damage() => (Verdict::Damaged(error.to_string()), Some(error)),
        Err(error) => (Verdict::Refused(error.to_string()), Some(error)),
    };
    let verdicts = gather(peers, &verdict)?;
    let (mut values, mut failures, mut is_damage) = (Vec::new(), Vec::new(), true);
    for (rank, verdict) in verdicts.into_iter().enumerate() {
        match verdict {
            Verdict::Good(value) => values.push(value),
            Verdict::Damaged(reason) => failures.push(RankFailure { rank, reason }),
            Verdict::Refused(reason) => {
                is_damage = false;
                failures.push(RankFailure { rank, reason });
            }
        }
    }
    if failures.is_empty() {
        Ok(Ok(values))
    } else {
        Ok(Err(Objection { failures, is_damage, own }))
    }
}

impl Objection {
    /// The error for a caller who wants this checkpoint and no other.
    pub(crate) fn into_error(self, checkpoint: &str) -> Error {
        let (checkpoint, failures) = (checkpoint.to_owned(), self.failures);
        self.own.unwrap_or(Error::RestoreFailed { checkpoint, failures })
    }
}
