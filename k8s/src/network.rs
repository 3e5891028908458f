//! The job's network policy: its pods talk to each other, and resolve names. Other traffic is up to
//! the namespace's policies (`k8s/base`), which deny by default.

use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyIngressRule, NetworkPolicyPeer,
    NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::metadata;
use super::rendered::Job;

/// Allows any TCP port between pods of the job: MPI and NCCL use random ports. It has no effect on
/// RDMA.
///
/// Workers in the network of their node have no pod addresses: the policy neither binds them nor
/// can name them. It then applies only to the launcher, to and from anywhere: ssh to the nodes, and
/// the connections of their daemons back to it.
pub(super) fn policy(job: &Job) -> NetworkPolicy {
    let is_on_host = job.benchmark.platform.host_network;
    let pods = if is_on_host { metadata::launcher_of(job) } else { metadata::pods_of(job) };
    let peers = || {
        let pod_selector = (!is_on_host).then(|| pods.clone())?;
        let peer = NetworkPolicyPeer { pod_selector: Some(pod_selector), ..Default::default() };
        Some(vec![peer])
    };
    let ports = || {
        let protocol = Some("TCP".to_owned());
        Some(vec![NetworkPolicyPort { protocol, ..NetworkPolicyPort::default() }])
    };
    let spec = NetworkPolicySpec {
        pod_selector: Some(pods.clone()),
        policy_types: Some(vec!["Ingress".to_owned(), "Egress".to_owned()]),
        ingress: Some(vec![NetworkPolicyIngressRule { from: peers(), ports: ports() }]),
        egress: Some(vec![NetworkPolicyEgressRule { to: peers(), ports: ports() }, dns()]),
    };
    NetworkPolicy { metadata: metadata::of_object(job, job.name()), spec: Some(spec) }
}

/// Allows port 53 of any address, as the policy `dns` of `k8s/base` does: a cache on the node is in
/// no namespace. An egress policy denies all else, so without this rule no name resolves in a
/// namespace without that policy.
fn dns() -> NetworkPolicyEgressRule {
    let port = |protocol: &str| NetworkPolicyPort {
        protocol: Some(protocol.to_owned()),
        port: Some(IntOrString::Int(53)),
        ..NetworkPolicyPort::default()
    };
    NetworkPolicyEgressRule { ports: Some(vec![port("UDP"), port("TCP")]), to: None }
}
