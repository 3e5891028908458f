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
    /// Number of the section that is being read.
    section: usize,
    /// By section.
    connections: BTreeMap<(usize, Pair), Vec<Connection>>,
    nics: NicNames,
    /// Sections with lines of NVLS.
    with_nvls: BTreeSet<usize>,
}

/// Sender, receiver, and the end of one of them.
type Pair = (usize, Option<usize>, Side);

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
            if message.starts_with(NVLS) {
                self.with_nvls.insert(self.section);
            }
            if let Some(connection) = Connection::parse(message) {
                let Connection { from, to, side, .. } = connection;
                self.connections
                    .entry((self.section, (from, to, side)))
                    .or_default()
                    .push(connection);
            }
        }
    }

    /// Begins a section: the ranks of the lines that follow are those of another group. Names of
    /// NICs are of the whole log.
    pub fn begin_section(&mut self) {
        self.section += 1;
    }

    /// Returns whether there is a connection in a section, of which the first is 0.
    pub fn has_connections(&self, section: usize) -> bool {
        self.connections.keys().any(|(of, _)| *of == section)
    }

    /// Ends for which the log has evidence, with the ranks of their groups. Lines of NVLS do not
    /// name the rank.
    pub fn ends(&self) -> Vec<PairEnd> {
        self.connections.values().map(|end| self.end(end)).collect()
    }

    /// Ends of one rank of the world, in a section of the log of its process, which is about a
    /// group of these `ranks`: other ranks' own logs decide about theirs.
    pub fn ends_of(&self, rank: usize, section: usize, ranks: &[usize]) -> Vec<PairEnd> {
        let of_section = self.connections.iter().filter(|((of, _), _)| *of == section);
        let in_world = |(_, connections): (_, &Vec<Connection>)| {
            let end = self.end(connections);
            let from = *ranks.get(end.from)?;
            let to = end.to.map(|to| ranks.get(to).copied().ok_or(())).transpose().ok()?;
            Some(PairEnd { from, to, ..end })
        };
        let mut ends: Vec<PairEnd> = of_section.filter_map(in_world).collect();
        ends.retain(|end| end.rank() == rank);
        if self.with_nvls.contains(&section) {
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
