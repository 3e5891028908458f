//! The parts of Kubeflow's trainer TrainJob, `trainer.kubeflow.org/v1alpha1`, and of its runtime
//! that jobs use.
//!
//! The runtime defines everything: the trainer writes the hostfile and the ssh keys for it. Its
//! names of replicated jobs (`launcher`, `node`) and containers (`node`) are fixed.

use k8s_openapi::api::batch::v1::{JobSpec, JobTemplateSpec};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;

use super::benchmark::Benchmark;
use super::rendered::Job;
use super::{launcher, metadata, mpijob, security, worker};
use crate::error::{Error, Result};

const API_VERSION: &str = "trainer.kubeflow.org/v1alpha1";
const LAUNCHER: &str = "launcher";
const NODE: &str = "node";

/// Runtime of a single job: its pods, and the trainer's settings.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TrainingRuntime {
    api_version: &'static str,
    kind: &'static str,
    metadata: ObjectMeta,
    spec: RuntimeSpec,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RuntimeSpec {
    ml_policy: MlPolicy,
    template: JobSetTemplate,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct MlPolicy {
    mpi: MpiPolicy,
    num_nodes: u32,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct MpiPolicy {
    mpi_implementation: &'static str,
    num_proc_per_node: u32,
    run_launcher_as_node: bool,
    ssh_auth_mount_path: &'static str,
}

#[derive(Debug, Serialize)]
struct JobSetTemplate {
    spec: JobSetSpec,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct JobSetSpec {
    network: Network,
    replicated_jobs: [ReplicatedJob; 2],
    success_policy: SuccessPolicy,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Network {
    publish_not_ready_addresses: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SuccessPolicy {
    operator: &'static str,
    target_replicated_jobs: [&'static str; 1],
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ReplicatedJob {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    depends_on: Vec<DependsOn>,
    name: &'static str,
    replicas: u32,
    template: JobTemplateSpec,
}

#[derive(Debug, Serialize)]
struct DependsOn {
    name: &'static str,
    status: &'static str,
}

/// Submitted object: a reference to the runtime.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TrainJob {
    api_version: &'static str,
    kind: &'static str,
    metadata: ObjectMeta,
    spec: TrainJobSpec,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct TrainJobSpec {
    runtime_ref: RuntimeRef,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RuntimeRef {
    api_group: &'static str,
    kind: &'static str,
    name: String,
}

/// Refuses benchmarks that the trainer cannot run.
///
/// # Errors
/// Exit code 2 with the key and the reason.
pub(super) fn check(benchmark: &Benchmark) -> Result<()> {
    let Benchmark { platform, workload, .. } = benchmark;
    let refuse = |key: &str, found: &dyn ToString, expected: &str, why: &str| {
        let expected = format!("{expected} with --format trainjob: {why}; --format mpijob can");
        Err(Error::invalid(key, found.to_string(), expected))
    };
    if platform.gang {
        let why = "its gang counts the launcher, which is created only when all workers are ready";
        return refuse("platform.gang", &true, "false", why);
    }
    if platform.root {
        let why = "it mounts ssh keys that others may read, which ssh refuses of root";
        return refuse("platform.root", &true, "false", why);
    }
    if workload.spares > 0 {
        let why = "a lost pod ends the job, with the launcher and the spare workers";
        return refuse("workload.spares", &workload.spares, "0", why);
    }
    Ok(())
}

/// Builds the runtime of a job.
pub(super) fn runtime(job: &Job) -> TrainingRuntime {
    let workload = &job.benchmark.workload;
    TrainingRuntime {
        api_version: API_VERSION,
        kind: "TrainingRuntime",
        metadata: metadata::of_object(job, job.name()),
        spec: RuntimeSpec {
            ml_policy: MlPolicy {
                mpi: MpiPolicy {
                    mpi_implementation: "OpenMPI",
                    num_proc_per_node: workload.ranks_per_node(),
                    run_launcher_as_node: false,
                    ssh_auth_mount_path: security::ssh_folder(&job.benchmark),
                },
                num_nodes: job.benchmark.workers(),
            },
            template: JobSetTemplate { spec: job_set(job) },
        },
    }
}

/// Starts the launcher once all workers are ready. The launcher's result is the job's, and only the
/// launcher restarts ranks: without a failure policy JobSet fails with its first job. A policy with
/// `maxRestarts: 0` means the same, but the trainer omits zeros when it writes, and could then
/// never put its finalizer on the runtime: policies are immutable.
fn job_set(job: &Job) -> JobSetSpec {
    let limit_seconds = job.benchmark.workload.time_limit.map(|limit| limit.as_secs());
    let workers = i32::try_from(job.benchmark.workers()).unwrap_or(i32::MAX);
    let ready = DependsOn { name: NODE, status: "Ready" };
    let mut launcher =
        replicated(LAUNCHER, 1, launcher::template(job, launcher::train(job)), vec![ready]);
    if let Some(spec) = &mut launcher.template.spec {
        spec.active_deadline_seconds = limit_seconds.and_then(|limit| i64::try_from(limit).ok());
    }
    JobSetSpec {
        network: Network { publish_not_ready_addresses: true },
        replicated_jobs: [replicated(NODE, workers, worker::template(job), Vec::new()), launcher],
        success_policy: SuccessPolicy { operator: "All", target_replicated_jobs: [LAUNCHER] },
    }
}

fn replicated(
    name: &'static str,
    pods: i32,
    mut template: PodTemplateSpec,
    depends_on: Vec<DependsOn>,
) -> ReplicatedJob {
    let pod = template.spec.get_or_insert_default();
    pod.restart_policy = Some("Never".to_owned());
    for container in &mut pod.containers {
        NODE.clone_into(&mut container.name);
    }
    let spec = JobSpec {
        backoff_limit: Some(0),
        completions: Some(pods),
        parallelism: Some(pods),
        template,
        ..JobSpec::default()
    };
    // This label marks the job whose number of pods the trainer sets to that of nodes.
    let labels = (name == NODE)
        .then(|| metadata::map([("trainer.kubeflow.org/trainjob-ancestor-step", "trainer")]));
    let metadata = labels.map(|labels| ObjectMeta { labels: Some(labels), ..Default::default() });
    let template = JobTemplateSpec { metadata, spec: Some(spec) };
    ReplicatedJob { depends_on, name, replicas: 1, template }
}

/// Builds the TrainJob of a job.
pub(super) fn of(job: &Job) -> TrainJob {
    TrainJob {
        api_version: API_VERSION,
        kind: "TrainJob",
        metadata: ObjectMeta {
            labels: Some(mpijob::labels(job)),
            ..metadata::of_object(job, job.name())
        },
        spec: TrainJobSpec {
            runtime_ref: RuntimeRef {
                api_group: "trainer.kubeflow.org",
                kind: "TrainingRuntime",
                name: job.name().to_owned(),
            },
        },
    }
}
