//! `yardstick comm` on emulated nodes, with one slow link, or all links of one node slow; and the
//! gap of a step by a slow link, or a quota of CPU time. Needs root, and Debian's iproute2.
#![cfg(feature = "mpi")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod gap;
mod links_down;
mod nodes;
mod quota;

use nodes::Nodes;
use serde_json::{Value, json};

const NODES: usize = 4;

/// Slow links that were found: links as `from -> to`, and the rank that all of them have in common,
/// which only pairs can have.
#[derive(Debug, PartialEq)]
struct Found {
    links: Vec<String>,
    common_end: Value,
}

impl Found {
    /// Parses `slow` of a report.
    fn new(slow: &Value) -> Self {
        let name = |link: &Value| format!("{} -> {}", link["from"], link["to"]);
        let mut links: Vec<_> = slow["links"].as_array().unwrap().iter().map(name).collect();
        links.sort();
        Self { links, common_end: slow["common_end"].clone() }
    }

    fn nothing() -> Self {
        Self { links: Vec::new(), common_end: Value::Null }
    }
}

/// Messages that take a good link 44 ms: far longer than a core is given to another process.
const MESSAGE: [&str; 2] = ["--message-bytes", "256K"];

/// Pairs and cuts.
fn measure(nodes: &Nodes) -> Value {
    let flags = ["comm", "--pairs", "--bisection", "--json"];
    let finished = support::finish(nodes.mpirun(&[&flags[..], &MESSAGE].concat())).expect(0);
    let report: Value = serde_json::from_str(&finished.stdout).unwrap();
    let hosts: Vec<String> = (0..NODES).map(|node| format!("node-{node}")).collect();
    assert_eq!(report["hosts"], json!(hosts));
    report
}

/// Measures up to three times, until the result is as expected: a neighbour on the machine may slow
/// a link down meanwhile.
fn measure_until(nodes: &Nodes, is_expected: impl Fn(&Value) -> bool) -> Value {
    let again = (0..2).map(|_| measure(nodes)).find(&is_expected);
    again.unwrap_or_else(|| measure(nodes))
}

/// Returns the slow links in the cuts: of ranks 1 apart, and 2.
fn found_in_cuts(report: &Value) -> Vec<Found> {
    let cuts = report["cuts"].as_array().unwrap();
    cuts.iter().map(|cut| Found::new(&cut["slow"])).collect()
}

#[test]
#[ignore = "adds network namespaces: needs root, and ip and tc of iproute2"]
fn links_alike_are_not_slow() {
    let pairs = |report: &Value| Found::new(&report["pairs"]["slow"]);
    let nothing = [Found::nothing(), Found::nothing()];
    let report = measure_until(&Nodes::new(NODES), |report| {
        pairs(report) == Found::nothing() && found_in_cuts(report) == nothing
    });
    assert_eq!(pairs(&report), Found::nothing(), "{report:#}");
    assert_eq!(found_in_cuts(&report), nothing, "{report:#}");
}

#[test]
#[ignore = "adds network namespaces: needs root, and ip and tc of iproute2"]
fn a_slow_link_is_named_in_its_direction() {
    let nodes = Nodes::new(NODES);
    nodes.throttle(1, 3);
    let one = Found { links: vec!["1 -> 3".to_owned()], common_end: Value::Null };
    let report = measure_until(&nodes, |report| {
        Found::new(&report["pairs"]["slow"]) == one && found_in_cuts(report)[0] == Found::nothing()
    });
    assert_eq!(Found::new(&report["pairs"]["slow"]), one, "{report:#}");
    let [adjacent, opposite] = found_in_cuts(&report).try_into().unwrap();
    assert_eq!(adjacent, Found::nothing(), "{report:#}");
    // Both send at the same time, so the other direction may have to wait for this one.
    let others = opposite.links.iter().filter(|link| *link != "3 -> 1");
    assert!(others.eq(["1 -> 3"]), "{report:#}");
}

#[test]
#[ignore = "adds network namespaces: needs root, and ip and tc of iproute2"]
fn a_node_of_which_all_links_are_slow_is_named() {
    let nodes = Nodes::new(NODES);
    nodes.throttle_node(3);
    let text = support::finish(nodes.mpirun(&[&["comm", "--pairs"], &MESSAGE[..]].concat()));
    let text = text.expect(0).stdout;
    let mut named: Vec<_> = text.lines().filter(|line| line.starts_with("slow link: ")).collect();
    named.sort_unstable();
    let link =
        |from, to| format!("slow link: rank {from} (node-{from}) -> rank {to} (node-{to}): ");
    let links = [(0, 3), (1, 3), (2, 3), (3, 0), (3, 1), (3, 2)].map(|(from, to)| link(from, to));
    let are_those = named.iter().zip(&links).all(|(line, link)| line.starts_with(link));
    assert!(are_those && named.len() == links.len(), "{text}");
    assert!(text.contains("rank 3 (node-3) is at one end of every slow link"), "{text}");
}
