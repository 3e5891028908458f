//! Connections that network policies allow, as a CNI that enforces them does: between the pods of
//! each rendered job and from the steps of workflows, under the base of the cluster.

use serde_json::{Value, json};

use crate::examples::{self, top};
use crate::objects::{Object, list, parse, text};

/// View of a pod that policies have.
#[derive(Debug)]
struct Pod {
    namespace: String,
    labels: Value,
    ports: Vec<Value>,
    /// Set in the network of its node: no policy binds it, and no selector names it.
    is_on_host: bool,
}

impl Pod {
    /// Creates a pod that is of no job.
    fn other(namespace: &str) -> Self {
        let labels = json!({ "app": "other" });
        Self { namespace: namespace.to_owned(), labels, ports: Vec::new(), is_on_host: false }
    }

    /// Creates a pod of an MPIJob, with the labels of the operator.
    fn of(job: &Object, role: &str) -> Self {
        let template = &job.value["spec"]["mpiReplicaSpecs"][role]["template"];
        let mut labels = template["metadata"]["labels"].clone();
        labels["training.kubeflow.org/job-name"] = job.value["metadata"]["name"].clone();
        labels["training.kubeflow.org/job-role"] = json!(role.to_lowercase());
        Self {
            namespace: job.namespace().to_owned(),
            labels,
            ports: list(template, "/spec/containers/0/ports").to_vec(),
            is_on_host: template["spec"]["hostNetwork"] == true,
        }
    }

    /// Creates a pod of a workflow's step, with the label of Argo: of a container or of a resource.
    fn of_step(workflow: &Object) -> Self {
        let mut labels = workflow.value["spec"]["podMetadata"]["labels"].clone();
        labels["workflows.argoproj.io/workflow"] = json!("nightly-abcde");
        let namespace = workflow.namespace().to_owned();
        Self { namespace, labels, ports: Vec::new(), is_on_host: false }
    }

    /// Creates an end in no namespace: the API server, or an object store.
    fn outside() -> Self {
        Self { is_on_host: true, ..Self::other("") }
    }

    fn has_port(&self, name: &str, number: u16) -> bool {
        let mut ports = self.ports.iter();
        ports.any(|port| port["name"] == name && port["containerPort"] == number)
    }
}

/// Returns whether a selector matches these labels; an empty one matches all.
fn selects(selector: &Value, labels: &Value) -> bool {
    let wanted = selector["matchLabels"].as_object().into_iter().flatten();
    let mut expressions = list(selector, "/matchExpressions").iter();
    wanted.into_iter().all(|(key, value)| labels[key] == *value)
        && expressions.all(|expression| {
            assert_eq!(expression["operator"], "Exists", "no other is used");
            labels.get(text(expression, "/key")).is_some()
        })
}

/// Connection, and whether it must be possible.
struct Connection<'a> {
    what: &'static str,
    protocol: &'static str,
    from: &'a Pod,
    to: &'a Pod,
    port: u16,
    is_wanted: bool,
}

/// An end of connections, as policies call it.
struct Direction {
    name: &'static str,
    rules: &'static str,
    peers: &'static str,
}

const EGRESS: Direction = Direction { name: "Egress", rules: "/spec/egress", peers: "/to" };
const INGRESS: Direction = Direction { name: "Ingress", rules: "/spec/ingress", peers: "/from" };

impl<'a> Connection<'a> {
    fn tcp(what: &'static str, from: &'a Pod, to: &'a Pod, port: u16) -> Self {
        Connection { what, protocol: "TCP", from, to, port, is_wanted: true }
    }

    fn unwanted(self) -> Self {
        Self { is_wanted: false, ..self }
    }

    fn is_allowed(&self, policies: &[Object]) -> bool {
        self.passes(policies, &EGRESS, self.from, self.to)
            && self.passes(policies, &INGRESS, self.to, self.from)
    }

    /// Returns whether the policies of `pod` let it through to or from `peer`.
    fn passes(&self, policies: &[Object], direction: &Direction, pod: &Pod, peer: &Pod) -> bool {
        let binds = |policy: &&Object| {
            !pod.is_on_host
                && policy.namespace() == pod.namespace
                && list(&policy.value, "/spec/policyTypes").contains(&json!(direction.name))
                && selects(&policy.value["spec"]["podSelector"], &pod.labels)
        };
        let mut bound = policies.iter().filter(binds).peekable();
        bound.peek().is_none()
            || bound.any(|policy| {
                let mut rules = list(&policy.value, direction.rules).iter();
                rules.any(|rule| {
                    self.is_to_port(rule)
                        && is_peer(list(rule, direction.peers), peer, &pod.namespace)
                })
            })
    }

    fn is_to_port(&self, rule: &Value) -> bool {
        let ports = list(rule, "/ports");
        let is_one = |port: &Value| {
            port["protocol"] == self.protocol
                && match &port["port"] {
                    Value::Null => true,
                    Value::String(name) => self.to.has_port(name, self.port),
                    number => *number == self.port,
                }
        };
        ports.is_empty() || ports.iter().any(is_one)
    }
}

/// Returns whether one of the peers of a rule is this pod; no peers are all.
fn is_peer(peers: &[Value], pod: &Pod, namespace: &str) -> bool {
    let is_one = |peer: &Value| {
        let labels = json!({ "kubernetes.io/metadata.name": pod.namespace });
        let is_near = match peer.get("namespaceSelector") {
            Some(selector) => selects(selector, &labels),
            None => pod.namespace == namespace,
        };
        let is_selected =
            peer.get("podSelector").is_none_or(|selector| selects(selector, &pod.labels));
        !pod.is_on_host && is_near && is_selected
    };
    peers.is_empty() || peers.iter().any(is_one)
}

/// Returns the connections that must be possible in the pods of a job and are not, and the reverse.
fn wrong(job: &Object, policies: &[Object]) -> Vec<String> {
    let (launcher, worker) = (Pod::of(job, "Launcher"), Pod::of(job, "Worker"));
    let (prometheus, other) = (Pod::other("monitoring"), Pod::other(job.namespace()));
    let connection = Connection::tcp;
    let wanted = [
        connection("launcher to ssh", &launcher, &worker, 2222),
        connection("worker to launcher", &worker, &launcher, 40000),
        connection("worker to worker", &worker, &worker, 40000),
        connection("Prometheus to metrics", &prometheus, &worker, 9402),
    ];
    let unwanted = [
        connection("another pod to ssh", &other, &worker, 2222),
        connection("another pod to the launcher", &other, &launcher, 40000),
        connection("launcher to another pod", &launcher, &other, 40000),
        connection("Prometheus to ssh", &prometheus, &worker, 2222),
    ];
    // Nothing keeps other namespaces from a node's ports.
    let unwanted = unwanted
        .into_iter()
        .filter(|connection| !(worker.is_on_host && connection.what == "Prometheus to ssh"))
        .map(Connection::unwanted);
    broken(job, policies, wanted.into_iter().chain(unwanted))
}

/// Checks the connections where a namespace has no policies but that of the job.
fn wrong_alone(job: &Object, policies: &[Object]) -> Vec<String> {
    let dns = Pod::other("kube-system");
    let mut found = Vec::new();
    for role in ["Launcher", "Worker"] {
        let (pod, worker) = (Pod::of(job, role), Pod::of(job, "Worker"));
        let by_tcp = Connection::tcp("pod to DNS by UDP", &pod, &dns, 53);
        let wanted = [
            Connection { protocol: "UDP", ..by_tcp },
            Connection::tcp("pod to DNS", &pod, &dns, 53),
            Connection::tcp("pod to worker", &pod, &worker, 40000),
        ];
        found.extend(broken(job, policies, wanted.into_iter()));
    }
    found
}

/// Checks the connections of a workflow's step: names, the API server for Argo's executor and for
/// the creation of jobs, on either of its usual ports, and an object store with baselines.
fn wrong_of_steps(workflow: &Object, policies: &[Object]) -> Vec<String> {
    let (step, outside) = (Pod::of_step(workflow), Pod::outside());
    let (dns, other) = (Pod::other("kube-system"), Pod::other(workflow.namespace()));
    let job = &workflow.created()[0];
    let (launcher, worker) = (Pod::of(job, "Launcher"), Pod::of(job, "Worker"));
    let by_tcp = Connection::tcp("step to DNS by UDP", &step, &dns, 53);
    let wanted = [
        Connection { protocol: "UDP", ..by_tcp },
        Connection::tcp("step to DNS", &step, &dns, 53),
        Connection::tcp("step to the API server", &step, &outside, 443),
        Connection::tcp("step to the API server's own port", &step, &outside, 6443),
        Connection::tcp("step to an object store", &step, &outside, 443),
    ];
    let unwanted = [
        Connection::tcp("step to another pod", &step, &other, 40000),
        Connection::tcp("step to the ssh of a worker", &step, &worker, 2222),
        Connection::tcp("another pod to a step", &other, &step, 40000),
        Connection::tcp("launcher to the API server's own port", &launcher, &outside, 6443),
    ];
    broken(workflow, policies, wanted.into_iter().chain(unwanted.map(Connection::unwanted)))
}

fn broken<'a>(
    object: &Object,
    policies: &[Object],
    connections: impl Iterator<Item = Connection<'a>>,
) -> Vec<String> {
    connections
        .filter(|connection| connection.is_allowed(policies) != connection.is_wanted)
        .map(|connection| format!("{}: {}", object.label(), connection.what))
        .collect()
}

/// The policies of a file in `k8s/`, in this namespace.
fn policies_in(file: &str, namespace: &str) -> Vec<Object> {
    let file = top().join("k8s").join(file);
    let mut policies = parse(&file, &std::fs::read_to_string(&file).unwrap());
    for policy in &mut policies {
        policy.value["metadata"]["namespace"] = json!(namespace);
    }
    policies
}

/// Returns each MPIJob of the examples, also those that workflows create, and the policies beside
/// it.
fn jobs() -> Vec<(Object, Vec<Object>)> {
    let mut found = Vec::new();
    for (file, yaml) in examples::jobs() {
        let objects = parse(&file, &yaml);
        let created = objects.iter().flat_map(Object::created);
        let (policies, others): (Vec<_>, Vec<_>) =
            objects.iter().cloned().partition(|object| object.kind() == "NetworkPolicy");
        let jobs = others.into_iter().chain(created).filter(|object| object.kind() == "MPIJob");
        found.extend(jobs.map(|job| (job, policies.clone())));
    }
    found
}

#[test]
fn pods_of_a_job_reach_each_other_and_no_others() {
    let mut found = Vec::new();
    for (job, own) in jobs() {
        let mut policies = policies_in("base/network-policies.yaml", job.namespace());
        policies.extend(own);
        found.extend(wrong(&job, &policies));
    }
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn pods_of_a_job_resolve_names_in_a_namespace_without_the_base() {
    let found: Vec<_> = jobs().iter().flat_map(|(job, own)| wrong_alone(job, own)).collect();
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn steps_of_a_workflow_reach_what_they_need_and_nothing_else() {
    let file = top().join("k8s/jobs/smoke-cpu.argo.yaml");
    let objects = parse(&file, &std::fs::read_to_string(&file).unwrap());
    let workflow = objects.iter().find(|object| object.kind() == "WorkflowTemplate").unwrap();
    let namespace = workflow.namespace();
    let mut policies = policies_in("base/network-policies.yaml", namespace);
    policies.extend(policies_in("components/argo/network-policy.yaml", namespace));
    policies.extend(objects.iter().filter(|object| object.kind() == "NetworkPolicy").cloned());
    assert_eq!(wrong_of_steps(workflow, &policies), Vec::<String>::new());
}
