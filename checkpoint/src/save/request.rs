//! Request of a save, and its report.

use std::time::Duration;

use serde_json::Value;

use crate::fencing::Claim;

/// Request of a save; the same on all ranks.
#[derive(Debug, Clone)]
pub struct Save {
    /// Steps done.
    pub step: u64,
    /// Number of this attempt of the run, from
    /// [`Store::claim_attempt`](crate::Store::claim_attempt). A later attempt fences this one.
    pub claim: Claim,
    /// Counts the saves of the attempt, so that no two have the same name.
    pub number: u32,
    /// State that does not depend on the world.
    pub state: Value,
    /// Name of the checkpoint that the state descends from, for those who trace it back.
    pub parent: Option<String>,
}

/// Report of a save, as seen by this rank.
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
    /// Time from the start until this rank knew that the checkpoint is committed.
    pub commit: Duration,
    /// Failures after the commit, which do not affect it, on a rank that commits.
    pub warnings: Vec<String>,
}
