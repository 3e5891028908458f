//! What a check is, and what it is told.

use std::fmt;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::finding::Finding;
use crate::bootstrap::World;

/// Looks at one thing that training depends on.
pub trait Check: Sync {
    /// What it is.
    fn about(&self) -> &'static About;

    /// Looks.
    fn run(&self, context: &Context) -> Finding;
}

/// A check as tables and documentation show it.
#[derive(Debug, PartialEq, Eq)]
pub struct About {
    /// As in `--require NAME`.
    pub name: &'static str,
    /// What it is about.
    pub group: Group,
    /// Who runs it.
    pub scope: Scope,
    /// What it looks at.
    pub looks_at: &'static str,
    /// When it warns or fails, and why there.
    pub thresholds: &'static str,
    /// What to do if it does.
    pub remedy: &'static str,
    /// The test that plants its fault: a file, and the name of the test.
    pub fault: &'static str,
}

/// What a check is about.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    /// Limits of processes and containers.
    Limits,
    /// Adapters of the network, and what is between ranks.
    Network,
    /// GPUs and their drivers.
    Gpu,
    /// Where checkpoints go.
    Storage,
    /// What has to be equal on all nodes.
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

/// Who runs a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The first rank of each node.
    Node,
    /// Every rank.
    Rank,
    /// All ranks together: one finding.
    World,
}

impl Scope {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Node => "each node",
            Self::Rank => "each rank",
            Self::World => "all ranks together",
        }
    }
}

/// What a check is told of its rank and its job.
#[derive(Debug, Clone)]
pub struct Context {
    /// Where the files of this process and its container are: `/`, but in tests.
    pub root: PathBuf,
    /// Where `/proc` and `/sys` of the host are.
    pub host_root: PathBuf,
    /// Ranks of the job.
    pub world: usize,
    /// Ranks of this node.
    pub local_world: usize,
    /// Compute threads of each rank.
    pub threads: usize,
    /// Whether ranks compute on CUDA devices.
    pub on_cuda: bool,
    /// NCCL's variable of this name: which ports it uses.
    pub nccl_ib_hca: Option<String>,
    /// Memory of the host that all ranks of this node need together; `None` where the workload is
    /// not known.
    pub memory_bytes: Option<u64>,
}

impl Context {
    /// Of a rank, without the memory that it needs.
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

    /// Whether ranks are on several nodes.
    pub(super) fn has_several_nodes(&self) -> bool {
        self.world > self.local_world
    }

    /// Which ports NCCL is told to use, where there is NCCL.
    pub(super) fn hca_filter(&self) -> Option<&str> {
        self.nccl_ib_hca.as_deref().filter(|filter| self.on_cuda && !filter.is_empty())
    }
}
