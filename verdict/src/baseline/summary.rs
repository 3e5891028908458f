//! Summary of a baseline's records: speed, and deviation between runs.

use serde::Serialize;

use super::StoredRecord;
use crate::compare::deviations;

/// Summary of the records of a key.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// Workload, world size and machine type.
    pub key: String,
    /// Number of records.
    pub records: usize,
    /// Number of records in the baseline, which the figures are of.
    pub promoted: usize,
    /// Number of sessions of these runs, at least an hour apart.
    pub sessions: usize,
    /// Mean rate of these runs.
    pub tokens_per_second: f64,
    /// Relative standard deviation of runs within a session; `null` without several in one.
    pub deviation_of_runs: Option<f64>,
    /// Relative standard deviation of the means of sessions; `null` with fewer than two.
    pub deviation_of_sessions: Option<f64>,
}

impl Summary {
    /// Summarizes all records of a key; `None` without any in the baseline.
    pub fn of(key: String, kept: &[StoredRecord]) -> Option<Self> {
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
