//! Kubernetes without nodes, which tests/kubernetes/cluster.sh runs as long as this process: API
//! server, controllers and the mpi-operator. It has the objects that a site provides.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::cluster::{of_cluster, tools};
use crate::examples::{files, top};
use crate::objects::Object;
use crate::wait::within;

/// Objects of the site that our manifests name: the namespace of its Prometheus, and the priority
/// and the local volumes of one example.
const OF_THE_SITE: &str = r#"
{"apiVersion": "v1", "kind": "List", "items": [
    {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "monitoring"}},
    {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1000,
        "metadata": {"name": "benchmark"}},
    {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "local-nvme"},
        "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}
]}"#;

/// Output of a run of `kubectl`.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) succeeded: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

#[derive(Debug)]
pub(crate) struct TestCluster {
    folder: PathBuf,
    /// The cluster ends with its standard input, however this process ends.
    _process: Child,
}

impl TestCluster {
    /// Returns the cluster for all tests, with the definitions of all operators, and everything in
    /// `k8s/`.
    pub(crate) fn get() -> &'static Self {
        static CLUSTER: OnceLock<TestCluster> = OnceLock::new();
        CLUSTER.get_or_init(|| {
            let cluster = Self::start();
            for definition in files(&tools(), "yaml") {
                let file = definition.to_str().unwrap();
                // The operator has brought its own.
                cluster.expect(&["apply", "--server-side", "--force-conflicts", "-f", file], "");
            }
            let wait = ["wait", "--for=condition=Established", "crd", "--all", "--timeout=30s"];
            within(30, "the definitions", || cluster.kubectl(&wait, "").succeeded.then_some(()));
            cluster.expect(&["apply", "--server-side", "--filename=-"], OF_THE_SITE);
            cluster.apply_all_of(of_cluster());
            cluster
        })
    }

    fn start() -> Self {
        let folder = top().join("target/kubernetes-api");
        let mut command = Command::new(top().join("tests/kubernetes/cluster.sh"));
        command.arg("api").arg(&folder).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "see {}/logs", folder.display());
        Self { folder, _process: process }
    }

    /// Namespaces first, and each object once: overlays share the base.
    fn apply_all_of(&self, objects: Vec<Object>) {
        let (namespaces, others): (Vec<_>, Vec<_>) =
            objects.into_iter().partition(|object| object.kind() == "Namespace");
        for objects in [namespaces, others] {
            let apply = ["apply", "--server-side", "--force-conflicts", "--filename=-"];
            // A pod without its controller may precede the account of its namespace.
            within(40, "the account of each namespace", || {
                let output = self.kubectl(&apply, &list_of(&objects));
                let is_early = output.stderr.contains("serviceaccount") && !output.succeeded;
                assert!(output.succeeded || is_early, "{}", output.stderr);
                output.succeeded.then_some(())
            });
        }
    }

    /// Sends these objects to the API server, which keeps none. Returns its answer.
    pub(crate) fn dry_run(&self, objects: &[Object]) -> Output {
        let apply = ["apply", "--server-side", "--force-conflicts", "--dry-run=server"];
        let strict = ["--validate=strict", "--filename=-"];
        self.kubectl(&[&apply[..], &strict].concat(), &list_of(objects))
    }

    pub(crate) fn apply(&self, object: &Object) {
        let list = list_of(std::slice::from_ref(object));
        self.expect(&["apply", "--server-side", "--filename=-"], &list);
    }

    /// The objects of a kind in a namespace; `selector` is one of labels, or empty.
    pub(crate) fn list(&self, namespace: &str, kind: &str, selector: &str) -> Vec<Value> {
        let get = ["get", kind, "--namespace", namespace, "--selector", selector];
        let text = self.expect(&[&get[..], &["--output", "json"]].concat(), "").stdout;
        let list: Value = serde_json::from_str(&text).unwrap();
        list["items"].as_array().unwrap().clone()
    }

    #[track_caller]
    fn expect(&self, arguments: &[&str], input: &str) -> Output {
        let output = self.kubectl(arguments, input);
        assert!(output.succeeded, "kubectl {arguments:?}: {}", output.stderr);
        output
    }

    fn kubectl(&self, arguments: &[&str], input: &str) -> Output {
        let mut command = Command::new(self.folder.join("enter"));
        command.arg("kubectl").args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let (stdout, stderr) = (text(output.stdout), text(output.stderr));
        Output { succeeded: output.status.success(), stdout, stderr }
    }
}

fn list_of(objects: &[Object]) -> String {
    let items: Vec<_> = objects.iter().map(|object| &object.value).collect();
    json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string()
}
