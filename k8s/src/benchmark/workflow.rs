//! `[workflow]`: what all jobs of a site have in common.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use record::text::duration;

/// The `[workflow]` table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Workflow {
    /// Where jobs run.
    #[serde(default = "default_namespace")]
    pub(crate) namespace: String,
    /// Whose identity they have: that of the namespace without it. None has a token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) service_account: Option<String>,
    /// What their containers run.
    pub(crate) images: Images,
    /// What they write to.
    pub(crate) storage: Storage,
    /// Whom they tell how they do.
    #[serde(default)]
    pub(crate) reporting: Reporting,
    /// What checks the nodes before a workflow trains.
    #[serde(default, skip_serializing_if = "Doctor::is_default")]
    pub(crate) doctor: Doctor,
}

fn default_namespace() -> String {
    "yardstick".to_owned()
}

/// `[workflow.images]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Images {
    /// For workloads on processors. By digest, a job is the same next month.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpu: Option<String>,
    /// For workloads on GPUs: with NCCL and cuBLASLt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cuda: Option<String>,
    /// When nodes pull them: the cluster's default without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pull_policy: Option<PullPolicy>,
    /// Secret with the registry's credentials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pull_secret: Option<String>,
}

/// When a node pulls an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are those of Kubernetes")]
pub(crate) enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

impl PullPolicy {
    /// As in a container.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

/// `[workflow.storage]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Storage {
    /// Claim with the folders of runs; all pods mount it, so it is ReadWriteMany.
    #[serde(default = "default_results")]
    pub(crate) results: String,
    /// Claim of the shared tier of checkpoints; the folders of runs without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) shared: Option<String>,
    /// The tier of each node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) nvme: Option<Nvme>,
    /// The tier in an object store, as in `s3://bucket/prefix`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) object: Option<String>,
    /// Secret whose keys are the variables of the object store's client, as `AWS_ACCESS_KEY_ID`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) object_secret: Option<String>,
}

fn default_results() -> String {
    "yardstick-results".to_owned()
}

/// What the tier of each node is on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Nvme {
    /// A folder of the node, which user 1000 can write to. Only in a privileged namespace.
    HostPath(String),
    /// A volume of this class for each worker, which is deleted with it.
    Claim(NvmeClaim),
    /// At most so much of the node's own storage for containers.
    EmptyDir(String),
}

/// A generic ephemeral volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NvmeClaim {
    pub(crate) storage_class: String,
    pub(crate) size: String,
}

/// `[workflow.reporting]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Reporting {
    /// Port at which one rank of each node serves metrics; 0: none does.
    pub(crate) metrics_port: u16,
    /// For how long it does after the end, so that the last steps are scraped.
    #[serde(with = "duration")]
    pub(crate) metrics_linger: Duration,
    /// URL of an OpenTelemetry collector.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) otlp: Option<String>,
    /// Store of baselines that gets the record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) records: Option<String>,
    /// Flags of the `compare` that judges a workflow's run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) compare: Vec<String>,
}

impl Default for Reporting {
    fn default() -> Self {
        let metrics_linger = Duration::from_secs(30);
        Self { metrics_port: 9402, metrics_linger, otlp: None, records: None, compare: Vec::new() }
    }
}

/// `[workflow.doctor]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Doctor {
    /// Train without it.
    pub(crate) skip: bool,
    /// Checks whose warnings and skips are failures.
    pub(crate) require: Vec<String>,
}

impl Doctor {
    /// Then a job has the id that it had before there was this table.
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
