//! Transports between ranks.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// End of a connection that a log line is about, and that logged it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// Sender's end.
    Send,
    /// Receiver's end.
    Receive,
}

/// Transport from one rank to another, or to a switch that sums the data of several ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Transport {
    /// Sending rank.
    pub from: usize,
    /// Receiving rank; `null` is the switch, which also sends back to `from`.
    pub to: Option<usize>,
    /// Name in the library: `P2P/CUMEM/read`, `SHM/direct`, `NET/IB`, and for a switch `NVLS` or
    /// `COLLNET/SHARP`. If channels differ, all of their names joined with ` + `.
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
    /// NICs by name, or by number if the library does not name them; empty if this end logged
    /// nothing.
    pub nics: Vec<String>,
    /// True if GPUDirect RDMA is on in every channel of the pair at this end; false without
    /// evidence.
    pub gdr: bool,
}

impl Transport {
    /// Returns whether the transport is over a network.
    pub fn is_network(&self) -> bool {
        self.send.is_some()
    }

    /// Returns whether GPUDirect RDMA is on at both ends. True within a node, where it is not
    /// needed.
    pub fn has_gdr(&self) -> bool {
        [&self.send, &self.receive].into_iter().flatten().all(|end| end.gdr)
    }
}
