//! Transports between ranks.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which end of a connection a line is about, and was logged by.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The sender's.
    Send,
    /// The receiver's.
    Receive,
}

/// How one rank sends to another, or how a switch sums what several ranks send to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Transport {
    /// The rank that sends.
    pub from: usize,
    /// The rank that receives; `null` is the switch, which also sends back to `from`.
    pub to: Option<usize>,
    /// As the library names it: `P2P/CUMEM/read`, `SHM/direct`, `NET/IB`, and for a switch `NVLS`
    /// or `COLLNET/SHARP`. Where channels differ, all of their names with ` + ` between them.
    pub name: String,
    /// Number of channels; 0 for NVLS, which logs none.
    pub channels: usize,
    /// The sender's end; `null` within a node.
    pub send: Option<NetworkEnd>,
    /// The receiver's end; `null` within a node.
    pub receive: Option<NetworkEnd>,
}

/// One end of the connections of a pair over a network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NetworkEnd {
    /// Its NICs by name, or by number where the library does not name them; empty where this end
    /// logged nothing.
    pub nics: Vec<String>,
    /// Whether GPUDirect RDMA is on in every channel of the pair at this end. No evidence is no.
    pub gdr: bool,
}

impl Transport {
    /// Whether it is over a network.
    pub fn is_network(&self) -> bool {
        self.send.is_some()
    }

    /// Whether GPUDirect RDMA is on at both ends. Within a node it is not needed.
    pub fn has_gdr(&self) -> bool {
        [&self.send, &self.receive].into_iter().flatten().all(|end| end.gdr)
    }
}
