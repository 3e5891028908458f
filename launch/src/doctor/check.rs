//! Checks, and their input.

use std::fmt;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::finding::Finding;
use crate::bootstrap::World;

/// Check of one requirement of training.
pub trait Check: Sync {
    /// Returns the description of the check.
    fn desc(&self) -> &'static CheckDesc;

    /// Runs the check.
    fn run(&self, context: &Context) -> Finding;
}

/// Description of a check in tables and documentation.
#[derive(Debug, PartialEq, Eq)]
pub struct CheckDesc {
    /// Name, for `--require NAME`.
    pub name: &'static str,
    /// Subject of the check.
    pub group: Group,
    /// Ranks that run it.
    pub scope: Scope,
    /// Files and values that it reads.
    pub inspects: &'static str,
    /// Conditions of warnings and failures, with their reasons.
    pub thresholds: &'static str,
    /// Action to take after a warning or a failure.
    pub remedy: &'static str,
    /// Test that plants its fault: a file, and the name of the test.
    pub fault: &'static str,
}

/// Subject of a check.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    /// Limits of processes and containers.
    Limits,
    /// Network adapters, and connections between ranks.
    Network,
    /// GPUs and their drivers.
    Gpu,
    /// Storage of checkpoints.
    Storage,
    /// Properties that must be equal on all nodes.
    Nodes,
}

impl fmt::Display for Group {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Limits => "limits",
            Self::Network => "network",
            Self::Gpu => "gpu",
            Self::Storage => "storage",
            Self::Nodes => "nodes",
        })
    }
}

/// Ranks that run a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The first rank of each node.
    Node,
    /// Every rank.
    Rank,
    /// All ranks together, with one finding.
    World,
}

impl Scope {
    /// Description in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Node => "each node",
            Self::Rank => "each rank",
            Self::World => "all ranks together",
        }
    }
}

/// Input of a check: its rank and its job.
#[derive(Debug, Clone)]
pub struct Context {
    /// Root of the files of this process and its container: `/`, except in tests.
    pub root: PathBuf,
    /// Root of `/proc` and `/sys` of the host.
    pub host_root: PathBuf,
    /// Number of ranks of the job.
    pub world: usize,
    /// Number of ranks of this node.
    pub local_world: usize,
    /// Number of compute threads of each rank.
    pub threads: usize,
    /// True if ranks compute on CUDA devices.
    pub on_cuda: bool,
    /// Value of `NCCL_IB_HCA`: the ports that NCCL uses.
    pub nccl_ib_hca: Option<String>,
    /// Host memory that all ranks of this node need together; `None` if the workload is not known.
    pub memory_bytes: Option<u64>,
}

impl Context {
    /// Builds the context of a rank, without the memory that it needs.
    pub fn of_rank(host_root: PathBuf, world: &World, on_cuda: bool) -> Self {
        Self {
            root: PathBuf::from("/"),
            host_root,
            world: world.placement.world,
            local_world: world.placement.local_world,
            threads: world.threads.threads,
            on_cuda,
            nccl_ib_hca: std::env::var("NCCL_IB_HCA").ok(),
            memory_bytes: None,
        }
    }

    /// Returns whether ranks are on several nodes.
    pub(super) fn has_several_nodes(&self) -> bool {
        self.world > self.local_world
    }

    /// Port filter of NCCL, if ranks use NCCL.
    pub(super) fn hca_filter(&self) -> Option<&str> {
        self.nccl_ib_hca.as_deref().filter(|filter| self.on_cuda && !filter.is_empty())
    }
}
