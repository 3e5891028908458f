//! Report of a restore.

use serde_json::Value;

use crate::error::Rejected;

/// Checkpoint that all ranks have restored.
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
    /// Tiers and copies that could not be used although others took their place, the same on all
    /// ranks: each is a warning.
    pub warnings: Vec<String>,
    /// Bytes of shards that this rank read, for itself and to send them to other ranks.
    pub bytes_read: u64,
    /// Sources of this rank's bytes: each tier, the nearest first.
    pub sources: Vec<SourceBytes>,
}

/// Bytes of shards from one tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceBytes {
    /// Name of the tier.
    pub tier: String,
    /// Bytes that this rank read itself or received.
    pub bytes: u64,
    /// Bytes of those that another rank had on its node and sent.
    pub from_peers: u64,
}
