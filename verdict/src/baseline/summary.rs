//! What the records of a baseline say together: how fast, and how much runs differ.

use serde::Serialize;

use super::Kept;
use crate::compare::deviations;

/// The records of a key.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// Workload, world size and machine type.
    pub key: String,
    /// How many there are.
    pub records: usize,
    /// How many of them are the baseline; the figures are of those.
    pub promoted: usize,
    /// In how many sessions, at least an hour apart, those were made.
    pub sessions: usize,
    /// Mean over them.
    pub tokens_per_second: f64,
    /// Relative standard deviation of runs within a session; `null` without several in one.
    pub deviation_of_runs: Option<f64>,
    /// The same of the means of sessions; `null` with fewer than two.
    pub deviation_of_sessions: Option<f64>,
}

impl Summary {
    /// Of all records of a key; `None` without any in the baseline.
    pub fn of(key: String, kept: &[Kept]) -> Option<Self> {
        let promoted: Vec<_> = kept.iter().filter(|kept| kept.is_promoted).cloned().collect();
        let found =
            deviations(promoted.iter().map(|kept| (kept.path.clone(), kept.record.clone())))?;
        Some(Self {
            key,
            records: kept.len(),
            promoted: promoted.len(),
            sessions: found.sessions,
            tokens_per_second: found.mean,
            deviation_of_runs: found.of_runs,
            deviation_of_sessions: found.of_sessions,
        })
    }
}
