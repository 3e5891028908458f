//! One line of the log: a channel that was connected.

use record::network::Side;
use serde::{Deserialize, Serialize};

use super::{NETWORKS, is_network};

/// A channel, and which of its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Channel(pub u16, pub u16);

/// Content of one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    /// The rank that sends.
    pub from: usize,
    /// The rank that receives; `None` where a switch sums, and both ends are of `from`.
    pub to: Option<usize>,
    /// The end that logged it.
    pub side: Side,
    /// The channel.
    pub channel: Channel,
    /// The transport, as in `P2P/CUMEM/read`, `SHM/direct` or `NET/IB`.
    pub name: String,
    /// Number of the NIC, over a network.
    pub nic: Option<u32>,
    /// The line reports that the NIC reads or writes the GPU's memory.
    pub has_gdr: bool,
}

impl Connection {
    /// Parses the text after `NCCL INFO ` in a line. `None` if it is about something else, or too
    /// damaged to identify the ranks and the transport.
    ///
    /// ```
    /// # use yardstick_collectives::transports::{Connection, Side};
    /// let text = "Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0/GDRDMA";
    /// let connection = Connection::parse(text).unwrap();
    /// assert_eq!((connection.from, connection.to, connection.side), (1, Some(2), Side::Send));
    /// assert!(connection.name == "NET/IB" && connection.has_gdr);
    /// ```
    pub fn parse(message: &str) -> Option<Self> {
        let (kind, rest) = message.split_once(' ')?;
        let (channel, rest) = rest.split_once(" : ")?;
        let (ranks, path) = rest.trim_end().split_once(" via ")?;
        let Path { name, nic, has_gdr } = Path::parse(path)?;
        let (ranks, side) = match ranks.rsplit_once(' ') {
            Some((ranks, "[send]")) if is_network(&name) => (ranks, Side::Send),
            Some((ranks, "[receive]")) if is_network(&name) => (ranks, Side::Receive),
            _ if is_network(&name) => return None,
            _ => (ranks, Side::Send),
        };
        let (from, to) = match kind {
            "Channel" => {
                let (from, to) = ranks.split_once(" -> ")?;
                (rank(from)?, Some(rank(to)?))
            }
            "CollNet" => (ranks.parse().ok()?, None),
            _ => return None,
        };
        Some(Self { from, to, side, channel: Channel::parse(channel)?, name, nic, has_gdr })
    }

    /// Returns whether it is over a network, where GPUDirect RDMA matters.
    pub fn is_network(&self) -> bool {
        is_network(&self.name)
    }
}

impl Channel {
    /// `02/1`, or `02` for the only connection.
    fn parse(text: &str) -> Option<Self> {
        let (number, connection) = text.split_once('/').unwrap_or((text, "0"));
        Some(Self(number.parse().ok()?, connection.parse().ok()?))
    }
}

/// `12[4]`, or `12[1a000]` with the bus id of its device.
fn rank(text: &str) -> Option<usize> {
    let (number, device) = text.strip_suffix(']')?.split_once('[')?;
    let is_device = !device.is_empty() && device.bytes().all(|byte| byte.is_ascii_hexdigit());
    number.parse().ok().filter(|_| is_device)
}

/// Text after `via`, parsed.
struct Path {
    name: String,
    nic: Option<u32>,
    has_gdr: bool,
}

impl Path {
    fn parse(text: &str) -> Option<Self> {
        for network in NETWORKS {
            if let Some(rest) = text.strip_prefix(network) {
                return Self::of_network(network, rest);
            }
        }
        Self::of_node(text)
    }

    /// `IB/0(7)/GDRDMA(PCI)/Shared`. Where anything but that follows the name, the line is damaged
    /// and shows only that the network is used.
    fn of_network(network: &str, text: &str) -> Option<Self> {
        let mut parts = text.split('/');
        let name = format!("{network}{}", parts.next().filter(|name| is_name(name))?);
        let nic = parts.next().and_then(nic_number);
        let flags: Vec<&str> = parts.collect();
        let is_intact = nic.is_some()
            && flags.iter().all(|flag| ["GDRDMA", "GDRDMA(PCI)", "Shared"].contains(flag));
        let has_gdr = is_intact && flags.iter().any(|flag| flag.starts_with("GDRDMA"));
        Some(Self { name, nic, has_gdr })
    }

    /// `P2P/IPC/read`, `P2P/indirect/3[3]`, `SHM/direct/direct`.
    fn of_node(text: &str) -> Option<Self> {
        let (kind, way) = text.split_once('/')?;
        // The rank between two others is no part of the transport's name.
        let way = if way.starts_with("indirect/") { "indirect" } else { way };
        let is_known = ["P2P", "SHM"].contains(&kind) && way.split('/').all(is_name);
        is_known.then(|| Self { name: format!("{kind}/{way}"), nic: None, has_gdr: false })
    }
}

/// Returns whether this may be a name given by NCCL or a plugin, and not the start of another line.
fn is_name(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b" _-.".contains(&byte);
    !text.is_empty() && text.bytes().all(is_allowed)
}

/// `0`, or `0(7)` where it is the NIC of rank 7.
fn nic_number(text: &str) -> Option<u32> {
    let Some((number, owner)) = text.split_once('(') else { return text.parse().ok() };
    let _rank: usize = owner.strip_suffix(')')?.parse().ok()?;
    number.parse().ok()
}
