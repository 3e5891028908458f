//! What to save, and how it went.

use std::time::Duration;

use serde_json::Value;

use crate::tensor::Part;

/// What to save.
#[derive(Debug, Clone, Copy)]
pub struct Save<'a> {
    /// Steps done.
    pub step: u64,
    /// Number of this attempt of the run, from
    /// [`Store::claim_attempt`](crate::Store::claim_attempt). A later attempt fences this one.
    pub attempt: u64,
    /// This rank's boxes. Each element should be in the boxes of one rank.
    pub parts: &'a [Part<'a>],
    /// State that does not depend on the world; the same on all ranks.
    pub state: &'a Value,
    /// Name of the checkpoint that the state descends from, for those who trace it back.
    pub parent: Option<&'a str>,
    /// Why this rank must not save, if it must not: then no rank does, and all report the reason.
    pub veto: Option<&'a str>,
}

/// How a save went, as seen by this rank.
#[derive(Debug, Clone)]
pub struct SaveReport {
    /// Name of the checkpoint.
    pub checkpoint: String,
    /// Bytes of tensor data of this rank.
    pub bytes: u64,
    /// Bytes of tensor data of all ranks.
    pub bytes_total: u64,
    /// From the start until all files of this rank were durable.
    pub write: Duration,
    /// Waiting for the slowest rank.
    pub vote: Duration,
    /// Until the manifest was durable.
    pub commit: Duration,
    /// What failed after the commit and does not affect it (rank 0).
    pub warnings: Vec<String>,
}
