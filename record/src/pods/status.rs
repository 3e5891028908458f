//! Output of `kubectl get ... -o json` for pods and jobs: the fields that their start times need.

use std::collections::BTreeMap;

use chrono::{DateTime, FixedOffset};
use serde::Deserialize;

/// Labels with the name of a pod's job: of mpi-operator, and of Kubeflow's trainer.
const JOB_NAMES: [&str; 2] = ["training.kubeflow.org/job-name", "jobset.sigs.k8s.io/jobset-name"];

/// Labels with the role of a pod in its job, of both.
const ROLES: [&str; 2] =
    ["training.kubeflow.org/job-role", "jobset.sigs.k8s.io/replicatedjob-name"];

/// Annotation with the name of a pod's main container, set by those that inject other containers.
/// (kubernetes.io/docs/reference/labels-annotations-taints)
const MAIN_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// Names of our containers: in the pods of an `MPIJob`, and in those of a `TrainJob`.
const CONTAINERS: [&str; 3] = ["launcher", "worker", "node"];

/// Kinds of jobs that may wait in a queue before they have pods.
const JOBS: [&str; 2] = ["MPIJob", "TrainJob"];

pub(super) type Time = DateTime<FixedOffset>;

#[derive(Debug, Deserialize)]
pub(super) struct List {
    pub(super) items: Vec<Item>,
}

/// A pod or a job; other kinds are ignored.
#[derive(Debug, Deserialize)]
pub(super) struct Item {
    kind: String,
    metadata: Metadata,
    #[serde(default)]
    status: Status,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    creation_timestamp: Time,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    conditions: Vec<Condition>,
    container_statuses: Vec<Container>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    last_transition_time: Option<Time>,
}

#[derive(Debug, Deserialize)]
struct Container {
    #[serde(default)]
    name: String,
    state: State,
}

#[derive(Debug, Deserialize)]
struct State {
    running: Option<Started>,
    terminated: Option<Started>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Started {
    started_at: Option<Time>,
}

impl Item {
    /// Returns the job of this pod.
    pub(super) fn job_of_pod(&self) -> Option<&str> {
        if self.kind == "Pod" { self.label(JOB_NAMES) } else { None }
    }

    /// Returns whether this is the job of this name.
    pub(super) fn is_job(&self, name: &str) -> bool {
        JOBS.contains(&self.kind.as_str()) && self.metadata.name == name
    }

    pub(super) fn is_launcher(&self) -> bool {
        self.label(ROLES) == Some("launcher")
    }

    fn label(&self, names: [&str; 2]) -> Option<&str> {
        names.iter().find_map(|name| self.metadata.labels.get(*name)).map(String::as_str)
    }

    pub(super) fn created(&self) -> Time {
        self.metadata.creation_timestamp
    }

    /// Time at which a condition became true, if it still is.
    pub(super) fn when(&self, kind: &str) -> Option<Time> {
        let mut conditions = self.status.conditions.iter();
        let condition = conditions.find(|it| it.kind == kind && it.status == "True")?;
        condition.last_transition_time
    }

    /// Start time of our container in a pod.
    pub(super) fn started(&self) -> Option<Time> {
        let state = &self.container()?.state;
        state.running.as_ref().or(state.terminated.as_ref())?.started_at
    }

    /// Returns our container, to which a service mesh or a storage driver may have added others:
    /// the annotated one, else one with a name of ours, else the only one.
    fn container(&self) -> Option<&Container> {
        let all = &self.status.container_statuses;
        let main = self.metadata.annotations.get(MAIN_CONTAINER);
        let marked = all.iter().find(|it| Some(&it.name) == main);
        let named = || all.iter().find(|it| CONTAINERS.contains(&it.name.as_str()));
        marked.or_else(named).or(all.first().filter(|_| all.len() == 1))
    }
}
