//! How long the pods of a job took to start, by their status: `kubectl get pods -o json`.
//!
//! Times of the API server have a resolution of one second.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use chrono::{DateTime, FixedOffset};
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Outcome};

/// The label with the name of a pod's job, which mpi-operator sets.
const JOB_NAME: &str = "training.kubeflow.org/job-name";

/// The parts of the slowest pod's start, each the longest of all pods of the job.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub(crate) struct PodTimes {
    /// From creation until a node was found.
    pub(crate) scheduled_seconds: f64,
    /// Until volumes and network were there; `0` where the cluster does not tell (before
    /// Kubernetes 1.29), and the time is in the next part.
    pub(crate) sandbox_seconds: f64,
    /// Until the image was pulled and the container ran.
    pub(crate) image_seconds: f64,
    /// Until the pod was ready; for a worker, until its ssh server listened.
    pub(crate) ready_seconds: f64,
}

#[derive(Deserialize)]
struct List {
    items: Vec<Pod>,
}

#[derive(Deserialize)]
struct Pod {
    metadata: Metadata,
    status: Status,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default)]
    labels: BTreeMap<String, String>,
    creation_timestamp: Time,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    #[serde(default)]
    conditions: Vec<Condition>,
    #[serde(default)]
    container_statuses: Vec<Container>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    last_transition_time: Option<Time>,
}

#[derive(Deserialize)]
struct Container {
    state: State,
}

#[derive(Deserialize, Default)]
struct State {
    running: Option<Started>,
    terminated: Option<Started>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Started {
    started_at: Option<Time>,
}

type Time = DateTime<FixedOffset>;

/// The times of each job whose pods are in a file.
///
/// # Errors
/// Exit code 2 for a file that is not a list of pods.
pub(crate) fn read(file: &Path) -> Outcome<BTreeMap<String, PodTimes>> {
    let refused = |error: &dyn fmt::Display| {
        let file = file.display();
        Failure::usage(format!("{file}: expected what `kubectl get pods -o json` prints: {error}"))
    };
    let text = std::fs::read_to_string(file).map_err(|error| refused(&error))?;
    of_jobs(&text).map_err(|error| refused(&error))
}

fn of_jobs(text: &str) -> serde_json::Result<BTreeMap<String, PodTimes>> {
    let List { items } = serde_json::from_str(text)?;
    let mut jobs: BTreeMap<String, PodTimes> = BTreeMap::new();
    for pod in &items {
        if let Some(job) = pod.metadata.labels.get(JOB_NAME) {
            jobs.entry(job.clone()).or_default().include(&pod.times());
        }
    }
    Ok(jobs)
}

impl Pod {
    fn times(&self) -> PodTimes {
        let created = Some(self.metadata.creation_timestamp);
        let scheduled = self.when("PodScheduled");
        let sandbox = self.when("PodReadyToStartContainers").or(scheduled);
        let started = self.started();
        PodTimes {
            scheduled_seconds: seconds(created, scheduled),
            sandbox_seconds: seconds(scheduled, sandbox),
            image_seconds: seconds(sandbox, started),
            ready_seconds: seconds(started, self.when("Ready")),
        }
    }

    /// When a condition came true, if it still is.
    fn when(&self, kind: &str) -> Option<Time> {
        let mut conditions = self.status.conditions.iter();
        let condition = conditions.find(|it| it.kind == kind && it.status == "True")?;
        condition.last_transition_time
    }

    fn started(&self) -> Option<Time> {
        let state = &self.status.container_statuses.first()?.state;
        state.running.as_ref().or(state.terminated.as_ref())?.started_at
    }
}

/// Nothing where one of them is not known.
fn seconds(from: Option<Time>, to: Option<Time>) -> f64 {
    let between = from.zip(to).map(|(from, to)| (to - from).num_milliseconds() as f64 / 1e3);
    between.unwrap_or_default().max(0.0)
}

impl PodTimes {
    fn include(&mut self, other: &Self) {
        let Self { scheduled_seconds, sandbox_seconds, image_seconds, ready_seconds } = self;
        *scheduled_seconds = scheduled_seconds.max(other.scheduled_seconds);
        *sandbox_seconds = sandbox_seconds.max(other.sandbox_seconds);
        *image_seconds = image_seconds.max(other.image_seconds);
        *ready_seconds = ready_seconds.max(other.ready_seconds);
    }
}

impl fmt::Display for PodTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scheduled_seconds, sandbox_seconds, image_seconds, ready_seconds } = self;
        write!(
            f,
            "scheduled after {scheduled_seconds:.0} s, sandbox {sandbox_seconds:.0} s, image \
             {image_seconds:.0} s, ready {ready_seconds:.0} s"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the API server of 1.34 said of a worker and of a launcher that has ended.
    const PODS: &str = r#"{"items": [
        {"metadata": {"labels": {"training.kubeflow.org/job-name": "nightly"},
                      "creationTimestamp": "2026-11-25T02:00:00Z"},
         "status": {"conditions": [
            {"type": "PodReadyToStartContainers", "status": "True",
             "lastTransitionTime": "2026-11-25T02:00:08Z"},
            {"type": "PodScheduled", "status": "True",
             "lastTransitionTime": "2026-11-25T02:00:05Z"},
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-25T02:01:32Z"}],
          "containerStatuses": [{"state": {"running": {"startedAt": "2026-11-25T02:01:30Z"}}}]}},
        {"metadata": {"labels": {"training.kubeflow.org/job-name": "nightly"},
                      "creationTimestamp": "2026-11-25T02:01:32Z"},
         "status": {"conditions": [
            {"type": "PodScheduled", "status": "True",
             "lastTransitionTime": "2026-11-25T02:01:44Z"},
            {"type": "Ready", "status": "False", "lastTransitionTime": "2026-11-25T02:09:00Z"}],
          "containerStatuses": [
            {"state": {"terminated": {"startedAt": "2026-11-25T02:01:45Z"}}}]}},
        {"metadata": {"creationTimestamp": "2026-11-25T02:00:00Z"}, "status": {}}]}"#;

    #[test]
    fn the_longest_parts_of_all_pods_of_a_job_count() {
        let jobs = of_jobs(PODS).unwrap();
        let expected = PodTimes {
            scheduled_seconds: 12.0,
            sandbox_seconds: 3.0,
            image_seconds: 82.0,
            ready_seconds: 2.0,
        };
        assert_eq!(jobs, BTreeMap::from([("nightly".to_owned(), expected)]));
    }

    #[test]
    fn another_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pods.json");
        std::fs::write(&file, "NAME READY\n").unwrap();
        let error = read(&file).unwrap_err().to_string();
        assert!(error.contains("pods.json: expected what `kubectl get pods -o json`"), "{error}");
    }
}
