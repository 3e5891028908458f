//! The controller that runs a job.

use std::collections::BTreeMap;

use clap::ValueEnum;

use super::metadata::map;

/// The objects that a job is rendered as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Format {
    /// An MPIJob of mpi-operator (`kubeflow.org/v2beta1`).
    #[default]
    Mpijob,
    /// A TrainJob of Kubeflow's trainer with its runtime (`trainer.kubeflow.org/v1alpha1`).
    Trainjob,
    /// A WorkflowTemplate of Argo Workflows, which creates the MPIJob, judges it and removes it.
    Argo,
}

impl Format {
    /// Labels with which its controller marks all pods of the job.
    pub(super) fn pods(self, name: &str) -> BTreeMap<String, String> {
        match self {
            Self::Mpijob | Self::Argo => map([("training.kubeflow.org/job-name", name)]),
            Self::Trainjob => map([("jobset.sigs.k8s.io/jobset-name", name)]),
        }
    }

    /// Labels with which its controller marks the workers of the job.
    pub(super) fn workers(self, name: &str) -> BTreeMap<String, String> {
        let mut labels = self.pods(name);
        labels.extend(match self {
            Self::Mpijob | Self::Argo => map([("training.kubeflow.org/job-role", "worker")]),
            Self::Trainjob => map([("jobset.sigs.k8s.io/replicatedjob-name", "node")]),
        });
        labels
    }

    /// Labels with which its controller marks the launcher of the job.
    pub(super) fn launcher(self, name: &str) -> BTreeMap<String, String> {
        let mut labels = self.pods(name);
        labels.extend(match self {
            Self::Mpijob | Self::Argo => map([("training.kubeflow.org/job-role", "launcher")]),
            Self::Trainjob => map([("jobset.sigs.k8s.io/replicatedjob-name", "launcher")]),
        });
        labels
    }

    /// Longest name that the controller derives from the job's name with this number of workers.
    pub(super) fn longest_name(self, name: &str, workers: u32) -> String {
        match self {
            Self::Mpijob | Self::Argo => format!("{name}-worker-{}", workers - 1),
            // Pods of an indexed Job have five random characters at the end.
            Self::Trainjob => format!("{name}-launcher-0-0-xxxxx"),
        }
    }
}
