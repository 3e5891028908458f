//! Check of NCCL's choices between ranks: the transport of every pair, and GPUDirect RDMA in both
//! directions. Unknown counts as no.

use std::collections::{BTreeMap, BTreeSet};

use collectives::transports::{Transport, transports};
use launch::bootstrap::World;
use launch::doctor::{CheckDesc, Finding, Group, Scope};

use super::Found;
use crate::config::Config;
use crate::failure::Outcome;
use crate::ranks::Ranks;
use crate::run::{self, Connected, Evidence, NcclLog, WatchedBackends};
use record::{transport_gaps, without_gdr};

pub(super) const TRANSPORTS: CheckDesc = CheckDesc {
    name: "transports",
    group: Group::Network,
    scope: Scope::World,
    inspects: "with --device cuda on several ranks: NCCL's log of a small all-reduce",
    thresholds: "fails where NCCL does not connect; warns where its log does not name the \
                 transports of a rank, and where pairs use sockets although `rdma_ports` has found \
                 ports that are up",
    remedy: "see the log that is named, `memlock`, and NCCL_IB_HCA, NCCL_IB_DISABLE, NCCL_NET, \
             NCCL_SOCKET_IFNAME and NCCL_DEBUG of the job; on EFA, that aws-ofi-nccl is in the \
             image",
    fault: "trainer/src/doctor/transports.rs: sockets_beside_rdma_warn",
};

pub(super) const GDR: CheckDesc = CheckDesc {
    name: "gdr",
    group: Group::Network,
    scope: Scope::World,
    inspects: "the same log: GPUDirect RDMA at both ends of every pair over a network",
    thresholds: "warns if an end lacks it: what the log does not show counts as off",
    remedy: "see `gdr_driver` and `memlock`; NCCL_NET_GDR_LEVEL where adapter and GPU are far \
             apart",
    fault: "tests/cuda/doctor.rs: one_direction_without_gdr_warns_and_fails_where_it_is_required",
};

/// Findings about a network, and whether everything that was opened has been closed.
pub(super) struct Probed {
    pub(super) found: Vec<Found>,
    pub(super) is_closed: bool,
}

/// Ranks, and the network between them.
pub(super) struct Network<'a> {
    pub(super) world: &'a World,
    pub(super) peer_loss: &'a WatchedBackends,
    pub(super) ranks: Ranks<'a>,
    /// For each rank, true if it may use an RDMA port that is up.
    pub(super) has_rdma: Vec<bool>,
}

impl Network<'_> {
    /// Connects ranks in the same way as training, and reads NCCL's logs. Collective.
    pub(super) fn probe(&self, config: &Config, log: &NcclLog) -> Outcome<Probed> {
        let why = match (config.is_on_cuda(), self.ranks.is_alone()) {
            (false, _) => Some("no NCCL without --device cuda"),
            (true, true) => Some("one rank"),
            _ => None,
        };
        if let Some(why) = why {
            let found = [&TRANSPORTS, &GDR].map(|desc| Found::new(desc.name, Finding::skip(why)));
            return Ok(Probed { found: found.into(), is_closed: true });
        }
        let Connected { evidence, failures, is_closed } =
            run::connect(config, self.world, self.peer_loss, self.ranks, log)?;
        let [of_transports, of_gdr] = match named(&failures) {
            Some(text) => [
                Finding::fail(text, "NCCL connects all ranks"),
                Finding::warn("NCCL did not connect", "GPUDirect RDMA in both directions"),
            ],
            None => judge(&evidence, &self.world.hosts, &self.has_rdma),
        };
        let found = vec![Found::new(TRANSPORTS.name, of_transports), Found::new(GDR.name, of_gdr)];
        Ok(Probed { found, is_closed })
    }
}

/// Joins the failures of ranks, each with its rank.
fn named(failures: &[Option<String>]) -> Option<String> {
    let texts: Vec<_> = failures
        .iter()
        .enumerate()
        .filter_map(|(rank, failure)| Some(format!("rank {rank}: {}", failure.as_ref()?)))
        .collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

/// Name of NCCL's transport over TCP.
const SOCKETS: &str = "NET/Socket";

/// Judges transports and GPUDirect RDMA.
fn judge(evidence: &[Evidence], hosts: &[String], has_rdma: &[bool]) -> [Finding; 2] {
    let gaps: Vec<_> = evidence.iter().map(|rank| rank.gap.clone()).collect();
    let pairs = transports(evidence.iter().flat_map(|rank| rank.ends.clone()));
    let unknown = transport_gaps(&gaps);
    let sockets = sockets_beside_rdma(&pairs, hosts, has_rdma);
    let of_transports = match (&unknown, sockets) {
        (Some(text), _) => Finding::warn(text, "the transport of every pair"),
        (None, Some(text)) => Finding::warn(
            format!("{}: {text}", counted(&pairs)),
            "no sockets between ports for RDMA that are up",
        ),
        (None, None) => Finding::pass(counted(&pairs)),
    };
    let expected = "GPUDirect RDMA in both directions of every pair over a network";
    let of_gdr = match (unknown, without_gdr(&pairs, hosts)) {
        (_, Some(text)) | (Some(text), None) => Finding::warn(text, expected),
        _ if pairs.iter().any(Transport::is_network) => Finding::pass("on in both directions"),
        _ => Finding::skip("no pair is over a network"),
    };
    [of_transports, of_gdr]
}

/// Returns hosts whose ranks use sockets although both ends may use RDMA.
fn sockets_beside_rdma(pairs: &[Transport], hosts: &[String], has_rdma: &[bool]) -> Option<String> {
    let may = |rank: usize| has_rdma.get(rank).copied().unwrap_or(false);
    let uses_sockets = |pair: &&Transport| {
        pair.name.contains(SOCKETS) && may(pair.from) && pair.to.is_some_and(may)
    };
    let ranks =
        pairs.iter().filter(uses_sockets).flat_map(|pair| [Some(pair.from), pair.to]).flatten();
    let hosts_with_sockets: BTreeSet<_> = ranks.map(|rank| hosts[rank].clone()).collect();
    let hosts_with_sockets: Vec<_> = hosts_with_sockets.into_iter().collect();
    (!hosts_with_sockets.is_empty())
        .then(|| format!("sockets between {}", hosts_with_sockets.join(", ")))
}

/// Counts transports, as in `12 x P2P/CUMEM, 4 x NET/IB`.
fn counted(pairs: &[Transport]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    pairs.iter().for_each(|pair| *counts.entry(&pair.name).or_default() += 1);
    let texts: Vec<_> = counts.iter().map(|(name, count)| format!("{count} x {name}")).collect();
    texts.join(", ")
}

#[cfg(test)]
mod tests {
    use collectives::transports::Log;
    use launch::doctor::Status;

    use super::*;

    /// Returns the evidence of two ranks, each on its own host, with these connections over
    /// InfiniBand.
    fn evidence(ends: &[&str]) -> Vec<Evidence> {
        let log: String =
            ends.iter().map(|end| format!("NCCL INFO Channel 00/0 : {end}\n")).collect();
        let log = Log::parse(&log);
        let of_rank = |rank| {
            let ends = log.ends_of(rank, 0, &[0, 1, 2, 3]);
            let gap = ends.is_empty().then(|| "NCCL's log does not name them".to_owned());
            Evidence { ends, gap }
        };
        vec![of_rank(0), of_rank(1)]
    }

    fn hosts() -> Vec<String> {
        ["node-a", "node-b"].map(str::to_owned).into()
    }

    const SEND: &str = "0[0] -> 1[1] [send] via NET/IB/0/GDRDMA";
    const RECEIVE: &str = "0[0] -> 1[1] [receive] via NET/IB/0/GDRDMA";

    #[test]
    fn one_end_without_gdr_is_named() {
        let [transports, gdr] = judge(&evidence(&[SEND, RECEIVE]), &hosts(), &[]);
        assert_eq!(transports, Finding::pass("1 x NET/IB"));
        assert_eq!(gdr, Finding::pass("on in both directions"));
        let without = RECEIVE.trim_end_matches("/GDRDMA");
        let [_, gdr] = judge(&evidence(&[SEND, without]), &hosts(), &[]);
        assert_eq!(gdr.status, Status::Warn);
        assert!(gdr.found.ends_with("node-b receives without it (rank 1)"), "{gdr:?}");
    }

    #[test]
    fn what_nccl_did_not_say_counts_as_no() {
        let [transports, gdr] = judge(&evidence(&[SEND]), &hosts(), &[]);
        assert_eq!((transports.status, gdr.status), (Status::Warn, Status::Warn));
        let text = "rank 1: NCCL's log does not name them";
        assert!(transports.found.contains(text), "{transports:?}");
        assert!(gdr.found.ends_with("node-b receives without it (rank 1)"), "{gdr:?}");
        let within = ["0[0] -> 1[1] via P2P/CUMEM", "1[1] -> 0[0] via P2P/CUMEM"];
        let [transports, gdr] = judge(&evidence(&within), &hosts(), &[]);
        assert_eq!(transports.status, Status::Pass);
        assert_eq!(gdr.status, Status::Skip);
    }

    #[test]
    fn sockets_beside_rdma_warn() {
        let ends =
            ["0[0] -> 1[0] [send] via NET/Socket/0", "0[0] -> 1[0] [receive] via NET/Socket/0"];
        let of = |has_rdma| {
            let [transports, _] = judge(&evidence(&ends), &hosts(), &[true, has_rdma]);
            transports
        };
        assert_eq!((of(false).status, &*of(false).found), (Status::Pass, "1 x NET/Socket"));
        let text = "1 x NET/Socket: sockets between node-a, node-b";
        assert_eq!((of(true).status, &*of(true).found), (Status::Warn, text));
    }

    #[test]
    fn ranks_that_do_not_connect_are_named() {
        assert_eq!(named(&[None, None]), None);
        let text = named(&[None, Some("no device".to_owned())]);
        assert_eq!(text.as_deref(), Some("rank 1: no device"));
    }
}
