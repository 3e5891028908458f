//! Tests of what records make of transports in a log.

use record::fixtures::finished;
use record::{RankRecord, name_nics, transport_anomalies, transport_gaps};

use super::{Log, Transport, transports};

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

#[test]
fn what_nccl_has_used_comes_before_what_is_near() {
    let log = "NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB ; OOB eth0:10.0.0.1<0>\n\
               NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/1/GDRDMA\n\
               NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0/GDRDMA\n\
               NCCL INFO Channel 00/0 : 1[0] -> 0[0] [send] via NET/Unknown/3\n";
    let mut ranks = finished().ranks;
    ranks.iter_mut().for_each(|rank| rank.nic = Some("mlx5_9:1".to_owned()));
    name_nics(&mut ranks, &transports(Log::parse(log).ends()));
    assert_eq!(ranks[0].nic.as_deref(), Some("mlx5_0:1, mlx5_1:1"));
    assert_eq!(ranks[1].nic.as_deref(), Some("mlx5_9:1"), "without a name");
    assert!(ranks[0].location(&ranks).ends_with(", NIC mlx5_0:1, mlx5_1:1)"));
}
