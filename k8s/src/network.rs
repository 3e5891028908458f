//! The job's network policy: its pods talk to each other, and resolve names. All else that they may
//! do is the namespace's (`k8s/base`), which denies what no policy allows.

use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyIngressRule, NetworkPolicyPeer,
    NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::metadata;
use super::rendered::Job;

/// Any TCP port between pods of the job: MPI and NCCL take theirs at random. It has no effect on
/// RDMA.
///
/// It does not bind workers in the network of their node, nor can it name them: they have no
/// addresses of pods. So it is the launcher's alone then, to and from anywhere: ssh to the nodes,
/// and the connections with which their daemons call back.
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

/// To port 53 of anything, as the policy `dns` of `k8s/base` allows it: a cache on the node is in
/// no namespace. A policy for egress denies all else, so without this no name is resolved where the
/// namespace has not that policy.
fn dns() -> NetworkPolicyEgressRule {
    let port = |protocol: &str| NetworkPolicyPort {
        protocol: Some(protocol.to_owned()),
        port: Some(IntOrString::Int(53)),
        ..NetworkPolicyPort::default()
    };
    NetworkPolicyEgressRule { ports: Some(vec![port("UDP"), port("TCP")]), to: None }
}
