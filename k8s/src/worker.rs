//! The workers' pods: sshd under `yardstick worker`, which runs the ranks of a node.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, PodSpec, PodTemplateSpec, Probe, ResourceRequirements,
    TCPSocketAction,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::benchmark::Benchmark;
use super::paths::SSH_PORT;
use super::rendered::Job;
use super::{launcher, placement, pod, volumes};

/// Builds the pods of workers.
pub(super) fn template(job: &Job) -> PodTemplateSpec {
    let platform = &job.benchmark.platform;
    let container = Container {
        ports: Some(ports(&job.benchmark)),
        readiness_probe: Some(readiness()),
        resources: Some(resources(&job.benchmark)),
        ..pod::container(job, "worker", arguments(&job.benchmark))
    };
    let mut template = pod::template(job, container, volumes::of_worker(job));
    let annotations = &platform.annotations;
    let metadata = template.metadata.get_or_insert_default();
    metadata.annotations = (!annotations.is_empty()).then(|| annotations.clone());
    let common = template.spec.take().unwrap_or_default();
    let is_on_host = platform.host_network;
    template.spec = Some(PodSpec {
        affinity: placement::affinity(job),
        dns_policy: is_on_host.then(|| "ClusterFirstWithHostNet".to_owned()),
        host_network: is_on_host.then_some(true),
        node_selector: placement::node_labels(platform),
        runtime_class_name: platform.runtime_class.clone(),
        tolerations: placement::tolerations(job),
        ..common
    });
    template
}

fn arguments(benchmark: &Benchmark) -> Vec<String> {
    let mut arguments = vec!["worker".to_owned()];
    arguments.extend(launcher::grace(benchmark));
    arguments
}

fn ports(benchmark: &Benchmark) -> Vec<ContainerPort> {
    let port = |name: &str, container_port| ContainerPort {
        name: Some(name.to_owned()),
        container_port,
        ..ContainerPort::default()
    };
    let metrics = i32::from(benchmark.workflow.reporting.metrics_port);
    let metrics = (metrics > 0).then(|| port("metrics", metrics));
    std::iter::once(port("ssh", SSH_PORT)).chain(metrics).collect()
}

/// Probes sshd: without a probe, ready means only that the container was started.
fn readiness() -> Probe {
    let socket = TCPSocketAction { port: IntOrString::Int(SSH_PORT), host: None };
    Probe { tcp_socket: Some(socket), period_seconds: Some(2), ..Probe::default() }
}

/// Resources of a worker. Requests equal limits, so that a worker gets what it is measured with.
fn resources(benchmark: &Benchmark) -> ResourceRequirements {
    let Benchmark { platform, workload, .. } = benchmark;
    let mut limits = BTreeMap::new();
    let mut limit = |name: &str, quantity: Option<String>| {
        limits.extend(quantity.map(|quantity| (name.to_owned(), Quantity(quantity))));
    };
    limit("cpu", platform.cpu.clone());
    limit("memory", platform.memory.clone());
    limit("ephemeral-storage", platform.ephemeral_storage.clone());
    limit("hugepages-2Mi", platform.hugepages_2mi.clone());
    limit(&platform.gpu_resource, workload.gpus_per_node.map(|count| count.to_string()));
    if let Some(rdma) = &platform.rdma {
        limit(&rdma.resource, Some(rdma.count.to_string()));
    }
    let limits = (!limits.is_empty()).then_some(limits);
    ResourceRequirements { requests: limits.clone(), limits, ..ResourceRequirements::default() }
}
