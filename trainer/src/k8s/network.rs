//! The job's network policy: its pods talk to each other. All else that they may do is the
//! namespace's (`k8s/base`).

use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyIngressRule, NetworkPolicyPeer,
    NetworkPolicyPort, NetworkPolicySpec,
};

use super::metadata;
use super::rendered::Job;

/// Any TCP port between pods of the job: MPI and NCCL take theirs at random.
///
/// It has no effect on pods in the network of their node, nor on RDMA.
pub(super) fn policy(job: &Job) -> NetworkPolicy {
    let peers = || {
        let pods = Some(metadata::pods_of(job));
        Some(vec![NetworkPolicyPeer { pod_selector: pods, ..NetworkPolicyPeer::default() }])
    };
    let ports = || {
        let protocol = Some("TCP".to_owned());
        Some(vec![NetworkPolicyPort { protocol, ..NetworkPolicyPort::default() }])
    };
    let spec = NetworkPolicySpec {
        pod_selector: Some(metadata::pods_of(job)),
        policy_types: Some(vec!["Ingress".to_owned(), "Egress".to_owned()]),
        ingress: Some(vec![NetworkPolicyIngressRule { from: peers(), ports: ports() }]),
        egress: Some(vec![NetworkPolicyEgressRule { to: peers(), ports: ports() }]),
    };
    NetworkPolicy { metadata: metadata::of_object(job, job.name()), spec: Some(spec) }
}
