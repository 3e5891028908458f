//! What to save, and how it went.

use std::time::Duration;

use serde_json::Value;

use crate::fencing::Claim;

/// What to save; the same on all ranks.
#[derive(Debug, Clone)]
pub struct Save {
    /// Steps done.
    pub step: u64,
    /// This attempt of the run, from [`Store::claim_attempt`](crate::Store::claim_attempt). A later
    /// attempt fences this one.
    pub claim: Claim,
    /// Counts the saves of the attempt, so that no two have the same name.
    pub number: u32,
    /// State that does not depend on the world.
    pub state: Value,
    /// Name of the checkpoint that the state descends from, for those who trace it back.
    pub parent: Option<String>,
}

/// How a save went, as seen by this rank.
#[derive(Debug, Clone)]
pub struct SaveReport {
    /// Name of the checkpoint.
    pub checkpoint: String,
    /// Steps done.
    pub step: u64,
    /// Bytes of tensor data of this rank.
    pub bytes: u64,
    /// Bytes of tensor data of all ranks.
    pub bytes_total: u64,
    /// Time in which each rank has made its files durable.
    pub writes: Vec<Duration>,
    /// From the start until this rank knew that the checkpoint is committed.
    pub commit: Duration,
    /// What failed after the commit and does not affect it, on a rank that commits.
    pub warnings: Vec<String>,
}
