//! Anomalies of the transports between ranks: what is not known, and where GPUDirect RDMA is off.

use std::collections::BTreeMap;

use collectives::transports::{EndWithoutGdr, Side, Transport, ends_without_gdr};

use super::rank_anomalies::list;
use super::sections::{Anomaly, RankRecord};

/// At most one anomaly of each kind. `gaps` has for each rank why it may not know all of its
/// transports, if so.
pub(crate) fn transport_anomalies(
    transports: &[Transport],
    gaps: &[Option<String>],
    ranks: &[RankRecord],
) -> Vec<Anomaly> {
    let anomaly = |text| Anomaly { step: None, rank: None, text };
    let hosts: Vec<_> = ranks.iter().map(|rank| rank.host.clone()).collect();
    let texts = [transport_gaps(gaps), without_gdr(transports, &hosts)];
    texts.into_iter().flatten().map(anomaly).collect()
}

/// The ranks that do not know their transports, by reason.
pub(crate) fn transport_gaps(gaps: &[Option<String>]) -> Option<String> {
    let mut reasons: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (rank, gap) in gaps.iter().enumerate() {
        if let Some(reason) = gap {
            reasons.entry(reason).or_default().push(rank.to_string());
        }
    }
    let of_reason = |(reason, with): (&&str, &Vec<String>)| {
        let which = if with.len() == gaps.len() { "all ranks".to_owned() } else { named(with) };
        format!("{which}: {reason}")
    };
    let texts: Vec<_> = reasons.iter().map(of_reason).collect();
    (!texts.is_empty()).then(|| {
        let texts = texts.join("; ");
        format!("transports are not known and count as without GPUDirect RDMA: {texts}")
    })
}

/// The ranks of a host that send, receive, or do both without GPUDirect RDMA.
#[derive(Default)]
struct HostEnds {
    sends: Vec<String>,
    receives: Vec<String>,
}

impl HostEnds {
    fn text(&self, host: &str) -> String {
        let Self { sends, receives } = self;
        let without = |what: &str, ranks| format!("{what} without it ({})", named(ranks));
        let text = match (sends.is_empty(), receives.is_empty()) {
            (false, false) if sends == receives => without("sends and receives", sends),
            (false, false) => {
                format!("{} and {}", without("sends", sends), without("receives", receives))
            }
            (false, true) => without("sends", sends),
            (true, _) => without("receives", receives),
        };
        format!("{host} {text}")
    }
}

/// `rank 3`, or `ranks 2, 3`.
fn named(ranks: &[String]) -> String {
    format!("{} {}", if ranks.len() == 1 { "rank" } else { "ranks" }, list(ranks))
}

/// The ranks whose end of a pair over a network is without GPUDirect RDMA. `hosts` has that of each
/// rank.
pub(crate) fn without_gdr(transports: &[Transport], hosts: &[String]) -> Option<String> {
    let ends = ends_without_gdr(transports);
    let mut of_hosts: BTreeMap<&str, HostEnds> = BTreeMap::new();
    for EndWithoutGdr { rank, side, .. } in &ends {
        let host = hosts.get(*rank).map_or("an unknown host", String::as_str);
        let of_host = of_hosts.entry(host).or_default();
        match side {
            Side::Send => of_host.sends.push(rank.to_string()),
            Side::Receive => of_host.receives.push(rank.to_string()),
        }
    }
    let network = &ends.first()?.network;
    let hosts: Vec<_> = of_hosts.iter().map(|(host, ends)| ends.text(host)).collect();
    Some(format!("GPUDirect RDMA is not on in both directions over {network}: {}", list(&hosts)))
}

#[cfg(test)]
mod tests {
    use collectives::transports::{Log, transports};

    use super::*;
    use crate::record::tests::finished;

    /// Ranks 0 and 1 on node-a, 2 and 3 on node-b.
    fn ranks() -> Vec<RankRecord> {
        let rank = |rank| RankRecord {
            rank,
            host: if rank < 2 { "node-a" } else { "node-b" }.to_owned(),
            ..finished().ranks[0].clone()
        };
        (0..4).map(rank).collect()
    }

    /// A ring, where these ends are without GPUDirect RDMA.
    fn ring(without: &[&str]) -> Vec<Transport> {
        let line = |(from, to, side): (usize, usize, &str)| {
            let own = if side == "send" { from } else { to };
            let gdr = if without.contains(&&*format!("{side} {own}")) { "" } else { "/GDRDMA" };
            format!("NCCL INFO Channel 00/0 : {from}[0] -> {to}[0] [{side}] via NET/IB/0{gdr}\n")
        };
        let pairs = (0..4).map(|rank| (rank, (rank + 1) % 4));
        let ends = pairs.flat_map(|(from, to)| [(from, to, "send"), (from, to, "receive")]);
        transports(Log::parse(&ends.map(line).collect::<String>()).ends())
    }

    #[track_caller]
    fn assert_text(without: &[&str], expected: &str) {
        let anomalies = transport_anomalies(&ring(without), &[const { None }; 4], &ranks());
        let texts: Vec<_> = anomalies.into_iter().map(|anomaly| anomaly.text).collect();
        let start = "GPUDirect RDMA is not on in both directions over NET/IB: ";
        assert_eq!(texts, [format!("{start}{expected}")]);
    }

    #[test]
    fn hosts_and_ranks_without_gdr_are_named() {
        let none = [const { None }; 4];
        assert_eq!(transport_anomalies(&ring(&[]), &none, &ranks()), [], "on everywhere");
        assert_eq!(transport_anomalies(&[], &none, &ranks()), [], "no pairs");
        assert_text(&["receive 1"], "node-a receives without it (rank 1)");
        let node_b = ["send 2", "send 3", "receive 2", "receive 3"];
        assert_text(&node_b, "node-b sends and receives without it (ranks 2, 3)");
        assert_text(
            &["send 0", "receive 2", "receive 3", "send 2"],
            "node-a sends without it (rank 0), node-b sends without it (rank 2) and receives \
             without it (ranks 2, 3)",
        );
    }

    #[test]
    fn ranks_that_do_not_know_their_transports_are_listed_by_reason() {
        let text = |gaps: &[Option<&str>]| {
            let gaps: Vec<_> = gaps.iter().map(|gap| gap.map(str::to_owned)).collect();
            transport_gaps(&gaps)
        };
        assert_eq!(text(&[None, None]), None);
        let start = "transports are not known and count as without GPUDirect RDMA: ";
        assert_eq!(text(&[Some("hidden"); 2]), Some(format!("{start}all ranks: hidden")));
        let mixed = text(&[Some("b"), None, Some("a"), Some("b")]);
        assert_eq!(mixed, Some(format!("{start}rank 2: a; ranks 0, 3: b")));
    }
}
