//! Ranks that communicate over a network without GPUDirect RDMA.

use std::collections::BTreeMap;

use super::transport::{Side, Transport};

/// A rank that sends to, or receives from, at least one other rank over a network without GPUDirect
/// RDMA at its own end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndWithoutGdr {
    /// Rank of this end.
    pub rank: usize,
    /// Direction without GPUDirect RDMA.
    pub side: Side,
    /// Name of the network, as in `NET/IB`.
    pub network: String,
}

/// Returns all such ends, in the order of ranks; none if GPUDirect RDMA is on in both directions of
/// every pair that needs it. A pair that is in no log is not among them.
pub fn ends_without_gdr(transports: &[Transport]) -> Vec<EndWithoutGdr> {
    let mut ends = BTreeMap::new();
    for Transport { from, to, name, send, receive, .. } in transports {
        let receiver = to.unwrap_or(*from);
        for (rank, side, end) in [(*from, Side::Send, send), (receiver, Side::Receive, receive)] {
            if end.as_ref().is_some_and(|end| !end.gdr) {
                ends.insert((rank, side), name.clone());
            }
        }
    }
    let end = |((rank, side), network)| EndWithoutGdr { rank, side, network };
    ends.into_iter().map(end).collect()
}
