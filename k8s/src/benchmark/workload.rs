//! `[workload]`: what is trained, on how many nodes, for how long.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use record::text::{Interval, duration};

/// The `[workload]` table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Workload {
    /// Name of the job.
    pub(crate) name: String,
    /// Nodes that train at a time.
    pub(crate) nodes: u32,
    /// Ranks of a node that computes on its processors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ranks_per_node: Option<u32>,
    /// GPUs of a node, with a rank on each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gpus_per_node: Option<u32>,
    /// A preset or a TOML file beside this one.
    pub(crate) workload: String,
    /// As `train --set`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) set: Vec<String>,
    /// As `train --steps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) steps: Option<u64>,
    /// As `train --eval-every`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) eval_every: Option<u64>,
    /// As `train --target-loss`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) target_loss: Option<f64>,
    /// As `train --checkpoint-every`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) checkpoint_every: Option<Interval>,
    /// How often the launcher starts again from the newest checkpoint after a failure.
    #[serde(default)]
    pub(crate) restarts: u32,
    /// Workers that stand by for those that are lost.
    #[serde(default)]
    pub(crate) spares: u32,
    /// How long the launcher waits for its workers; its own default without it.
    #[serde(with = "duration::optional", default, skip_serializing_if = "Option::is_none")]
    pub(crate) wait: Option<Duration>,
    /// How long ranks may take to save and stop when a pod is asked to end.
    #[serde(with = "duration", default = "default_grace")]
    pub(crate) grace: Duration,
    /// After this time the job is ended, however far it is.
    #[serde(with = "duration::optional", default, skip_serializing_if = "Option::is_none")]
    pub(crate) time_limit: Option<Duration>,
}

fn default_grace() -> Duration {
    Duration::from_secs(90)
}

impl Workload {
    /// Ranks of each node; on GPUs, one for each.
    pub(crate) fn ranks_per_node(&self) -> u32 {
        self.gpus_per_node.or(self.ranks_per_node).unwrap_or(1)
    }
}
