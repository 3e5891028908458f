//! The transport of each ordered pair of ranks: both ends together.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::connection::{Channel, Side};
use super::is_network;
use super::log::PairEnd;

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

/// The transport of every pair that is in a log, in the order of ranks. Each end may be in several
/// logs, or in none.
pub fn transports(ends: impl IntoIterator<Item = PairEnd>) -> Vec<Transport> {
    let mut pairs: BTreeMap<(usize, Option<usize>), Pair> = BTreeMap::new();
    for end in ends {
        let PairEnd { from, to, side, .. } = end;
        let pair = pairs.entry((from, to)).or_insert_with(|| Pair::new(from, to));
        match side {
            Side::Send => pair.send.merge(end),
            Side::Receive => pair.receive.merge(end),
        }
    }
    pairs.into_values().map(|pair| pair.transport()).collect()
}

/// Both ends of a pair.
struct Pair {
    send: PairEnd,
    receive: PairEnd,
}

impl Pair {
    fn new(from: usize, to: Option<usize>) -> Self {
        let [send, receive] = [Side::Send, Side::Receive].map(|side| PairEnd::new(from, to, side));
        Self { send, receive }
    }

    fn transport(&self) -> Transport {
        let names: BTreeSet<_> = self.send.names.union(&self.receive.names).cloned().collect();
        let is_network = names.iter().any(|name| is_network(name));
        let network = self.network_channels();
        let end = |end: &PairEnd| NetworkEnd {
            nics: end.nics.iter().cloned().collect(),
            gdr: end.without_gdr.is_empty() && network.is_subset(&end.with_gdr),
        };
        let local = self.send.local.union(&self.receive.local);
        Transport {
            from: self.send.from,
            to: self.send.to,
            name: names.into_iter().collect::<Vec<_>>().join(" + "),
            channels: local.copied().chain(network.clone()).collect::<BTreeSet<_>>().len(),
            send: is_network.then(|| end(&self.send)),
            receive: is_network.then(|| end(&self.receive)),
        }
    }

    /// Those that either end has logged: the other end has them too.
    fn network_channels(&self) -> BTreeSet<Channel> {
        let ends = [&self.send, &self.receive];
        ends.into_iter().flat_map(|end| end.with_gdr.union(&end.without_gdr)).copied().collect()
    }
}
