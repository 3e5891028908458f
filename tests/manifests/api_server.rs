//! Validation of our manifests by a real API server, its controllers and the mpi-operator. It has
//! no nodes: pods are admitted and run nowhere.

use serde_json::{Value, json};

use crate::cluster::{Planted, is_core, of_cluster, of_jobs, pods_of};
use crate::objects::{Object, text};
use crate::test_cluster::{Output, TestCluster};
use crate::wait::within;

/// Adds the templates of pods in operators' objects as objects of their own: otherwise Pod Security
/// checks them only when there are pods.
fn with_pods(objects: Vec<Object>) -> Vec<Object> {
    let mut all = Vec::new();
    for object in objects {
        let namespace = json!(object.namespace());
        let pods = if is_core(&object) { Vec::new() } else { pods_of(&object) };
        for mut pod in pods {
            pod.value["metadata"]["namespace"] = namespace.clone();
            all.push(pod);
        }
        all.push(object);
    }
    all
}

/// Errors and warnings, Pod Security's among them.
#[track_caller]
fn expect_accepted(output: &Output, kind: &str) {
    assert!(output.succeeded && output.stderr.is_empty(), "{}", output.stderr);
    assert!(output.stdout.contains(kind), "no {kind} in {}", output.stdout);
}

#[test]
#[ignore = "runs an API server: needs root and the programs of `make k8s-e2e`"]
fn the_cluster_side_passes_a_strict_dry_run() {
    let output = TestCluster::get().dry_run(&with_pods(of_cluster()));
    expect_accepted(&output, "daemonset.apps/");
}

#[test]
#[ignore = "runs an API server: needs root and the programs of `make k8s-e2e`"]
fn rendered_jobs_pass_a_strict_dry_run() {
    let output = TestCluster::get().dry_run(&with_pods(of_jobs()));
    for kind in ["mpijob.kubeflow.org/", "trainjob.trainer.kubeflow.org/", "podtemplate/"] {
        expect_accepted(&output, kind);
    }
}

/// The job that errors are planted in, under a name of its own.
fn planted(name: &str, parent: &'static str, key: &'static str, value: Value) -> Object {
    let mut job = Planted { parent, key, value }.job();
    job.value["metadata"]["name"] = json!(name);
    job
}

#[test]
#[ignore = "runs an API server: needs root and the programs of `make k8s-e2e`"]
fn a_misspelt_field_is_refused() {
    let worker = "/spec/mpiReplicaSpecs/Worker/template/spec/containers/0";
    for (parent, key) in [("/spec", "slotPerWorker"), (worker, "readynessProbe")] {
        let job = planted("misspelt", parent, key, json!({}));
        let output = TestCluster::get().dry_run(&[job]);
        assert!(!output.succeeded && output.stderr.contains(key), "{}", output.stderr);
    }
}

/// Objects that the operator has made of a job.
#[derive(Debug)]
struct Made {
    workers: usize,
    launchers: usize,
    hosts: usize,
    has_key: bool,
    /// Warnings of the operator, of Kubernetes' controllers and of admission.
    warnings: Vec<String>,
}

fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

/// Events of a job, its launcher and their pods: those of their names.
fn warnings(cluster: &TestCluster, job: &Object) -> Vec<String> {
    let mut found = Vec::new();
    for event in cluster.list(job.namespace(), "events", "") {
        let object = text(&event, "/involvedObject/name");
        let rest = object.strip_prefix(name(&job.value));
        let pods = ["-worker-", "-launcher"];
        let is_its = rest
            .is_some_and(|rest| rest.is_empty() || pods.iter().any(|pod| rest.starts_with(pod)));
        if is_its && event["type"] == "Warning" {
            found.push(format!("{}: {}", text(&event, "/reason"), text(&event, "/message")));
        }
    }
    found
}

fn made(cluster: &TestCluster, job: &Object) -> Made {
    let (namespace, job_name) = (job.namespace(), name(&job.value));
    let pods = |role| {
        let prefix = "training.kubeflow.org";
        let labels = format!("{prefix}/job-name={job_name},{prefix}/job-role={role}");
        cluster.list(namespace, "pods", &labels).len()
    };
    let named = |kind, suffix| {
        let wanted = format!("{job_name}-{suffix}");
        cluster.list(namespace, kind, "").into_iter().find(|object| name(object) == wanted)
    };
    let hosts = named("configmaps", "config").unwrap_or_default();
    let key = named("secrets", "ssh").unwrap_or_default();
    Made {
        workers: pods("worker"),
        launchers: pods("launcher"),
        hosts: text(&hosts, "/data/hostfile").lines().count(),
        has_key: key["data"]["ssh-privatekey"].is_string(),
        warnings: warnings(cluster, job),
    }
}

/// Returns the number of workers that a job requests.
fn workers(job: &Object) -> usize {
    let replicas = &job.value["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"];
    usize::try_from(replicas.as_u64().unwrap()).unwrap()
}

#[test]
#[ignore = "runs an API server: needs root and the programs of `make k8s-e2e`"]
fn the_operator_makes_the_pods_of_rendered_jobs() {
    let cluster = TestCluster::get();
    let jobs: Vec<_> = of_jobs().into_iter().filter(|job| job.kind() == "MPIJob").collect();
    jobs.iter().for_each(|job| cluster.apply(job));
    for job in &jobs {
        let found = within(40, &job.label(), || {
            let found = made(cluster, job);
            let has_all = found.workers == workers(job) && found.launchers == 1;
            (has_all || !found.warnings.is_empty()).then_some(found)
        });
        assert_eq!(found.warnings, Vec::<String>::new(), "{}", job.label());
        assert!(found.hosts == workers(job) && found.has_key, "{}: {found:?}", job.label());
    }
    let privileged = jobs.iter().any(|job| job.namespace() == "yardstick-privileged");
    assert!(privileged && jobs.iter().any(|job| job.namespace() == "yardstick"));
}

#[test]
#[ignore = "runs an API server: needs root and the programs of `make k8s-e2e`"]
fn a_pod_that_a_restricted_namespace_refuses_is_seen() {
    let cluster = TestCluster::get();
    let worker = "/spec/mpiReplicaSpecs/Worker/template/spec";
    let job = planted("refused", worker, "hostNetwork", json!(true));
    let output = cluster.dry_run(&with_pods(vec![job.clone()]));
    assert!(output.stderr.contains("would violate PodSecurity"), "{}", output.stderr);
    cluster.apply(&job);
    let refusal = "violates PodSecurity \"restricted:latest\"";
    let is_refusal = |warning: &String| warning.contains(refusal);
    within(40, refusal, || warnings(cluster, &job).into_iter().find(is_refusal));
    assert_eq!(made(cluster, &job).workers, 0);
}
