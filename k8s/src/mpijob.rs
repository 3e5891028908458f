//! The parts of Kubeflow's mpi-operator MPIJob, `kubeflow.org/v2beta1`, that jobs use.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;

use super::rendered::Job;
use super::{launcher, metadata, security, worker};

pub(super) const API_VERSION: &str = "kubeflow.org/v2beta1";
pub(super) const KIND: &str = "MPIJob";

/// MPIJob resource.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MpiJob {
    api_version: &'static str,
    kind: &'static str,
    metadata: ObjectMeta,
    spec: MpiJobSpec,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct MpiJobSpec {
    launcher_creation_policy: &'static str,
    mpi_implementation: &'static str,
    mpi_replica_specs: ReplicaSpecs,
    run_policy: RunPolicy,
    slots_per_worker: u32,
    ssh_auth_mount_path: &'static str,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct ReplicaSpecs {
    launcher: ReplicaSpec,
    worker: ReplicaSpec,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ReplicaSpec {
    replicas: u32,
    restart_policy: &'static str,
    template: PodTemplateSpec,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RunPolicy {
    #[serde(skip_serializing_if = "Option::is_none")]
    active_deadline_seconds: Option<u64>,
    backoff_limit: u32,
    clean_pod_policy: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    scheduling_policy: Option<SchedulingPolicy>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SchedulingPolicy {
    min_available: u32,
}

/// Builds the MPIJob of a job.
pub(super) fn of(job: &Job) -> MpiJob {
    running(job, launcher::train(job))
}

/// Builds an MPIJob with the pods of a job and these arguments of the launcher.
pub(super) fn running(job: &Job, arguments: Vec<String>) -> MpiJob {
    MpiJob {
        api_version: API_VERSION,
        kind: KIND,
        metadata: ObjectMeta { labels: Some(labels(job)), ..metadata::of_object(job, job.name()) },
        spec: spec(job, arguments),
    }
}

/// Labels of the submitted object, including the queue that admits it.
pub(super) fn labels(job: &Job) -> BTreeMap<String, String> {
    let mut labels = metadata::labels(job);
    let queue = job.benchmark.platform.kueue_queue.clone();
    labels.extend(queue.map(|queue| ("kueue.x-k8s.io/queue-name".to_owned(), queue)));
    labels
}

fn spec(job: &Job, arguments: Vec<String>) -> MpiJobSpec {
    MpiJobSpec {
        // With "WaitForWorkersReady" one missing worker would mean no launcher: no message, no
        // deadline, and the other workers keep their GPUs. `launch` waits, and names the worker.
        launcher_creation_policy: "AtStartup",
        mpi_implementation: "OpenMPI",
        mpi_replica_specs: ReplicaSpecs {
            launcher: replicas(1, launcher::template(job, arguments)),
            worker: replicas(job.benchmark.workers(), worker::template(job)),
        },
        run_policy: run_policy(job),
        slots_per_worker: job.benchmark.workload.ranks_per_node(),
        ssh_auth_mount_path: security::ssh_folder(&job.benchmark),
    }
}

/// Disables restarts by the kubelet: the launcher restarts ranks itself, and its log stays whole.
fn replicas(replicas: u32, template: PodTemplateSpec) -> ReplicaSpec {
    ReplicaSpec { replicas, restart_policy: "Never", template }
}

/// Makes the launcher's result the job's, without a second launcher. Workers end with the launcher,
/// which frees their GPUs.
fn run_policy(job: &Job) -> RunPolicy {
    let benchmark = &job.benchmark;
    RunPolicy {
        active_deadline_seconds: benchmark.workload.time_limit.map(|limit| limit.as_secs()),
        backoff_limit: 0,
        clean_pod_policy: "Running",
        // The gang includes the launcher's pod.
        scheduling_policy: benchmark
            .platform
            .gang
            .then(|| SchedulingPolicy { min_available: benchmark.workers() + 1 }),
    }
}
