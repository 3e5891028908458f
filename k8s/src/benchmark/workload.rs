//! `[workload]`: the workload to train, the number of nodes, and the duration.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use record::text::{Interval, duration};

/// The `[workload]` table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Workload {
    /// Name of the job.
    pub(crate) name: String,
    /// Number of nodes that train at a time.
    pub(crate) nodes: u32,
    /// Number of ranks of a node that computes on CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ranks_per_node: Option<u32>,
    /// Number of GPUs of a node, with one rank on each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gpus_per_node: Option<u32>,
    /// Preset, or TOML file beside this one.
    pub(crate) workload: String,
    /// Settings of `train --set`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) set: Vec<String>,
    /// Value of `train --steps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) steps: Option<u64>,
    /// Value of `train --eval-every`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) eval_every: Option<u64>,
    /// Value of `train --target-loss`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) target_loss: Option<f64>,
    /// Value of `train --checkpoint-every`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) checkpoint_every: Option<Interval>,
    /// Number of restarts by the launcher from the newest checkpoint after a failure.
    #[serde(default)]
    pub(crate) restarts: u32,
    /// Number of spare workers that replace lost workers.
    #[serde(default)]
    pub(crate) spares: u32,
    /// Time that the launcher waits for its workers; its own default if absent.
    #[serde(with = "duration::optional", default, skip_serializing_if = "Option::is_none")]
    pub(crate) wait: Option<Duration>,
    /// Time for ranks to save and stop when a pod is asked to terminate.
    #[serde(with = "duration", default = "default_grace")]
    pub(crate) grace: Duration,
    /// Time limit of the job, whatever its progress.
    #[serde(with = "duration::optional", default, skip_serializing_if = "Option::is_none")]
    pub(crate) time_limit: Option<Duration>,
}

fn default_grace() -> Duration {
    Duration::from_secs(90)
}

impl Workload {
    /// Number of ranks of each node; with GPUs, one per GPU.
    pub(crate) fn ranks_per_node(&self) -> u32 {
        self.gpus_per_node.or(self.ranks_per_node).unwrap_or(1)
    }
}
