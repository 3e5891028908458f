//! Refusals of mpi-operator although the schema allows the value, reported only by an event; and
//! pods that the API server would refuse when the operator makes them.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::objects::{Object, list, text};

/// Longest DNS label.
const LABEL_MAX: usize = 63;

/// Values that the operator knows for a key.
struct Allowed {
    place: &'static str,
    values: &'static [&'static str],
}

const ALLOWED: [Allowed; 5] = [
    Allowed { place: "/spec/runPolicy/cleanPodPolicy", values: &["None", "Running", "All"] },
    Allowed {
        place: "/spec/launcherCreationPolicy",
        values: &["AtStartup", "WaitForWorkersReady"],
    },
    Allowed { place: "/spec/mpiImplementation", values: &["OpenMPI", "Intel", "MPICH"] },
    Allowed {
        place: "/spec/mpiReplicaSpecs/Launcher/restartPolicy",
        values: &["Never", "OnFailure"],
    },
    Allowed {
        place: "/spec/mpiReplicaSpecs/Worker/restartPolicy",
        values: &["Never", "OnFailure"],
    },
];

/// Returns the faults of an MPIJob.
pub(crate) fn violations(job: &Object) -> Vec<String> {
    let mut found = Vec::new();
    for Allowed { place, values } in ALLOWED {
        let value = text(&job.value, place);
        if !values.contains(&value) {
            found.push(format!("{place}: {value:?} is none of {values:?}"));
        }
    }
    found.extend(replicas(&job.value));
    found.extend(job.pod_templates().into_iter().flat_map(|pod| of_pod(&pod["spec"])));
    let label = job.label();
    found.into_iter().map(|text| format!("{label}: {text}")).collect()
}

/// Returns whether a text is a label as in RFC 1123, whose first character is a letter in RFC 1035.
fn is_label(text: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_within = (1..=LABEL_MAX).contains(&text.len());
    is_within && text.chars().all(is_inner) && !text.starts_with('-') && !text.ends_with('-')
}

fn replicas(job: &Value) -> Vec<String> {
    let of = |role: &str| job["spec"]["mpiReplicaSpecs"][role]["replicas"].as_i64().unwrap_or(0);
    let mut found = Vec::new();
    if of("Launcher") != 1 {
        found.push(format!("{} launchers, not one", of("Launcher")));
    }
    if of("Worker") < 1 {
        found.push("no worker".to_owned());
    }
    let last = format!("{}-worker-{}", text(job, "/metadata/name"), of("Worker") - 1);
    if !is_label(&last) || last.starts_with(|c: char| c.is_ascii_digit()) {
        found.push(format!("{last} is no DNS label"));
    }
    found
}

/// Names of a pod: valid, unique, and of something that is there.
fn of_pod(pod: &Value) -> Vec<String> {
    let containers = list(pod, "/containers");
    let mut found = Vec::new();
    if containers.is_empty() {
        found.push("no container".to_owned());
    }
    let volumes = names(list(pod, "/volumes"), "/name", &mut found);
    for container in containers.iter().chain(list(pod, "/initContainers")) {
        names(list(container, "/env"), "/name", &mut found);
        names(list(container, "/volumeMounts"), "/mountPath", &mut found);
        let ports = names(list(container, "/ports"), "/name", &mut found);
        let names = containers.iter().map(|container| text(container, "/name"));
        let labels = names.chain(ports).chain(volumes.iter().copied());
        found.extend(
            labels.filter(|name| !is_label(name)).map(|name| format!("{name}: no DNS label")),
        );
        let mounts = list(container, "/volumeMounts").iter().map(|mount| text(mount, "/name"));
        let missing = mounts.filter(|name| !volumes.contains(name));
        found.extend(missing.map(|name| format!("{name}: mounted, but no volume")));
    }
    found
}

/// Returns the names in a list; each duplicate is a violation.
fn names<'a>(values: &'a [Value], place: &str, found: &mut Vec<String>) -> BTreeSet<&'a str> {
    let mut names = BTreeSet::new();
    for value in values {
        let name = text(value, place);
        if !names.insert(name) {
            found.push(format!("{name} comes twice"));
        }
    }
    names
}
