//! `[workflow]`: settings that all jobs of a site share.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use record::text::duration;

/// The `[workflow]` table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Workflow {
    /// Namespace of the jobs.
    #[serde(default = "default_namespace")]
    pub(crate) namespace: String,
    /// Service account of the jobs; the namespace's default if absent. None has a token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) service_account: Option<String>,
    /// Images of the containers.
    pub(crate) images: Images,
    /// Storage that jobs write to.
    pub(crate) storage: Storage,
    /// Metrics, records and comparisons.
    #[serde(default)]
    pub(crate) reporting: Reporting,
    /// Node checks before a workflow trains.
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
    /// Image for workloads on CPUs. With a digest, a job is the same next month.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpu: Option<String>,
    /// Image for workloads on GPUs: with NCCL and cuBLASLt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cuda: Option<String>,
    /// Pull policy of nodes; the cluster's default if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pull_policy: Option<PullPolicy>,
    /// Secret with the registry's credentials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pull_secret: Option<String>,
}

/// Pull policy of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are those of Kubernetes")]
pub(crate) enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

impl PullPolicy {
    /// Name of the policy, as in a container.
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
    /// Claim with the folders of runs; all pods mount it, so it must be ReadWriteMany.
    #[serde(default = "default_results")]
    pub(crate) results: String,
    /// Claim of the shared tier of checkpoints; the folders of runs if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) shared: Option<String>,
    /// Checkpoint tier of each node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) nvme: Option<Nvme>,
    /// Checkpoint tier in an object store, such as `s3://bucket/prefix`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) object: Option<String>,
    /// Secret whose keys are variables of the object store's client, such as `AWS_ACCESS_KEY_ID`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) object_secret: Option<String>,
}

fn default_results() -> String {
    "yardstick-results".to_owned()
}

/// Volume of the tier of each node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Nvme {
    /// Folder of the node, which user 1000 can write to. Only in a privileged namespace.
    HostPath(String),
    /// Volume of this class for each worker, which is deleted with it.
    Claim(NvmeClaim),
    /// Maximum size in the node's own storage for containers.
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
    /// Port on which one rank of each node serves metrics; 0 to serve none.
    pub(crate) metrics_port: u16,
    /// Time to serve metrics after the end, so that the last steps are scraped.
    #[serde(with = "duration")]
    pub(crate) metrics_linger: Duration,
    /// URL of an OpenTelemetry collector.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) otlp: Option<String>,
    /// Store of baselines that the record is added to.
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
    /// Trains without the checks.
    pub(crate) skip: bool,
    /// Checks whose warnings and skips are failures.
    pub(crate) require: Vec<String>,
}

impl Doctor {
    /// Omits an empty table, so that jobs keep the id that they had before this table existed.
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
