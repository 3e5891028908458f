//! Check that nodes are equal: in versions, and in everything else that identifies a node.

use launch::bootstrap::World;
use launch::doctor::{CheckDesc, Finding, Group, Scope};
use record::machine::NodeIdentity;

use super::Found;
use crate::failure::Outcome;
use crate::ranks::Ranks;
use crate::run::identity_with_libraries;
use record::{NodeGroup, NodeReport, node_anomalies, node_groups};

pub(super) const VERSIONS: CheckDesc = CheckDesc {
    name: "versions",
    group: Group::Nodes,
    scope: Scope::World,
    inspects: "versions of yardstick, the MPI library, and the CUDA driver and libraries",
    thresholds: "fails where a node differs: ranks of different versions may not understand each \
                 other, and do not compute the same bits",
    remedy: "use one image by its digest, and one driver on all nodes",
    fault: "trainer/src/doctor/alike.rs: nodes_that_differ_are_named",
};

pub(super) const NODES: CheckDesc = CheckDesc {
    name: "nodes",
    group: Group::Nodes,
    scope: Scope::World,
    inspects: "firmware, BIOS, microcode, kernel and its settings, adapters and links, GPU models",
    thresholds: "warns if a node differs: it may be slower, and is the first suspect",
    remedy: "bring the nodes that are named to the state of the others",
    fault: "trainer/src/doctor/alike.rs: nodes_that_differ_are_named",
};

/// Properties that must be equal.
const VERSIONS_OF: [&str; 3] = ["yardstick", "library.", "driver.nvidia"];

/// Compares nodes by the reports of their first ranks. Collective.
pub(super) fn compare(world: &World, ranks: Ranks<'_>, on_cuda: bool) -> Outcome<Vec<Found>> {
    let placement = &world.placement;
    let own = (placement.local_rank == 0).then(|| {
        let mut identity = identity_with_libraries(&*world.collective, on_cuda);
        identity.set("yardstick", Some(record::Program::current().build.to_owned()));
        NodeReport { host: placement.host.clone(), identity }
    });
    Ok(judge(ranks.gather(&own)?.into_iter().flatten().collect()))
}

fn judge(reports: Vec<NodeReport>) -> Vec<Found> {
    let is_version = |name: &str| VERSIONS_OF.iter().any(|start| name.starts_with(start));
    let versions = groups(&reports, is_version);
    let others = groups(&reports, |name| !is_version(name));
    let of_versions = match differences(&versions) {
        None => Finding::pass(listed(&versions[0].identity)),
        Some(text) => Finding::fail(text, "the same on all nodes"),
    };
    let of_others = match differences(&others) {
        _ if reports.len() == 1 => Finding::skip("one node"),
        None => Finding::pass(format!("{} nodes are alike", reports.len())),
        Some(text) => Finding::warn(text, "the same on all nodes"),
    };
    vec![Found::new(VERSIONS.name, of_versions), Found::new(NODES.name, of_others)]
}

/// Groups the nodes that are alike in these properties.
fn groups(reports: &[NodeReport], is_wanted: impl Fn(&str) -> bool) -> Vec<NodeGroup> {
    let of_node = |report: &NodeReport| {
        let properties = report.identity.0.iter().filter(|(name, _)| is_wanted(name));
        let properties = properties.map(|(name, value)| (name.clone(), value.clone()));
        let identity = NodeIdentity(properties.collect());
        NodeReport { host: report.host.clone(), identity }
    };
    node_groups(reports.iter().map(of_node).collect())
}

fn differences(groups: &[NodeGroup]) -> Option<String> {
    let texts: Vec<_> = node_anomalies(groups).into_iter().map(|anomaly| anomaly.text).collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

/// Lists versions, as in `mpi Open MPI v4.1.4, yardstick 0.8.0`: of each library's text, the part
/// that names its version.
fn listed(identity: &NodeIdentity) -> String {
    let text = |(name, value): (&String, &String)| {
        let name = name.rsplit('.').next().unwrap_or(name);
        format!("{name} {}", value.split([',', ';', '(']).next().unwrap_or(value).trim_end())
    };
    identity.0.iter().map(text).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use launch::doctor::Status;

    use super::*;

    fn report(host: &str, nccl: &str, firmware: &str) -> NodeReport {
        let mut identity = NodeIdentity::default();
        identity.set("library.nccl", Some(nccl.to_owned()));
        identity.set("nic.mlx5_0.firmware", Some(firmware.to_owned()));
        NodeReport { host: host.to_owned(), identity }
    }

    #[test]
    fn nodes_that_differ_are_named() {
        let findings = |last: NodeReport| {
            let reports = vec![report("a", "2.27", "28.39"), report("b", "2.27", "28.39"), last];
            let all = judge(reports);
            [VERSIONS.name, NODES.name]
                .map(|check| all.iter().find(|found| found.check == check).unwrap().finding.clone())
        };
        let alike = findings(report("c", "2.27", "28.39"));
        let pass = [Finding::pass("nccl 2.27"), Finding::pass("3 nodes are alike")];
        assert_eq!(alike, pass);
        let old = findings(report("c", "2.21", "28.39"));
        let text = "node c differs from the 2 with most in common: library.nccl is 2.21, not 2.27";
        assert_eq!(old[0], Finding::fail(text, "the same on all nodes"));
        assert_eq!(old[1].status, Status::Pass);
        let firmware = findings(report("c", "2.27", "28.38"));
        assert_eq!((firmware[0].status, firmware[1].status), (Status::Pass, Status::Warn));
        assert!(firmware[1].found.contains("nic.mlx5_0.firmware is 28.38"), "{firmware:?}");
    }
}
