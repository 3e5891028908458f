//! The transport of each ordered pair of ranks: both ends together.

use std::collections::{BTreeMap, BTreeSet};

use record::network::{NetworkEnd, Side, Transport};

use super::connection::Channel;
use super::is_network;
use super::log::PairEnd;

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

    /// Network channels that either end has logged: the other end has them too.
    fn network_channels(&self) -> BTreeSet<Channel> {
        let ends = [&self.send, &self.receive];
        ends.into_iter().flat_map(|end| end.with_gdr.union(&end.without_gdr)).copied().collect()
    }
}
