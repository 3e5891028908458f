//! Parts that the pods of launcher and workers share.

use k8s_openapi::api::core::v1::{
    Container, EnvFromSource, EnvVar, EnvVarSource, LocalObjectReference, ObjectFieldSelector,
    PodSpec, PodTemplateSpec, SecretEnvSource,
};
use record::benchmark_file;

use super::benchmark::{Benchmark, Workflow};
use super::rendered::Job;
use super::volumes::Mounted;
use super::{metadata, paths, security};

/// Time to terminate that a pod has beyond that of its ranks: sshd stops, and logs are written.
const GRACE_MARGIN_SECONDS: u64 = 30;

/// Builds the pods of one role.
pub(super) fn template(job: &Job, container: Container, mounted: Vec<Mounted>) -> PodTemplateSpec {
    let mut volumes = Vec::new();
    let mut mounts = Vec::new();
    for Mounted { volume, mount } in mounted {
        volumes.push(volume);
        mounts.push(mount);
    }
    let container = Container { volume_mounts: Some(mounts), ..container };
    let spec = PodSpec { containers: vec![container], volumes: Some(volumes), ..spec(job) };
    PodTemplateSpec { metadata: Some(metadata::of_pod(job)), spec: Some(spec) }
}

/// Builds the spec of a pod, without access to the cluster and without variables of its services.
fn spec(job: &Job) -> PodSpec {
    let Benchmark { workflow, platform, workload, .. } = &job.benchmark;
    let grace_seconds = workload.grace.as_secs() + GRACE_MARGIN_SECONDS;
    PodSpec {
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        image_pull_secrets: pull_secrets(workflow),
        priority_class_name: platform.priority_class.clone(),
        security_context: Some(security::of_pod(&job.benchmark)),
        service_account_name: workflow.service_account.clone(),
        termination_grace_period_seconds: i64::try_from(grace_seconds).ok(),
        ..PodSpec::default()
    }
}

/// Secret of the registry of the images.
pub(super) fn pull_secrets(workflow: &Workflow) -> Option<Vec<LocalObjectReference>> {
    let name = workflow.images.pull_secret.clone()?;
    Some(vec![LocalObjectReference { name }])
}

/// A container that runs a subcommand of yardstick.
pub(super) fn container(job: &Job, name: &str, arguments: Vec<String>) -> Container {
    let Benchmark { workflow, .. } = &job.benchmark;
    let policy = workflow.images.pull_policy.map(|policy| policy.name().to_owned());
    Container {
        name: name.to_owned(),
        image: Some(job.benchmark.image().to_owned()),
        image_pull_policy: policy,
        command: Some(vec!["yardstick".to_owned()]),
        args: Some(arguments.iter().map(|argument| literal(argument)).collect()),
        env: Some(variables(&job.benchmark)),
        env_from: object_store(workflow),
        security_context: Some(security::of_container(&job.benchmark)),
        ..Container::default()
    }
}

/// The credentials of the object store.
fn object_store(workflow: &Workflow) -> Option<Vec<EnvFromSource>> {
    let name = workflow.storage.object_secret.clone()?;
    let secret = SecretEnvSource { name, optional: Some(false) };
    Some(vec![EnvFromSource { secret_ref: Some(secret), ..EnvFromSource::default() }])
}

/// Escapes a text: Kubernetes replaces `$(NAME)` by the value of a variable.
fn literal(text: &str) -> String {
    text.replace("$(", "$$(")
}

/// A variable with this value.
fn variable(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(literal(value)), ..EnvVar::default() }
}

/// A variable with the value of a field of the pod.
fn of_field(name: &str, path: &str) -> EnvVar {
    let field = ObjectFieldSelector { field_path: path.to_owned(), ..Default::default() };
    let source = EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() };
    EnvVar { name: name.to_owned(), value_from: Some(source), ..EnvVar::default() }
}

/// Variables that name the pod's location and tiers, and those of the platform.
fn variables(benchmark: &Benchmark) -> Vec<EnvVar> {
    let storage = &benchmark.workflow.storage;
    let mut all =
        vec![of_field("POD_NAME", "metadata.name"), of_field("NODE_NAME", "spec.nodeName")];
    all.push(variable(
        benchmark_file::VARIABLE,
        &format!("{}/{}", paths::JOB, paths::BENCHMARK_FILE),
    ));
    let nvme = storage.nvme.is_some().then(|| variable("LOCAL_CHECKPOINT_DIR", paths::NVME));
    let shared = storage.shared.is_some().then(|| variable("SHARED_CHECKPOINT_DIR", paths::SHARED));
    all.extend(nvme.into_iter().chain(shared));
    // The cache holds compiled kernels and token files: the home folder is read-only.
    let cache = if storage.nvme.is_some() { paths::NVME } else { paths::TEMPORARY };
    all.push(variable("YARDSTICK_CACHE_DIR", &format!("{cache}/cache")));
    let root = ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"];
    let root = root.iter().filter(|_| benchmark.platform.root);
    all.extend(root.map(|name| variable(name, "1")));
    all.extend(benchmark.platform.environment.iter().map(|(name, value)| variable(name, value)));
    all
}
