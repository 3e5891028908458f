//! Placement of launcher and workers on nodes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, PodAffinityTerm, PodAntiAffinity, Toleration, WeightedPodAffinityTerm,
};

use super::benchmark::{Platform, Rack};
use super::metadata;
use super::rendered::Job;

/// Labels that the node of a pod must have.
pub(super) fn node_labels(platform: &Platform) -> Option<BTreeMap<String, String>> {
    let mut labels = platform.node_labels.clone();
    let zone = platform.zone.clone();
    labels.extend(zone.map(|zone| ("topology.kubernetes.io/zone".to_owned(), zone)));
    (!labels.is_empty()).then_some(labels)
}

/// Anti-affinity that keeps workers of the job on different nodes and racks.
pub(super) fn affinity(job: &Job) -> Option<Affinity> {
    let platform = &job.benchmark.platform;
    let apart = |topology_key: &str| PodAffinityTerm {
        label_selector: Some(metadata::workers_of(job)),
        topology_key: topology_key.to_owned(),
        ..PodAffinityTerm::default()
    };
    let node = platform.one_pod_per_node.then_some("kubernetes.io/hostname");
    let rack = |required| {
        let rack = platform.rack.as_ref().filter(|rack: &&Rack| rack.required == required);
        rack.map(|rack| rack.topology_key.as_str())
    };
    let required: Vec<_> = node.into_iter().chain(rack(true)).map(apart).collect();
    let preferred = rack(false)
        .map(|key| WeightedPodAffinityTerm { weight: 100, pod_affinity_term: apart(key) });
    if required.is_empty() && preferred.is_none() {
        return None;
    }
    let pod_anti_affinity = PodAntiAffinity {
        preferred_during_scheduling_ignored_during_execution: preferred.map(|term| vec![term]),
        required_during_scheduling_ignored_during_execution: (!required.is_empty())
            .then_some(required),
    };
    Some(Affinity { pod_anti_affinity: Some(pod_anti_affinity), ..Affinity::default() })
}

/// Tolerations of workers: the taint of GPU nodes with GPUs, and those of the platform.
pub(super) fn tolerations(job: &Job) -> Option<Vec<Toleration>> {
    tolerations_of(job, job.benchmark.is_on_gpus())
}

/// Tolerations of the launcher, which computes nothing. It leaves GPU nodes to workers, unless the
/// platform requires labels: only such nodes may have them.
pub(super) fn tolerations_of_launcher(job: &Job) -> Option<Vec<Toleration>> {
    let is_bound = !job.benchmark.platform.node_labels.is_empty();
    tolerations_of(job, is_bound && job.benchmark.is_on_gpus())
}

fn tolerations_of(job: &Job, is_for_gpus: bool) -> Option<Vec<Toleration>> {
    let platform = &job.benchmark.platform;
    let gpu = is_for_gpus.then(|| Toleration {
        key: Some(platform.gpu_resource.clone()),
        operator: Some("Exists".to_owned()),
        effect: Some("NoSchedule".to_owned()),
        ..Toleration::default()
    });
    let others = platform.tolerations.iter().map(|toleration| Toleration {
        key: Some(toleration.key.clone()),
        operator: Some(if toleration.value.is_some() { "Equal" } else { "Exists" }.to_owned()),
        value: toleration.value.clone(),
        effect: toleration.effect.clone(),
        ..Toleration::default()
    });
    let all: Vec<_> = gpu.into_iter().chain(others).collect();
    (!all.is_empty()).then_some(all)
}
