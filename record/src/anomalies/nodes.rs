//! Anomalies of nodes that differ from the majority.

use std::collections::BTreeMap;

use crate::machine::NodeGroup;
use crate::sections::Anomaly;
use crate::text::list;

/// Returns one anomaly for each group of nodes other than the largest.
pub fn node_anomalies(groups: &[NodeGroup]) -> Vec<Anomaly> {
    let Some((most, others)) = groups.split_first() else { return Vec::new() };
    let anomaly = |group: &NodeGroup| {
        let noun = if group.hosts.len() == 1 { "node" } else { "nodes" };
        let differ = if group.hosts.len() == 1 { "differs" } else { "differ" };
        let from = most.hosts.len();
        let hosts = list(&group.hosts);
        let what = list(&differences(&most.identity.0, &group.identity.0));
        let text = format!("{noun} {hosts} {differ} from the {from} with most in common: {what}");
        Anomaly { step: None, rank: None, text }
    };
    others.iter().map(anomaly).collect()
}

/// Lists each property that differs, with both values.
fn differences(usual: &BTreeMap<String, String>, other: &BTreeMap<String, String>) -> Vec<String> {
    let mut names: Vec<&String> = usual.keys().chain(other.keys()).collect();
    names.sort();
    names.dedup();
    let shown = |value: Option<&String>| value.map_or("nothing".to_owned(), Clone::clone);
    let differs = |name: &&&String| usual.get(**name) != other.get(**name);
    let text = |name: &String| {
        format!("{name} is {}, not {}", shown(other.get(name)), shown(usual.get(name)))
    };
    names.iter().filter(differs).map(|name| text(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{NodeIdentity, NodeReport, node_groups};

    #[test]
    fn nodes_that_differ_from_the_rest_are_named() {
        let report = |node: usize| {
            let mut identity = NodeIdentity::default();
            let firmware = if node == 2 { "28.38" } else { "28.39" };
            identity.set("nic.mlx5_0.firmware", Some(firmware.to_owned()));
            identity.set("cpu.governor", (node == 3).then(|| "powersave".to_owned()));
            NodeReport { host: format!("node-{node}"), identity }
        };
        let groups = node_groups((0..6).map(report).collect());
        assert_eq!(groups[0].hosts, ["node-0", "node-1", "node-4", "node-5"]);
        let texts: Vec<_> = node_anomalies(&groups).into_iter().map(|it| it.text).collect();
        let start = "differs from the 4 with most in common:";
        let expected = [
            format!("node node-2 {start} nic.mlx5_0.firmware is 28.38, not 28.39"),
            format!("node node-3 {start} cpu.governor is powersave, not nothing"),
        ];
        assert_eq!(texts, expected);
        assert_eq!(node_anomalies(&groups[..1]), []);
    }
}
