//! `[platform]`: hardware and policies of the nodes of a cluster, and how pods request them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The `[platform]` table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Platform {
    /// Pod Security level of the namespace: `privileged` is needed for the two options below, for
    /// `host_folders`, and for an `nvme` tier on a host path.
    pub(crate) pod_security: PodSecurity,
    /// Workers share the network of their node.
    pub(crate) host_network: bool,
    /// Containers run as root and may lock any amount of memory, which RDMA needs where the nodes
    /// limit it: without root the capability has no effect.
    pub(crate) root: bool,
    /// Resource name of GPUs.
    pub(crate) gpu_resource: String,
    /// Memory of a GPU, such as `80Gi`, if no label of the nodes names the GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gpu_memory: Option<String>,
    /// Resource of RDMA adapters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rdma: Option<Rdma>,
    /// CPU cores of a worker, as both its limit and its request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpu: Option<String>,
    /// Memory of a worker, including the use of `shared_memory`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory: Option<String>,
    /// Ephemeral storage of a worker's containers and empty folders.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ephemeral_storage: Option<String>,
    /// Huge pages of 2 MiB, which EFA adapters need.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hugepages_2mi: Option<String>,
    /// Largest size of `/dev/shm`: gradients of the ranks of a node, and NCCL.
    pub(crate) shared_memory: String,
    /// Places at most one worker of a job on a node.
    pub(crate) one_pod_per_node: bool,
    /// Rack rule that spreads workers over racks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rack: Option<Rack>,
    /// Zone of all pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) zone: Option<String>,
    /// Further labels that the nodes of all pods must have.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) node_labels: BTreeMap<String, String>,
    /// Taints that all pods tolerate.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tolerations: Vec<Toleration>,
    /// Priority class of all pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) priority_class: Option<String>,
    /// Runtime class of workers, such as `nvidia` if that is not the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) runtime_class: Option<String>,
    /// Queue of Kueue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kueue_queue: Option<String>,
    /// Lets a gang scheduler start all pods or none.
    pub(crate) gang: bool,
    /// Environment variables of ranks, such as `NCCL_IB_HCA`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) environment: BTreeMap<String, String>,
    /// Annotations of workers, such as the networks that Multus or GKE attach.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) annotations: BTreeMap<String, String>,
    /// Folders of the node that workers read, by their paths in the pod: libraries and topology
    /// files that belong to the node's drivers.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) host_folders: BTreeMap<String, String>,
}

impl Default for Platform {
    fn default() -> Self {
        Self {
            pod_security: PodSecurity::default(),
            host_network: false,
            root: false,
            gpu_resource: "nvidia.com/gpu".to_owned(),
            gpu_memory: None,
            rdma: None,
            cpu: None,
            memory: None,
            ephemeral_storage: None,
            hugepages_2mi: None,
            shared_memory: "8Gi".to_owned(),
            one_pod_per_node: true,
            rack: None,
            zone: None,
            node_labels: BTreeMap::new(),
            tolerations: Vec::new(),
            priority_class: None,
            runtime_class: None,
            kueue_queue: None,
            gang: false,
            environment: BTreeMap::new(),
            annotations: BTreeMap::new(),
            host_folders: BTreeMap::new(),
        }
    }
}

/// A level of Pod Security.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PodSecurity {
    /// No root, no capability, nothing of the host.
    #[default]
    Restricted,
    /// All of the host's resources and capabilities.
    Privileged,
}

/// RDMA adapters of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rdma {
    /// Resource name of the site's device plugin: `rdma/ib`, `vpc.amazonaws.com/efa`.
    pub(crate) resource: String,
    /// Number of adapters.
    pub(crate) count: u32,
}

/// Rule that places workers on different racks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rack {
    /// Label of nodes whose value names the rack.
    pub(crate) topology_key: String,
    /// Makes a worker wait rather than share a rack.
    #[serde(default)]
    pub(crate) required: bool,
}

/// Toleration of a taint, as in a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Toleration {
    pub(crate) key: String,
    /// Value of the taint; any value if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) value: Option<String>,
    /// Effect of the taint; any effect if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) effect: Option<String>,
}
