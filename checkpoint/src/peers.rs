//! How this crate talks to the other ranks.

use std::error::Error as StdError;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The other ranks could not be reached, or not in time.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct PeersError(Box<dyn StdError + Send + Sync>);

impl PeersError {
    /// Wraps the transport's own error or text.
    pub fn new(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self(source.into())
    }
}

/// The ranks of one run. Calls are collective: every rank makes the same ones in the same order.
pub trait Peers {
    /// This rank.
    fn rank(&self) -> usize;
    /// Number of ranks.
    fn world(&self) -> usize;
    /// Gives one payload, and returns those of all ranks, by rank. Lengths may differ.
    ///
    /// # Errors
    /// When a rank is lost or the implementation's deadline passes.
    fn all_gather(&self, payload: &[u8]) -> Result<Vec<Vec<u8>>, PeersError>;
}

/// One process without peers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Alone;

impl Peers for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn world(&self) -> usize {
        1
    }

    fn all_gather(&self, payload: &[u8]) -> Result<Vec<Vec<u8>>, PeersError> {
        Ok(vec![payload.to_vec()])
    }
}

/// Gathers values as JSON.
pub(crate) fn gather<T: Serialize + DeserializeOwned>(
    peers: &dyn Peers,
    own: &T,
) -> Result<Vec<T>, PeersError> {
    let payload = serde_json::to_vec(own).map_err(PeersError::new)?;
    let payloads = peers.all_gather(&payload)?;
    assert_eq!(payloads.len(), peers.world(), "all_gather must return one payload per rank");
    let parse = |bytes: &Vec<u8>| serde_json::from_slice(bytes).map_err(PeersError::new);
    payloads.iter().map(parse).collect()
}
