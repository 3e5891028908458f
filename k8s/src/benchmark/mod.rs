//! The benchmark file: what is trained (`[workload]`), how a site runs jobs (`[workflow]`), and
//! what its nodes have (`[platform]`).

mod checks;
mod file;
mod matrix;
mod platform;
mod workflow;
mod workload;

use serde::{Deserialize, Serialize};

pub use file::{parse, read};
use matrix::Matrix;
pub(super) use platform::{Platform, PodSecurity, Rack};
pub(super) use workflow::{Nvme, NvmeClaim, Workflow};
pub(super) use workload::Workload;

/// One job: everything that its objects are made of, but for the workload file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Benchmark {
    /// Images, storage, reporting: the same for all jobs of a site.
    pub(super) workflow: Workflow,
    /// What the nodes have, and how pods get it.
    #[serde(default)]
    pub(super) platform: Platform,
    /// What is trained, on how many nodes.
    pub(super) workload: Workload,
    /// Values of which each combination is a job of its own; `None` in a job.
    #[serde(skip_serializing_if = "Option::is_none")]
    matrix: Option<Matrix>,
}

impl Benchmark {
    /// Name of the job, of its service and of its folder among the results.
    pub fn name(&self) -> &str {
        &self.workload.name
    }

    /// Number of ranks.
    pub fn world(&self) -> usize {
        self.workload.nodes as usize * self.workload.ranks_per_node() as usize
    }

    /// The same with another workload.
    pub(super) fn with_workload(mut self, workload: &str) -> Self {
        workload.clone_into(&mut self.workload.workload);
        self
    }

    /// Pods that run ranks or stand by.
    pub(super) fn workers(&self) -> u32 {
        self.workload.nodes + self.workload.spares
    }

    /// Whether ranks compute on GPUs.
    pub(super) fn is_on_gpus(&self) -> bool {
        self.workload.gpus_per_node.is_some()
    }

    /// The image for the device that ranks compute on.
    pub(super) fn image(&self) -> &str {
        let images = &self.workflow.images;
        let image = if self.is_on_gpus() { &images.cuda } else { &images.cpu };
        image.as_deref().unwrap_or_default() // checked: there is one
    }
}
