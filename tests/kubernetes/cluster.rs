//! Cluster that e2e.sh has started: `kubectl` inside it, its nodes and its volumes.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

/// Set by e2e.sh: the folder of the cluster.
const VARIABLE: &str = "YARDSTICK_KUBERNETES";

#[derive(Debug)]
pub(crate) struct Cluster {
    folder: PathBuf,
    /// Namespace of its jobs.
    pub(crate) namespace: &'static str,
}

impl Cluster {
    /// Opens it with the namespace of k8s/base, its rules and its volumes: Pod Security is
    /// `restricted`.
    pub(crate) fn open() -> Self {
        Self::with("yardstick", "k8s/base")
    }

    /// Opens it with the namespace that allows root and folders of nodes.
    pub(crate) fn open_privileged() -> Self {
        Self::with("yardstick-privileged", "k8s/overlays/privileged")
    }

    /// The first with what workflows of Argo need.
    pub(crate) fn open_for_workflows() -> Self {
        Self::with("yardstick", "k8s/overlays/argo")
    }

    fn with(namespace: &'static str, kustomization: &str) -> Self {
        let folder = std::env::var(VARIABLE).unwrap_or_else(|_| {
            panic!("{VARIABLE} is not set: run `make k8s-e2e`, which starts a cluster")
        });
        let cluster = Self { folder: folder.into(), namespace };
        let kustomization = format!("{}/../../{kustomization}", env!("CARGO_MANIFEST_DIR"));
        cluster.kubectl(&["apply", "--kustomize", &kustomization]);
        let volumes = include_str!("volumes.yaml").replace("NAMESPACE", namespace);
        cluster.apply(&volumes.replace("FOLDER", &cluster.folder.to_string_lossy()));
        cluster
    }

    /// Returns the folder that both nodes see as the volume of results.
    pub(crate) fn results(&self) -> PathBuf {
        self.folder.join("volumes/results")
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The output of `kubectl`, which has to succeed.
    #[track_caller]
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> String {
        self.inside("kubectl", arguments, "")
    }

    /// An object, or a list of them, of our namespace.
    #[track_caller]
    pub(crate) fn get(&self, arguments: &[&str]) -> Value {
        let get = ["--namespace", self.namespace, "get", "--output", "json", "--ignore-not-found"];
        let text = self.kubectl(&[&get[..], arguments].concat());
        if text.is_empty() { Value::Null } else { serde_json::from_str(&text).unwrap() }
    }

    /// Applies objects like a user, but an unknown field is an error.
    #[track_caller]
    pub(crate) fn apply(&self, yaml: &str) {
        self.inside("kubectl", &["apply", "--validate=strict", "--filename=-"], yaml);
    }

    /// Lets nothing through to a node or from it, as when its cable is pulled.
    pub(crate) fn cut_off<'a>(&'a self, node: &'a str) -> CutOff<'a> {
        self.inside("ip", &["link", "set", &port(node), "down"], "");
        CutOff { cluster: self, node }
    }

    /// Pretends that both nodes have so many GPUs, as a device plugin would report.
    pub(crate) fn pretend_gpus(&self, count: usize) {
        let add = |what| {
            let path = format!("/status/{what}/nvidia.com~1gpu");
            json!({"op": "add", "path": path, "value": count.to_string()})
        };
        let patch = json!([add("capacity"), add("allocatable")]).to_string();
        for node in ["node0", "node1"] {
            let how = ["--subresource", "status", "--type", "json", "--patch", &patch];
            self.kubectl(&[&["patch", "node", node], &how[..]].concat());
        }
    }

    /// Deletes an object of our namespace and what belongs to it, whether or not that is possible.
    pub(crate) fn delete_at_last(&self, kind: &str, name: &str) {
        self.try_at_last(&["delete", "--cascade=foreground", "--timeout=2m", kind, name]);
    }

    /// Runs `kubectl` in our namespace, and ignores failures.
    pub(crate) fn try_at_last(&self, arguments: &[&str]) {
        let namespace = ["--namespace", self.namespace];
        let mut command = self.enter("kubectl", &[&namespace[..], arguments].concat());
        let _ = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    }

    pub(crate) fn enter(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.folder.join("enter"));
        command.arg(program).args(arguments);
        command
    }

    #[track_caller]
    pub(crate) fn inside(&self, program: &str, arguments: &[&str], input: &str) -> String {
        let mut command = self.enter(program, arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {arguments:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }
}

/// A node without a network, until this is dropped.
#[derive(Debug)]
pub(crate) struct CutOff<'a> {
    cluster: &'a Cluster,
    node: &'a str,
}

/// Reconnects the cable, and waits until the control plane knows. Also after a panic.
impl Drop for CutOff<'_> {
    fn drop(&mut self) {
        let up = ["link", "set", &port(self.node), "up"];
        let _ = self.cluster.enter("ip", &up).status();
        let node = format!("node/{}", self.node);
        let wait = ["wait", "--for=condition=Ready", "--timeout=60s", &node];
        let _ = self.cluster.enter("kubectl", &wait).stdout(Stdio::null()).status();
    }
}

/// The bridge's end of a node's cable, as control-plane.sh calls it.
fn port(node: &str) -> String {
    node.replace("node", "port")
}
