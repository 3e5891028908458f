//! How long the pods of a job took to start, by their status: `kubectl get pods -o json`.
//!
//! Times of the API server have a resolution of one second.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use chrono::{DateTime, FixedOffset};
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Outcome};

/// The label with the name of a pod's job: of mpi-operator, and of Kubeflow's trainer.
const JOB_NAMES: [&str; 2] = ["training.kubeflow.org/job-name", "jobset.sigs.k8s.io/jobset-name"];

/// The parts of the slowest pod's start, each the longest of all pods of the job; `None` where a
/// pod has not come so far, or the cluster does not tell.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub(crate) struct PodTimes {
    /// From creation until a node was found.
    pub(crate) scheduled_seconds: Option<f64>,
    /// Until volumes and network were there; not told before Kubernetes 1.29, where the time is in
    /// the next part.
    pub(crate) sandbox_seconds: Option<f64>,
    /// Until the image was pulled and the container ran.
    pub(crate) image_seconds: Option<f64>,
    /// Until the pod was ready; for a worker, until its ssh server listened.
    pub(crate) ready_seconds: Option<f64>,
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
        let label = |name: &&str| pod.metadata.labels.get(*name);
        let Some(job) = JOB_NAMES.iter().find_map(label) else { continue };
        let times = pod.times();
        jobs.entry(job.clone()).and_modify(|all| *all = all.longest(times)).or_insert(times);
    }
    Ok(jobs)
}

impl Pod {
    fn times(&self) -> PodTimes {
        let created = Some(self.metadata.creation_timestamp);
        let scheduled = self.when("PodScheduled");
        let sandbox = self.when("PodReadyToStartContainers");
        let started = self.started();
        PodTimes {
            scheduled_seconds: seconds(created, scheduled),
            sandbox_seconds: seconds(scheduled, sandbox),
            image_seconds: seconds(sandbox.or(scheduled), started),
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

fn seconds(from: Option<Time>, to: Option<Time>) -> Option<f64> {
    let between = to? - from?;
    Some((between.num_milliseconds() as f64 / 1e3).max(0.0))
}

impl PodTimes {
    fn longest(self, other: Self) -> Self {
        let longer = |a: Option<f64>, b: Option<f64>| Some(a?.max(b?));
        Self {
            scheduled_seconds: longer(self.scheduled_seconds, other.scheduled_seconds),
            sandbox_seconds: longer(self.sandbox_seconds, other.sandbox_seconds),
            image_seconds: longer(self.image_seconds, other.image_seconds),
            ready_seconds: longer(self.ready_seconds, other.ready_seconds),
        }
    }
}

impl fmt::Display for PodTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = [
            ("scheduled", self.scheduled_seconds),
            ("sandbox", self.sandbox_seconds),
            ("image", self.image_seconds),
            ("ready", self.ready_seconds),
        ]
        .map(|(name, seconds)| match seconds {
            Some(seconds) => format!("{name} {seconds:.0} s"),
            None => format!("{name} null"),
        });
        f.write_str(&shown.join(", "))
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
            {"type": "PodReadyToStartContainers", "status": "True",
             "lastTransitionTime": "2026-11-25T02:01:48Z"},
            {"type": "Ready", "status": "False", "lastTransitionTime": "2026-11-25T02:09:00Z"}],
          "containerStatuses": [
            {"state": {"terminated": {"startedAt": "2026-11-25T02:01:49Z"}}}]}},
        {"metadata": {"creationTimestamp": "2026-11-25T02:00:00Z"}, "status": {}}]}"#;

    #[test]
    fn the_longest_parts_of_all_pods_of_a_job_count() {
        let jobs = of_jobs(PODS).unwrap();
        let expected = PodTimes {
            scheduled_seconds: Some(12.0),
            sandbox_seconds: Some(4.0),
            image_seconds: Some(82.0),
            ready_seconds: None, // of the launcher, which has ended
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
