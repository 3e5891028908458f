//! Agreement between ranks: an error on one rank becomes the outcome on all of them, never a hang.

use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Error, RankFailure, Result};
use crate::peers::{Peers, PeersError};

/// Answer of one rank, sent to the other ranks.
#[derive(Debug, Serialize, Deserialize)]
enum Answer<T> {
    Yes(T),
    No(String),
}

/// Failures that aborted an operation on all ranks.
#[derive(Debug)]
pub(crate) struct Abort {
    pub(crate) failures: Vec<RankFailure>,
    /// Error of this rank, if it has one.
    pub(crate) own: Option<Error>,
}

/// An outcome that is the same on all ranks.
pub(crate) type Agreed<T> = std::result::Result<T, Abort>;

/// The values of all ranks, by rank, or on every rank the same abort.
///
/// # Errors
/// The outer one when the peers cannot be reached.
pub(crate) fn agree<T: Serialize + DeserializeOwned>(
    peers: &dyn Peers,
    own: Result<T>,
) -> Result<Agreed<Vec<T>>> {
    let (answer, own) = match own {
        Ok(value) => (Answer::Yes(value), None),
        Err(error) => (Answer::No(error.to_string()), Some(error)),
    };
    let mut values = Vec::new();
    let mut failures = Vec::new();
    for (rank, answer) in all_gather(peers, &answer)?.into_iter().enumerate() {
        match answer {
            Answer::Yes(value) => values.push(value),
            Answer::No(reason) => failures.push(RankFailure { rank, reason }),
        }
    }
    if failures.is_empty() { Ok(Ok(values)) } else { Ok(Err(Abort { failures, own })) }
}

impl Abort {
    /// Returns this rank's own error, or that of other ranks about a checkpoint or folder.
    pub(crate) fn into_error(self, path: &Path) -> Error {
        let failures = self.failures;
        self.own.unwrap_or_else(|| Error::OtherRanksFailed { path: path.to_owned(), failures })
    }
}

/// Gathers one value of each rank, in the order of ranks.
fn all_gather<T: Serialize + DeserializeOwned>(
    peers: &dyn Peers,
    own: &T,
) -> std::result::Result<Vec<T>, PeersError> {
    let payload = serde_json::to_vec(own).map_err(PeersError::new)?;
    let payloads = peers.all_gather(&payload)?;
    assert_eq!(payloads.len(), peers.world(), "all_gather must return one payload per rank");
    let parse = |bytes: &Vec<u8>| serde_json::from_slice(bytes).map_err(PeersError::new);
    payloads.iter().map(parse).collect()
}
