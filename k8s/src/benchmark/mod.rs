//! The benchmark file: the workload to train (`[workload]`), how a site runs jobs (`[workflow]`),
//! and the hardware and policies of its nodes (`[platform]`).

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

/// One job: the input of all its objects, except the workload file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Benchmark {
    /// Images, storage, reporting: the same for all jobs of a site.
    pub(super) workflow: Workflow,
    /// Hardware and policies of the nodes, and how pods request them.
    #[serde(default)]
    pub(super) platform: Platform,
    /// Workload to train, and the number of nodes.
    pub(super) workload: Workload,
    /// Values of which each combination is a separate job; `None` in a job.
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

    /// Replaces the workload.
    pub(super) fn with_workload(mut self, workload: &str) -> Self {
        workload.clone_into(&mut self.workload.workload);
        self
    }

    /// Number of pods that run ranks or are spare.
    pub(super) fn workers(&self) -> u32 {
        self.workload.nodes + self.workload.spares
    }

    /// Returns whether ranks compute on GPUs.
    pub(super) fn is_on_gpus(&self) -> bool {
        self.workload.gpus_per_node.is_some()
    }

    /// Image for the device that ranks compute on.
    pub(super) fn image(&self) -> &str {
        let images = &self.workflow.images;
        let image = if self.is_on_gpus() { &images.cuda } else { &images.cpu };
        image.as_deref().unwrap_or_default() // checked: there is one
    }
}
