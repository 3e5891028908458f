//! Checks of everything below `k8s/`, and of the rendered jobs, with the tools that a cluster uses.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::examples::{jobs, rendered, top};
use crate::objects::{Object, list, parse, text};
use crate::schemas::Schemas;
use crate::{operator, pod_security};

/// Returns the folder that scripts/manifest-tools.sh makes.
pub(crate) fn tools() -> PathBuf {
    top().join("target/manifest-tools")
}

/// Folders with a kustomization that can be built by itself: not the components.
fn kustomizations(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path()) {
        if entry.is_dir() {
            found.extend(kustomizations(&entry));
        } else if entry.ends_with("kustomization.yaml") {
            let text = std::fs::read_to_string(&entry).unwrap();
            found.extend(text.contains("kind: Kustomization").then(|| folder.to_owned()));
        }
    }
    found.sort();
    found
}

/// The objects of a kustomization.
fn build(folder: &Path) -> Vec<Object> {
    let output = Command::new(tools().join("kustomize")).arg(folder).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {stderr}", folder.display());
    parse(folder, std::str::from_utf8(&output.stdout).unwrap())
}

/// The objects of all kustomizations.
pub(crate) fn of_cluster() -> Vec<Object> {
    kustomizations(&top().join("k8s")).iter().flat_map(|folder| build(folder)).collect()
}

/// The objects of all rendered jobs, and what workflows create.
pub(crate) fn of_jobs() -> Vec<Object> {
    let mut all: Vec<_> = jobs().iter().flat_map(|(file, yaml)| parse(file, yaml)).collect();
    let created: Vec<_> = all.iter().flat_map(Object::created).collect();
    all.extend(created);
    all
}

/// The level that each namespace enforces.
fn levels(objects: &[Object]) -> BTreeMap<String, String> {
    let namespaces = objects.iter().filter(|object| object.kind() == "Namespace");
    let level = |object: &Object| {
        let labels = &object.value["metadata"]["labels"];
        labels["pod-security.kubernetes.io/enforce"].as_str().unwrap_or("privileged").to_owned()
    };
    namespaces
        .map(|object| (text(&object.value, "/metadata/name").to_owned(), level(object)))
        .collect()
}

/// Returns the reasons for which Pod Security would refuse an object in its namespace.
fn refused(object: &Object, levels: &BTreeMap<String, String>) -> Vec<String> {
    let Some(level) = levels.get(object.namespace()) else {
        return vec![format!("{}: no namespace {}", object.label(), object.namespace())];
    };
    if level == "privileged" {
        return Vec::new();
    }
    let steps = object.steps();
    let templates = object.pod_templates().into_iter().chain(&steps);
    let found = templates.flat_map(pod_security::violations);
    found.map(|text| format!("{}: {text}", object.label())).collect()
}

/// Claims and service accounts that a job names and its namespace does not have.
fn missing(job: &Object, cluster: &[Object]) -> Vec<String> {
    let has = |kind: &str, name: &str| {
        cluster.iter().any(|object| {
            object.kind() == kind
                && object.namespace() == job.namespace()
                && text(&object.value, "/metadata/name") == name
        })
    };
    let mut found = Vec::new();
    for template in job.pod_templates() {
        let account = text(template, "/spec/serviceAccountName");
        let claims = list(template, "/spec/volumes")
            .iter()
            .map(|volume| text(volume, "/persistentVolumeClaim/claimName"));
        let wanted = claims.map(|claim| ("PersistentVolumeClaim", claim));
        let wanted = wanted.chain([("ServiceAccount", account)]);
        let missing = wanted.filter(|(kind, name)| !name.is_empty() && !has(kind, name));
        found.extend(missing.map(|(kind, name)| format!("{}: no {kind} {name}", job.label())));
    }
    let accounts = job.accounts().into_iter().filter(|name| !has("ServiceAccount", name));
    found.extend(accounts.map(|name| format!("{}: no ServiceAccount {name}", job.label())));
    found
}

/// Returns whether an object is of Kubernetes itself.
pub(crate) fn is_core(object: &Object) -> bool {
    let version = text(&object.value, "/apiVersion");
    let operators = ["kubeflow.org/", "trainer.kubeflow.org/", "argoproj.io/"];
    !operators.iter().any(|group| version.starts_with(group))
}

/// Pods of an operator's object, as objects.
pub(crate) fn pods_of(object: &Object) -> Vec<Object> {
    let steps = object.steps();
    let templates = object.pod_templates().into_iter().chain(&steps);
    let pod = |template| {
        json!({ "apiVersion": "v1", "kind": "PodTemplate", "metadata": { "name": "pod" },
            "template": template })
    };
    templates.map(|template| Object { from: object.label(), value: pod(template) }).collect()
}

/// Checks that need no definitions of operators also run without Go.
#[test]
fn rendered_jobs_are_of_the_schemas_of_kubernetes() {
    let mut schemas = Schemas::of_kubernetes();
    let mut found = Vec::new();
    for object in of_jobs() {
        let parts = if is_core(&object) { vec![object.clone()] } else { pods_of(&object) };
        found.extend(parts.iter().flat_map(|part| schemas.violations(part)));
        if object.kind() == "MPIJob" {
            found.extend(operator::violations(&object));
        }
    }
    assert_eq!(found, Vec::<String>::new());
}

/// No rendering of a batch is committed, whose bytes would be compared.
#[test]
fn a_batch_is_the_jobs_of_its_matrix() {
    let is_its =
        |object: &Object| object.from == "k8s/jobs/scaling.toml" && object.kind() == "MPIJob";
    let shown = |job: Object| {
        let spec = &job.value["spec"];
        let launcher = &spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"];
        let arguments = list(launcher, "/containers/0/args");
        let is_sharded = arguments.contains(&json!("parallel.sharded=optimizer"));
        let workers = &spec["mpiReplicaSpecs"]["Worker"]["replicas"];
        json!([text(&job.value, "/metadata/name"), workers, spec["slotsPerWorker"], is_sharded])
    };
    let found: Vec<_> = of_jobs().into_iter().filter(is_its).map(shown).collect();
    let expected = [
        json!(["scaling-replicated-n1", 1, 2, false]),
        json!(["scaling-replicated-n2", 2, 2, false]),
        json!(["scaling-sharded-n1", 1, 2, true]),
        json!(["scaling-sharded-n2", 2, 2, true]),
    ];
    assert_eq!(found, expected);
}

#[test]
#[ignore = "needs Go and its module proxy"]
fn all_manifests_are_accepted() {
    let mut schemas = Schemas::of_kubernetes().with_operators(&tools());
    let cluster = of_cluster();
    let levels = levels(&cluster);
    let jobs = of_jobs();
    let mut found = Vec::new();
    for object in cluster.iter().chain(&jobs) {
        found.extend(schemas.violations(object));
        if !object.pod_templates().is_empty() || !object.steps().is_empty() {
            found.extend(refused(object, &levels));
        }
    }
    found.extend(jobs.iter().flat_map(|job| missing(job, &cluster)));
    let mpi_jobs = jobs.iter().filter(|object| object.kind() == "MPIJob");
    found.extend(mpi_jobs.flat_map(operator::violations));
    assert_eq!(found, Vec::<String>::new());
    assert!(levels.values().any(|level| level == "restricted"));
}

/// The job that errors are planted in.
fn sample() -> Object {
    let file = top().join("k8s/jobs/smoke-cpu.yaml");
    let objects = parse(&file, &std::fs::read_to_string(&file).unwrap());
    objects.into_iter().find(|object| object.kind() == "MPIJob").unwrap()
}

/// A value at a place of the sample.
#[derive(Debug)]
pub(crate) struct Planted {
    pub(crate) parent: &'static str,
    pub(crate) key: &'static str,
    pub(crate) value: Value,
}

impl Planted {
    pub(crate) fn job(&self) -> Object {
        let mut job = sample();
        let parent = job.value.pointer_mut(self.parent).and_then(Value::as_object_mut);
        parent.expect(self.parent).insert(self.key.to_owned(), self.value.clone());
        job
    }
}

const WORKER: &str = "/spec/mpiReplicaSpecs/Worker/template/spec/containers/0";

#[test]
#[ignore = "needs Go and its module proxy"]
fn an_unknown_key_or_a_wrong_type_is_found_at_any_depth() {
    let mut schemas = Schemas::of_kubernetes().with_operators(&tools());
    assert_eq!(schemas.violations(&sample()), Vec::<String>::new());
    for (parent, key, value) in [
        ("/spec", "slotPerWorker", json!(1)),
        ("/spec", "slotsPerWorker", json!("one")),
        ("/spec/runPolicy", "backofLimit", json!(0)),
        (WORKER, "readynessProbe", json!({})),
        ("/spec/mpiReplicaSpecs/Worker/template/spec/volumes/0", "hostpath", json!({})),
        ("/metadata", "label", json!({})),
    ] {
        let job = Planted { parent, key, value }.job();
        assert_ne!(schemas.violations(&job), Vec::<String>::new(), "{parent}/{key}");
    }
    let limits = format!("{WORKER}/resources/limits");
    let mut job = sample();
    job.value.pointer_mut(&limits).unwrap()["cpu"] = json!("200q");
    assert_ne!(schemas.violations(&job), Vec::<String>::new(), "a quantity");
}

#[test]
fn what_only_the_operator_refuses_is_found() {
    assert_eq!(operator::violations(&sample()), Vec::<String>::new());
    for (parent, key, value) in [
        ("/spec/runPolicy", "cleanPodPolicy", json!("Runing")),
        ("/spec", "launcherCreationPolicy", json!("WaitForWorkers")),
        ("/spec/mpiReplicaSpecs/Launcher", "replicas", json!(2)),
        ("/spec/mpiReplicaSpecs/Worker", "replicas", json!(0)),
        ("/spec/mpiReplicaSpecs/Worker", "restartPolicy", json!("Always")),
        ("/metadata", "name", json!("x".repeat(55))),
        ("/metadata", "name", json!("1job")),
        (WORKER, "name", json!("Worker_")),
        ("/spec/mpiReplicaSpecs/Worker/template/spec", "containers", json!([])),
        ("/spec/mpiReplicaSpecs/Worker/template/spec", "volumes", json!([])),
    ] {
        let job = Planted { parent, key, value }.job();
        assert_ne!(operator::violations(&job), Vec::<String>::new(), "{parent}/{key}");
    }
}

#[test]
fn what_a_restricted_namespace_refuses_is_found() {
    let levels = BTreeMap::from([("yardstick".to_owned(), "restricted".to_owned())]);
    assert_eq!(refused(&sample(), &levels), Vec::<String>::new());
    let pod = "/spec/mpiReplicaSpecs/Worker/template/spec";
    let context = "/spec/mpiReplicaSpecs/Worker/template/spec/containers/0/securityContext";
    for (parent, key, value) in [
        (pod, "hostNetwork", json!(true)),
        (pod, "securityContext", json!({ "runAsUser": 1000 })),
        (pod, "volumes", json!([{ "name": "a", "hostPath": { "path": "/a" } }])),
        (context, "capabilities", json!({ "drop": ["ALL"], "add": ["IPC_LOCK"] })),
        (context, "capabilities", json!({ "drop": ["NET_RAW"] })),
        (context, "allowPrivilegeEscalation", json!(true)),
        (context, "privileged", json!(true)),
        (context, "runAsUser", json!(0)),
        (context, "seccompProfile", json!({ "type": "Unconfined" })),
        (WORKER, "ports", json!([{ "name": "ssh", "containerPort": 2222, "hostPort": 2222 }])),
        (WORKER, "livenessProbe", json!({ "tcpSocket": { "port": 1, "host": "10.0.0.1" } })),
    ] {
        let job = Planted { parent, key, value }.job();
        assert_ne!(refused(&job, &levels), Vec::<String>::new(), "{parent}/{key}");
    }
}

/// Values that a reader of YAML 1.1 misinterprets where they are not quoted.
const AMBIGUOUS: &str = r#"
[platform.environment]
BOOLEAN = "yes"
LETTER = "y"
OCTAL = "0644"
FLOAT = "1e3"
SEXAGESIMAL = "12:30"
NULL = "~"
DATE = "2026-11-25"
COMMENT = "a: b # c"
LINES = "one\ntwo\n"
"#;

#[test]
#[ignore = "needs Go and its module proxy"]
fn kubectl_reads_what_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let benchmark = std::fs::read_to_string(top().join("k8s/jobs/smoke-cpu.toml")).unwrap();
    let file = folder.path().join("benchmark.toml");
    std::fs::write(&file, benchmark + AMBIGUOUS).unwrap();
    let yaml = rendered(&file, "mpijob");
    std::fs::write(folder.path().join("job.yaml"), &yaml).unwrap();
    let kustomization = "resources: [job.yaml]\n";
    std::fs::write(folder.path().join("kustomization.yaml"), kustomization).unwrap();
    let by_kind = |objects: Vec<Object>| -> BTreeMap<String, Value> {
        objects.into_iter().map(|object| (object.kind().to_owned(), object.value)).collect()
    };
    let written = by_kind(parse(&file, &yaml));
    assert!(yaml.contains("12:30") && by_kind(build(folder.path())) == written);
}
