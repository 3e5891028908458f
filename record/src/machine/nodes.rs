//! Nodes of a job, grouped by their properties.

use super::description::NodeIdentity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Nodes that are alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeGroup {
    /// Their hosts, in the order of their first ranks.
    pub hosts: Vec<String>,
    /// Their properties: firmware, kernel, drivers, libraries and settings, by name.
    pub identity: NodeIdentity,
}

/// Properties of a node, read by the first rank of a host.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NodeReport {
    /// Name of the host.
    pub host: String,
    /// Properties of the host.
    pub identity: NodeIdentity,
}

/// Groups nodes that are alike, the largest group first.
pub fn node_groups(reports: Vec<NodeReport>) -> Vec<NodeGroup> {
    let mut groups: Vec<NodeGroup> = Vec::new();
    for NodeReport { host, identity } in reports {
        match groups.iter_mut().find(|group| group.identity == identity) {
            Some(group) => group.hosts.push(host),
            None => groups.push(NodeGroup { hosts: vec![host], identity }),
        }
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.hosts.len()));
    groups
}
