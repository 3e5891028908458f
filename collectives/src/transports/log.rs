//! A log, line by line, summed up for each end of each pair of ranks.

use std::collections::{BTreeMap, BTreeSet};

use record::network::Side;
use serde::{Deserialize, Serialize};

use super::connection::{Channel, Connection};
use super::nics::NicNames;

/// Precedes the text of each line of level INFO.
const MARK: &str = "NCCL INFO ";

/// Start of the line of a process whose ranks are summed by the switch of their NVLinks.
const NVLS: &str = "NVLS comm ";

/// Transports in a log: of one rank, or of several that write to one file.
///
/// ```
/// # use yardstick_collectives::transports::{Log, transports};
/// let mut log = Log::default();
/// log.add("node-a:71:90 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct");
/// assert_eq!(transports(log.ends())[0].name, "SHM/direct");
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Log {
    connections: BTreeMap<(usize, Option<usize>, Side), Vec<Connection>>,
    nics: NicNames,
    uses_nvls: bool,
}

/// One end of the connections from one rank to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairEnd {
    /// The rank that sends.
    pub from: usize,
    /// The rank that receives; `None` for the switch, of which both ends are of `from`.
    pub to: Option<usize>,
    /// Sending or receiving end.
    pub side: Side,
    /// The names of its transports, as a rule one.
    pub names: BTreeSet<String>,
    /// The NICs of this end.
    pub nics: BTreeSet<String>,
    /// Channels within a node.
    pub local: BTreeSet<Channel>,
    /// Channels over a network with GPUDirect RDMA at this end.
    pub with_gdr: BTreeSet<Channel>,
    /// Channels over a network that were logged without it, at least once.
    pub without_gdr: BTreeSet<Channel>,
}

impl Log {
    /// The log in a text.
    pub fn parse(text: &str) -> Self {
        let mut log = Self::default();
        text.lines().for_each(|line| log.add(line));
        log
    }

    /// Adds a line, of whatever content. It may have several messages where processes that write
    /// to one file have interrupted each other.
    pub fn add(&mut self, line: &str) {
        for message in line.split(MARK).skip(1) {
            self.nics.add(message);
            self.uses_nvls |= message.starts_with(NVLS);
            if let Some(connection) = Connection::parse(message) {
                let Connection { from, to, side, .. } = connection;
                self.connections.entry((from, to, side)).or_default().push(connection);
            }
        }
    }

    /// Ends for which the log has evidence. Lines of NVLS do not name the rank.
    pub fn ends(&self) -> Vec<PairEnd> {
        self.connections.values().map(|end| self.end(end)).collect()
    }

    /// Ends of one rank, in the log of its process: other ranks' own logs decide about theirs.
    pub fn ends_of(&self, rank: usize) -> Vec<PairEnd> {
        let mut ends = self.ends();
        ends.retain(|end| end.rank() == rank);
        if self.uses_nvls {
            let names = BTreeSet::from(["NVLS".to_owned()]);
            ends.push(PairEnd { names, ..PairEnd::new(rank, None, Side::Send) });
        }
        ends
    }

    fn end(&self, connections: &[Connection]) -> PairEnd {
        let Connection { from, to, side, .. } = connections[0];
        let mut end = PairEnd::new(from, to, side);
        for connection in connections {
            let Connection { name, nic, channel, has_gdr, .. } = connection;
            end.names.insert(name.clone());
            end.nics.extend(nic.map(|nic| self.nics.name(name, nic)));
            let channels = match (connection.is_network(), has_gdr) {
                (false, _) => &mut end.local,
                (true, true) => &mut end.with_gdr,
                (true, false) => &mut end.without_gdr,
            };
            channels.insert(*channel);
        }
        end
    }
}

impl PairEnd {
    /// An end without any evidence.
    pub(super) fn new(from: usize, to: Option<usize>, side: Side) -> Self {
        let names = BTreeSet::new();
        let nics = BTreeSet::new();
        let [local, with_gdr, without_gdr] = [const { BTreeSet::new() }; 3];
        Self { from, to, side, names, nics, local, with_gdr, without_gdr }
    }

    /// The rank at this end.
    pub fn rank(&self) -> usize {
        match self.side {
            Side::Send => self.from,
            Side::Receive => self.to.unwrap_or(self.from),
        }
    }

    /// Adds another log's evidence about the same end.
    pub(super) fn merge(&mut self, other: Self) {
        self.names.extend(other.names);
        self.nics.extend(other.nics);
        self.local.extend(other.local);
        self.with_gdr.extend(other.with_gdr);
        self.without_gdr.extend(other.without_gdr);
    }
}
