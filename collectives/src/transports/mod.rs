//! Transport between each pair of ranks, read from NCCL's log.
//!
//! NCCL has no call that reports its choice, but logs one line when it connects a channel:
//!
//! ```text
//! node-a:71:90 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
//! node-a:71:90 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct
//! node-a:72:91 [1] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0(0)/GDRDMA
//! node-b:55:74 [0] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [receive] via NET/IB/0/GDRDMA/Shared
//! ```
//!
//! - `1[1] -> 2[0]` are ranks, with the device's number on its node (its bus id before 2.18).
//! - `00/0` is the channel and which of its two connections; lines of SHM have the channel alone.
//! - P2P and SHM are logged by the sender. Over the network both ends log: the sender `[send]`, the
//!   receiver `[receive]`. Each end decides by itself whether its NIC reaches its GPU's memory.
//! - After the network's name (a plugin's may have spaces) follow the NIC's number, in parentheses
//!   the rank whose NIC it is, if another's, and `/GDRDMA` or `/GDRDMA(PCI)` if GPUDirect RDMA is
//!   on.
//! - Sums in a switch have no pairs. Over a network both ends of a rank are logged, as in
//!   `CollNet 00/0 : 1 [send] via COLLNET/SHARP/0/GDRDMA`; within a node one line of each process
//!   begins with `NVLS comm`. A log may have only these: rings are connected only where used.
//!
//! Source: `src/transport/{p2p,shm,net,coll_net}.cc` and `src/debug.cc` of NCCL 2.18.6 to 2.30.7.
//! Over these versions SHM lost the receiver's half (`SHM/direct/direct` until 2.30.4); 2.20 added
//! `MNNVL`, and 2.26 added `(PCI)` and optional timestamps before the host's name. All of these
//! lines are logged at level INFO, for subsystem INIT as well as for the transport's own. NCCL
//! connects when an operation first needs it (since 2.22), so a log is complete only after the
//! first operations of every kind.
//!
//! Everything here is a function of text. A line that is damaged, as in a file that several
//! processes write to, is no evidence: GPUDirect RDMA counts as on only if it is on in every
//! channel of a pair.

mod connection;
mod log;
mod nics;
mod pair;

pub use connection::{Channel, Connection};
pub use log::{Log, PairEnd};
pub use pair::transports;
pub use record::network::{EndWithoutGdr, NetworkEnd, Side, Transport, ends_without_gdr};

/// Starts of the names of transports over a network: to a rank, and to a switch that sums.
const NETWORKS: [&str; 2] = ["NET/", "COLLNET/"];

/// Returns whether a transport is over a network, where GPUDirect RDMA matters.
fn is_network(name: &str) -> bool {
    NETWORKS.iter().any(|network| name.starts_with(network))
}

#[cfg(test)]
mod in_records;
#[cfg(test)]
mod tests;
