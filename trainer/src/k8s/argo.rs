//! The WorkflowTemplate of Argo Workflows, `argoproj.io/v1alpha1`: train, then a verdict, and the
//! job is removed whatever happens. Each workflow of it is a run of its own.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, PodSecurityContext, Toleration, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;

use super::rendered::{Job, document};
use super::volumes::Mounted;
use super::{launcher, metadata, mpijob, placement, pod, security, volumes};
use crate::failure::Outcome;

/// What Argo replaces by the name of a workflow: part of its run's folder.
pub(super) const WORKFLOW: &str = "{{workflow.name}}";

/// Who may create the job: see `k8s/components/argo`. Only Argo's own program runs as it.
const SERVICE_ACCOUNT: &str = "yardstick-workflow";

/// As whom Argo's containers beside one of ours tell what became of it.
const EXECUTOR: &str = "yardstick-executor";

/// How much longer a workflow may take than its job: it waits for workers, judges and cleans up.
const MARGIN: Duration = Duration::from_secs(1800);

/// A WorkflowTemplate.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WorkflowTemplate {
    api_version: &'static str,
    kind: &'static str,
    metadata: ObjectMeta,
    spec: WorkflowSpec,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct WorkflowSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    active_deadline_seconds: Option<u64>,
    entrypoint: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_selector: Option<BTreeMap<String, String>>,
    on_exit: &'static str,
    pod_metadata: PodMetadata,
    security_context: PodSecurityContext,
    service_account_name: &'static str,
    synchronization: Synchronization,
    templates: Vec<Template>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tolerations: Option<Vec<Toleration>>,
    volumes: Vec<Volume>,
}

#[derive(Debug, Serialize)]
struct PodMetadata {
    labels: BTreeMap<String, String>,
}

#[derive(Debug, Serialize)]
struct Synchronization {
    mutexes: [Named; 1],
}

#[derive(Debug, Serialize)]
struct Named {
    name: String,
}

#[derive(Debug, Serialize, Default)]
#[serde(rename_all = "camelCase")]
struct Template {
    name: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    automount_service_account_token: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    container: Option<Container>,
    #[serde(skip_serializing_if = "Option::is_none")]
    executor: Option<Executor>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource: Option<Resource>,
    #[serde(skip_serializing_if = "Option::is_none")]
    service_account_name: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    steps: Vec<[Step; 1]>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Executor {
    service_account_name: &'static str,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Resource {
    action: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure_condition: Option<&'static str>,
    manifest: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    set_owner_reference: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    success_condition: Option<&'static str>,
}

#[derive(Debug, Serialize)]
struct Step {
    name: &'static str,
    template: &'static str,
}

/// The WorkflowTemplate of a job.
///
/// # Errors
/// Exit code 1, should the job not be serializable.
pub(super) fn of(job: &Job) -> Outcome<WorkflowTemplate> {
    let limit = job.benchmark.workload.time_limit;
    let step = |name| [Step { name, template: name }];
    let steps = vec![step("train"), step("verdict")];
    Ok(WorkflowTemplate {
        api_version: "argoproj.io/v1alpha1",
        kind: "WorkflowTemplate",
        metadata: metadata::of_object(job, job.name()),
        spec: WorkflowSpec {
            active_deadline_seconds: limit.map(|limit| (limit + MARGIN).as_secs()),
            entrypoint: "benchmark",
            node_selector: placement::node_labels(&job.benchmark.platform),
            on_exit: "clean-up",
            pod_metadata: PodMetadata { labels: metadata::labels(job) },
            security_context: security::of_pod(&job.benchmark),
            service_account_name: SERVICE_ACCOUNT,
            synchronization: Synchronization { mutexes: [Named { name: job.name().to_owned() }] },
            templates: vec![
                Template { name: "benchmark", steps, ..Template::default() },
                Template { name: "train", resource: Some(train(job)?), ..Template::default() },
                verdict(job),
                Template {
                    name: "clean-up",
                    resource: Some(clean_up(job)?),
                    ..Template::default()
                },
            ],
            tolerations: placement::tolerations_of_launcher(job),
            volumes: volumes::of_step(job).into_iter().map(|mounted| mounted.volume).collect(),
        },
    })
}

/// Creates the MPIJob, and waits for its launcher.
fn train(job: &Job) -> Outcome<Resource> {
    Ok(Resource {
        action: "create",
        failure_condition: Some("status.replicaStatuses.Launcher.failed > 0"),
        manifest: document(&mpijob::of(job))?,
        set_owner_reference: Some(true),
        success_condition: Some("status.replicaStatuses.Launcher.succeeded > 0"),
    })
}

/// The verdict, with the identity of the job, which reaches object stores, and without a token: not
/// with that of the workflow, which may create jobs.
fn verdict(job: &Job) -> Template {
    let account = job.benchmark.workflow.service_account.as_deref().unwrap_or("default");
    Template {
        name: "verdict",
        automount_service_account_token: Some(false),
        container: Some(judge(job)),
        executor: Some(Executor { service_account_name: EXECUTOR }),
        service_account_name: Some(account.to_owned()),
        ..Template::default()
    }
}

/// Compares the run with the baseline, of which there is none in the first night, or without a
/// store of baselines shows it.
fn judge(job: &Job) -> Container {
    let out = job.out();
    let arguments = match &job.benchmark.workflow.reporting.records {
        Some(store) => ["compare", "--allow-no-baseline", store, &out].map(str::to_owned).into(),
        None => vec!["report".to_owned(), out],
    };
    let mounts = volumes::of_step(job).into_iter().map(|Mounted { mount, .. }| mount);
    Container {
        resources: Some(launcher::resources()),
        volume_mounts: Some(mounts.collect()),
        ..pod::container(job, "main", arguments)
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Reference {
    api_version: &'static str,
    kind: &'static str,
    metadata: ObjectMeta,
}

/// Removes the MPIJob, if there is one.
fn clean_up(job: &Job) -> Outcome<Resource> {
    let metadata = ObjectMeta {
        name: Some(job.name().to_owned()),
        namespace: Some(job.benchmark.workflow.namespace.clone()),
        ..ObjectMeta::default()
    };
    let reference = Reference { api_version: mpijob::API_VERSION, kind: mpijob::KIND, metadata };
    Ok(Resource {
        action: "delete",
        failure_condition: None,
        manifest: document(&reference)?,
        set_owner_reference: None,
        success_condition: None,
    })
}
