//! `job`: the cluster job of a run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A job that was rendered from a benchmark file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobRecord {
    /// Name of the job.
    pub name: String,
    /// Digest of its benchmark and of its workload file, as in the label `yardstick/job-id`.
    pub id: String,
}
