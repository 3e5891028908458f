//! What changed in the transports between two runs.

use std::collections::BTreeMap;
use std::fmt;

use super::pair::{NetworkEnd, Transport};

/// How many pairs a change lists; it counts all.
const LISTED_MAX: usize = 4;

/// The same change of several pairs. [`Display`](fmt::Display) is a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// What changed.
    pub kind: ChangeKind,
    /// The pairs, each from a rank to another or to a switch, in the order of ranks.
    pub pairs: Vec<(usize, Option<usize>)>,
}

/// What changed in a pair of ranks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangeKind {
    /// GPUDirect RDMA is no longer on in both directions.
    GdrLost,
    /// GPUDirect RDMA is on in both directions now.
    GdrGained,
    /// Another transport.
    Name {
        /// In the first run; `none` where the pair was not connected.
        before: String,
        /// In the second.
        after: String,
    },
}

/// Compares pair by pair; nothing where all are as before. Channels and NICs do not count.
///
/// ```
/// # use yardstick_collectives::transports::{Log, changes, transports};
/// let line = "NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct";
/// let before = transports(Log::parse(line).ends());
/// let after = transports(Log::parse(&line.replace("SHM/direct", "P2P/IPC")).ends());
/// let change = changes(&before, &after)[0].to_string();
/// assert_eq!(change, "SHM/direct is P2P/IPC now in 1 pair (0 -> 1)");
/// ```
pub fn changes(before: &[Transport], after: &[Transport]) -> Vec<Change> {
    let mut pairs: BTreeMap<(usize, Option<usize>), [Option<&Transport>; 2]> = BTreeMap::new();
    for (index, run) in [before, after].into_iter().enumerate() {
        for transport in run {
            let pair = pairs.entry((transport.from, transport.to)).or_default();
            pair[index] = Some(transport);
        }
    }
    let mut changes: BTreeMap<ChangeKind, Vec<(usize, Option<usize>)>> = BTreeMap::new();
    for (pair, [before, after]) in pairs {
        for kind in changes_of(before, after) {
            changes.entry(kind).or_default().push(pair);
        }
    }
    changes.into_iter().map(|(kind, pairs)| Change { kind, pairs }).collect()
}

fn changes_of(before: Option<&Transport>, after: Option<&Transport>) -> Vec<ChangeKind> {
    let name = |run: Option<&Transport>| run.map_or("none", |pair| &pair.name).to_owned();
    let mut changes = Vec::new();
    if name(before) != name(after) {
        changes.push(ChangeKind::Name { before: name(before), after: name(after) });
    }
    match (before.and_then(gdr), after.and_then(gdr)) {
        (Some(true), Some(false)) => changes.push(ChangeKind::GdrLost),
        (Some(false), Some(true)) => changes.push(ChangeKind::GdrGained),
        _ => {}
    }
    changes
}

/// Over a network, whether GPUDirect RDMA is on in both directions.
fn gdr(pair: &Transport) -> Option<bool> {
    let on = |end: &Option<NetworkEnd>| end.as_ref().map(|end| end.gdr);
    Some(on(&pair.send)? && on(&pair.receive)?)
}

impl fmt::Display for Change {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            ChangeKind::GdrLost => write!(formatter, "GPUDirect RDMA was lost")?,
            ChangeKind::GdrGained => write!(formatter, "GPUDirect RDMA was gained")?,
            ChangeKind::Name { before, after } => write!(formatter, "{before} is {after} now")?,
        }
        let count = self.pairs.len();
        let noun = if count == 1 { "pair" } else { "pairs" };
        let listed = self.pairs.iter().take(LISTED_MAX);
        let listed: Vec<_> = listed.map(pair_text).collect();
        let more = if count > LISTED_MAX { ", ..." } else { "" };
        write!(formatter, " in {count} {noun} ({}{more})", listed.join(", "))
    }
}

fn pair_text((from, to): &(usize, Option<usize>)) -> String {
    let to = to.map_or("switch".to_owned(), |to| to.to_string());
    format!("{from} -> {to}")
}

#[cfg(test)]
mod tests {
    use super::super::{Log, transports};
    use super::*;

    fn run(log: &str) -> Vec<Transport> {
        transports(Log::parse(log).ends())
    }

    fn texts(before: &str, after: &str) -> Vec<String> {
        changes(&run(before), &run(after)).iter().map(ToString::to_string).collect()
    }

    const FULL: &str = include_str!("fixtures/full-gdr-2.30.log");
    const RECEIVES_WITHOUT: &str = include_str!("fixtures/receives-without-2.27.log");

    #[test]
    fn lost_and_gained_gdr_and_other_transports_are_listed() {
        assert_eq!(texts(FULL, FULL), [""; 0]);
        let pairs = "4 pairs (0 -> 2, 1 -> 2, 2 -> 0, 3 -> 0)";
        let local = "2 pairs (0 -> 1, 2 -> 3)";
        let lost = format!("GPUDirect RDMA was lost in {pairs}");
        let name = format!("P2P/CUMEM/read is P2P/IPC now in {local}");
        assert_eq!(texts(FULL, RECEIVES_WITHOUT), [lost, name]);
        let gained = format!("GPUDirect RDMA was gained in {pairs}");
        let name = format!("P2P/IPC is P2P/CUMEM/read now in {local}");
        assert_eq!(texts(RECEIVES_WITHOUT, FULL), [gained, name]);
    }

    #[test]
    fn pairs_of_one_run_alone_are_listed_and_long_lists_are_cut() {
        let ring = |ranks: usize| {
            let line = |rank| format!("NCCL INFO Channel 00 : {rank}[0] -> 0[1] via SHM/direct\n");
            (1..=ranks).map(line).collect::<String>()
        };
        let more = "none is SHM/direct now in 5 pairs (2 -> 0, 3 -> 0, 4 -> 0, 5 -> 0, ...)";
        assert_eq!(texts(&ring(1), &ring(6)), [more]);
        assert_eq!(texts(&ring(2), &ring(1)), ["SHM/direct is none now in 1 pair (2 -> 0)"]);
    }

    /// NICs without GPUDirect RDMA and with another name: only the name is a change.
    #[test]
    fn a_pair_that_leaves_the_network_needs_no_gdr() {
        let network = "NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0";
        let local = "NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/MNNVL";
        assert_eq!(texts(network, local), ["NET/IB is P2P/MNNVL now in 1 pair (0 -> 1)"]);
    }
}
