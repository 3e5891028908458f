//! The request of a launch.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::patience::Patience;
use super::transport::Transport;
use crate::error::Error;
use crate::hostfile::Host;
use record::text::count;

/// Program to launch, with its hosts and limits.
#[derive(Debug, Clone)]
pub struct Request {
    /// Hosts that ranks may run on, in order of preference.
    pub hosts: Vec<Host>,
    /// Way to reach the hosts.
    pub transport: Transport,
    /// Number of hosts that ranks run on. Further hosts are spare.
    pub nodes: usize,
    /// Number of ranks on each host.
    pub ranks_per_node: usize,
    /// True if several hosts, such as pods, may be on one node.
    pub share_nodes: bool,
    /// Time to wait for that many hosts.
    pub wait: Duration,
    /// Time for ranks to save and end after SIGTERM.
    pub grace: Duration,
    /// Timeouts of hosts, ranks and storage.
    pub patience: Patience,
    /// Maximum number of restarts after a loss.
    pub restarts: u32,
    /// Path of `mpirun`.
    pub mpirun: PathBuf,
    /// Further arguments of `mpirun`.
    pub mpirun_arguments: Vec<OsString>,
    /// Names of environment variables that ranks get, beside those that are always forwarded.
    pub forward: Vec<String>,
    /// Unique name of this launch.
    pub id: String,
    /// Version of the program, which agents must share.
    pub version: String,
    /// Program that ranks run, at the same path on every host.
    pub program: PathBuf,
    /// Arguments of the program.
    pub arguments: Vec<OsString>,
    /// Subcommand of the program that is an [agent](crate::agent).
    pub agent: String,
}

/// Prefixes of the launcher's variables that ranks get if they are set. Those of the NVIDIA runtime
/// are not among them: a launcher has none of a worker's GPUs.
const FORWARDED: [&str; 12] = [
    "AWS_",
    "FI_",
    "LD_LIBRARY_PATH",
    "LOCAL_CHECKPOINT_DIR",
    "MODEL_CHECKPOINT_NAME",
    "NCCL_",
    "OTEL_",
    "RUST_",
    "SHARED_CHECKPOINT_DIR",
    "TARGET_LOSS",
    "UCX_",
    "YARDSTICK_",
];

impl Request {
    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.nodes * self.ranks_per_node
    }

    /// Checks that the hosts can satisfy the request.
    ///
    /// # Errors
    /// [`Error::Request`] with too few hosts, or slots.
    pub fn check(&self) -> Result<(), Error> {
        let Self { nodes, ranks_per_node, .. } = self;
        if self.hosts.len() < *nodes {
            let expected = count(*nodes, "host");
            let found = self.hosts.len();
            let text = format!("expected {expected}, found {found}: {}", names(&self.hosts));
            return Err(Error::Request { text });
        }
        let is_small = |host: &&Host| host.slots.is_some_and(|slots| slots < *ranks_per_node);
        if let Some(Host { name, slots, .. }) = self.hosts.iter().find(is_small) {
            let slots = count(slots.unwrap_or_default(), "slot");
            let expected = count(*ranks_per_node, "rank");
            let text = format!(
                "expected {expected} per node, but host {name} has {slots}: correct \
                 --ranks-per-node, or slotsPerWorker of the job, or --ntasks-per-node of \
                 the allocation"
            );
            return Err(Error::Request { text });
        }
        Ok(())
    }

    /// Names of the forwarded variables that are set.
    pub(super) fn forwarded(&self) -> Vec<String> {
        let is_forwarded = |name: &String| {
            FORWARDED.iter().any(|prefix| name.starts_with(prefix)) || self.forward.contains(name)
        };
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        let mut names: Vec<_> = names.filter(is_forwarded).collect();
        names.sort();
        names
    }
}

fn names(hosts: &[Host]) -> String {
    hosts.iter().map(|host| host.name.as_str()).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Request {
    /// Formats the size, as in `2 nodes of 8 ranks among 3 hosts`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nodes, ranks_per_node, hosts, .. } = self;
        let [nodes, ranks] = [count(*nodes, "node"), count(*ranks_per_node, "rank")];
        write!(f, "{nodes} of {ranks} among {}", count(hosts.len(), "host"))
    }
}
