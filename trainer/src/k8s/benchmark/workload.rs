//! `[workload]`: what is trained, on how many nodes, for how long.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{Interval, duration};

/// The `[workload]` table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Workload {
    /// Name of the job.
    pub(in crate::k8s) name: String,
    /// Nodes that train at a time.
    pub(in crate::k8s) nodes: u32,
    /// Ranks of a node that computes on its processors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::k8s) ranks_per_node: Option<u32>,
    /// GPUs of a node, with a rank on each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::k8s) gpus_per_node: Option<u32>,
    /// A preset or a TOML file beside this one.
    pub(in crate::k8s) workload: String,
    /// As `train --set`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(in crate::k8s) set: Vec<String>,
    /// As `train --steps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::k8s) steps: Option<u64>,
    /// As `train --eval-every`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::k8s) eval_every: Option<u64>,
    /// As `train --target-loss`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::k8s) target_loss: Option<f64>,
    /// As `train --checkpoint-every`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::k8s) checkpoint_every: Option<Interval>,
    /// How often the launcher starts again from the newest checkpoint after a failure.
    #[serde(default)]
    pub(in crate::k8s) restarts: u32,
    /// Workers that stand by for those that are lost.
    #[serde(default)]
    pub(in crate::k8s) spares: u32,
    /// How long the launcher waits for its workers; its own default without it.
    #[serde(with = "duration::optional", default, skip_serializing_if = "Option::is_none")]
    pub(in crate::k8s) wait: Option<Duration>,
    /// How long ranks may take to save and stop when a pod is asked to end.
    #[serde(with = "duration", default = "default_grace")]
    pub(in crate::k8s) grace: Duration,
    /// After this time the job is ended, however far it is.
    #[serde(with = "duration::optional", default, skip_serializing_if = "Option::is_none")]
    pub(in crate::k8s) time_limit: Option<Duration>,
}

fn default_grace() -> Duration {
    Duration::from_secs(90)
}

impl Workload {
    /// Ranks of each node; on GPUs, one for each.
    pub(in crate::k8s) fn ranks_per_node(&self) -> u32 {
        self.gpus_per_node.or(self.ranks_per_node).unwrap_or(1)
    }
}
