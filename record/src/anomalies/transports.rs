//! Anomalies of the transports between ranks: unknown transports, and GPUDirect RDMA that is off.

use std::collections::BTreeMap;

use crate::network::{EndWithoutGdr, Side, Transport, ends_without_gdr};

use crate::sections::{Anomaly, RankRecord};
use crate::text::list;

/// Returns at most one anomaly of each kind. `gaps` holds for each rank the reason why it may not
/// know all of its transports, if any.
pub fn transport_anomalies(
    transports: &[Transport],
    gaps: &[Option<String>],
    ranks: &[RankRecord],
) -> Vec<Anomaly> {
    let anomaly = |text| Anomaly { step: None, rank: None, text };
    let hosts: Vec<_> = ranks.iter().map(|rank| rank.host.clone()).collect();
    let texts = [transport_gaps(gaps), without_gdr(transports, &hosts)];
    texts.into_iter().flatten().map(anomaly).collect()
}

/// Describes the ranks that do not know their transports, by reason.
pub fn transport_gaps(gaps: &[Option<String>]) -> Option<String> {
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

/// Ranks of a host that send, receive, or do both without GPUDirect RDMA.
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

/// Formats ranks as `rank 3` or `ranks 2, 3`.
fn named(ranks: &[String]) -> String {
    format!("{} {}", if ranks.len() == 1 { "rank" } else { "ranks" }, list(ranks))
}

/// Describes the ranks whose end of a network pair is without GPUDirect RDMA. `hosts` holds the
/// host of each rank.
pub fn without_gdr(transports: &[Transport], hosts: &[String]) -> Option<String> {
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
