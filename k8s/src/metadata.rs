//! Names, labels and annotations, which identify the objects of a job and what it runs.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};

use super::rendered::Job;

/// Builds a map of labels or annotations.
pub(super) fn map<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

/// Labels of every object and pod of a job.
pub(super) fn labels(job: &Job) -> BTreeMap<String, String> {
    let mut labels = map([
        ("app.kubernetes.io/name", "yardstick"),
        ("app.kubernetes.io/instance", job.name()),
        ("app.kubernetes.io/version", env!("CARGO_PKG_VERSION")),
        ("yardstick/job-id", job.id()),
    ]);
    let workload = job.workload_id().map(|id| ("yardstick/workload-id".to_owned(), id));
    labels.extend(workload);
    labels
}

/// Metadata of an object of a job.
pub(super) fn of_object(job: &Job, name: &str) -> ObjectMeta {
    let workload = &job.benchmark.workload.workload;
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(job.benchmark.workflow.namespace.clone()),
        labels: Some(labels(job)),
        annotations: Some(map([("yardstick/workload", workload)])),
        ..ObjectMeta::default()
    }
}

/// Metadata of a pod.
pub(super) fn of_pod(job: &Job) -> ObjectMeta {
    ObjectMeta { labels: Some(labels_of_pod(job)), ..ObjectMeta::default() }
}

/// Labels of a pod, without a proxy: it would sit between ranks, and keep a task from ending.
pub(super) fn labels_of_pod(job: &Job) -> BTreeMap<String, String> {
    let mut labels = labels(job);
    labels.extend(map([("sidecar.istio.io/inject", "false")]));
    labels
}

/// Selects all pods of a job.
pub(super) fn pods_of(job: &Job) -> LabelSelector {
    selector(job.format().pods(job.name()))
}

/// Selects the workers of a job.
pub(super) fn workers_of(job: &Job) -> LabelSelector {
    selector(job.format().workers(job.name()))
}

/// Selects the launcher of a job.
pub(super) fn launcher_of(job: &Job) -> LabelSelector {
    selector(job.format().launcher(job.name()))
}

fn selector(labels: BTreeMap<String, String>) -> LabelSelector {
    LabelSelector { match_labels: Some(labels), ..LabelSelector::default() }
}
