//! Slow links between nodes, measured as `yardstick comm --pairs` does.

use launch::bootstrap::World;
use launch::doctor::{CheckDesc, Finding, Group, Scope};

use super::{Found, Place};
use crate::comm::{Pairs, measure_pairs};
use crate::failure::Outcome;
use crate::ranks::Ranks;

pub(super) const LINKS: CheckDesc = CheckDesc {
    name: "links",
    group: Group::Network,
    scope: Scope::World,
    inspects: "the rate between every two nodes in both directions, messages of 1 MiB over MPI; \
               up to 16 nodes, more with --links",
    thresholds: "warns for a link below 70 % of a good one (the upper quartile), measured three \
                 times",
    remedy: "measure again with `yardstick comm --pairs`; look at the adapter of the node at the \
             end of all slow links",
    fault: "trainer/src/doctor/links.rs: a_slow_link_warns_with_its_hosts",
};

/// Largest number of nodes measured by default: every further node adds a round of at most 2 s.
const NODES_MAX: usize = 16;

const MESSAGE_BYTES: u64 = 1 << 20;

/// Measures links where that is fast enough, or asked for. Collective.
pub(super) fn measure(
    world: &World,
    ranks: Ranks<'_>,
    places: &[Place],
    is_asked_for: bool,
) -> Outcome<Found> {
    let nodes = world.placement.nodes;
    let finding = match nodes {
        1 => Finding::skip("one node"),
        _ if nodes > NODES_MAX && !is_asked_for => {
            Finding::skip(format!("{nodes} nodes take longer: give --links to measure them"))
        }
        _ => judge(&measure_pairs(ranks, world, MESSAGE_BYTES)?, places),
    };
    Ok(Found::new(LINKS.name, finding))
}

fn judge(pairs: &Pairs, places: &[Place]) -> Finding {
    let rates = pairs.links.iter().map(|link| link.bytes_per_second);
    let slowest = rates.clone().fold(f64::INFINITY, f64::min);
    let fastest = rates.fold(0.0, f64::max);
    let found =
        format!("{} links, {:.2} to {:.2} GB/s", pairs.links.len(), slowest / 1e9, fastest / 1e9);
    let host = |rank: usize| &places[rank].host;
    let slow = pairs.slow.slow.links.iter().map(|slow| {
        let (from, to) = (host(slow.link.from), host(slow.link.to));
        let rate = slow.link.bytes_per_second / 1e9;
        format!("{from} -> {to} {rate:.2} GB/s, {:.0} % of a good link", 100.0 * slow.share_of_good)
    });
    let slow: Vec<_> = slow.collect();
    if slow.is_empty() {
        return Finding::pass(found);
    }
    let common = pairs.slow.common_end.map(|end| format!("; {} is at every one", host(end)));
    let text = format!("{}{}", slow.join(", "), common.unwrap_or_default());
    Finding::warn(text, "at least 70 % of a good link")
}

#[cfg(test)]
mod tests {
    use launch::doctor::Status;

    use super::*;
    use crate::comm::Link;

    #[test]
    fn a_slow_link_warns_with_its_hosts() {
        let place =
            |node: usize| Place { host: format!("node-{node}"), node, is_first_of_node: true };
        let places: Vec<_> = (0..3).map(place).collect();
        let pairs = |slow_end: Option<usize>| {
            let ends = (0..3).flat_map(|from| (0..3).map(move |to| [from, to]));
            let link = |[from, to]: [usize; 2]| {
                let is_slow = slow_end.is_some_and(|end| from == end || to == end);
                Link { from, to, bytes_per_second: if is_slow { 2e9 } else { 1e10 } }
            };
            Pairs::new(ends.filter(|[from, to]| from != to).map(link).collect())
        };
        let even = judge(&pairs(None), &places);
        assert_eq!(even, Finding::pass("6 links, 10.00 to 10.00 GB/s"));
        let slow = judge(&pairs(Some(2)), &places);
        assert_eq!(slow.status, Status::Warn);
        assert!(slow.found.contains("node-0 -> node-2 2.00 GB/s, 20 % of a good link"), "{slow:?}");
        assert!(slow.found.ends_with("; node-2 is at every one"), "{slow:?}");
    }
}
