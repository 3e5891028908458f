//! Counters of a port of an RDMA adapter (InfiniBand or RoCE).
//!
//! Files below `/sys/class/infiniband/ADAPTER/ports/PORT`: `counters/` (the kernel's
//! `Documentation/ABI/stable/sysfs-class-infiniband`; data in words of four bytes) and
//! `hw_counters/` (of mlx5; other drivers have some of them).

use std::path::{Path, PathBuf};

use record::files::system::{names, number, text};

use super::quantity::{MetricDesc, Quantity};

/// A port of an RDMA adapter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Port {
    /// Name, as in `mlx5_0/1`.
    pub(crate) name: String,
    folder: PathBuf,
}

const BYTES: MetricDesc = MetricDesc::counter("bytes", "Bytes of data through the port.");
const ERRORS: MetricDesc = MetricDesc::counter(
    "errors",
    "Errors of the port. Retransmissions (out_of_sequence, packet_seq_err, local_ack_timeout_err, \
     rnr_nak_retry_err) are what a lossy fabric looks like from here.",
);
const NOTIFICATIONS: MetricDesc = MetricDesc::counter(
    "congestion_notifications",
    "Congestion notification packets (RoCE) that the port sent or acted on.",
);

/// Quantities that are read from a port.
pub(crate) const QUANTITIES: [Quantity<Port>; 17] = [
    MetricDesc::gauge("active", "1 where the port is up, else 0.").read(Port::active),
    MetricDesc::gauge("rate_bits_per_second", "Rate of the link.").read(Port::rate),
    BYTES.of("direction", "transmit").charted().read(|port| port.words("port_xmit_data")),
    BYTES.of("direction", "receive").charted().read(|port| port.words("port_rcv_data")),
    MetricDesc::counter(
        "transmit_wait",
        "Ticks in which data waited, because the peer was not ready.",
    )
    .read(|port| port.counter("port_xmit_wait")),
    ERRORS.of("kind", "symbol_error").read(|port| port.counter("symbol_error")),
    ERRORS.of("kind", "link_downed").read(|port| port.counter("link_downed")),
    ERRORS.of("kind", "link_error_recovery").read(|port| port.counter("link_error_recovery")),
    ERRORS.of("kind", "port_rcv_errors").read(|port| port.counter("port_rcv_errors")),
    ERRORS.of("kind", "port_xmit_discards").read(|port| port.counter("port_xmit_discards")),
    ERRORS
        .of("kind", "local_link_integrity_errors")
        .read(|port| port.counter("local_link_integrity_errors")),
    ERRORS.of("kind", "out_of_sequence").read(|port| port.hardware_counter("out_of_sequence")),
    ERRORS.of("kind", "packet_seq_err").read(|port| port.hardware_counter("packet_seq_err")),
    ERRORS
        .of("kind", "local_ack_timeout_err")
        .read(|port| port.hardware_counter("local_ack_timeout_err")),
    ERRORS.of("kind", "rnr_nak_retry_err").read(|port| port.hardware_counter("rnr_nak_retry_err")),
    NOTIFICATIONS.of("direction", "sent").read(|port| port.hardware_counter("np_cnp_sent")),
    NOTIFICATIONS.of("direction", "handled").read(|port| port.hardware_counter("rp_cnp_handled")),
];

/// Number of bytes of a word of data counters.
const WORD_BYTES: f64 = 4.0;

impl Port {
    /// Lists all ports of a node whose `/sys` is below `root`.
    pub(crate) fn all(root: &Path) -> Vec<Self> {
        let adapters = root.join("sys/class/infiniband");
        let ports_of = |adapter: String| {
            let ports = adapters.join(&adapter).join("ports");
            names(&ports).into_iter().map(move |number| Self {
                name: format!("{adapter}/{number}"),
                folder: ports.join(number),
            })
        };
        names(&adapters).into_iter().flat_map(ports_of).collect()
    }

    fn counter(&self, name: &str) -> Option<f64> {
        number(&self.folder.join("counters").join(name))
    }

    fn hardware_counter(&self, name: &str) -> Option<f64> {
        number(&self.folder.join("hw_counters").join(name))
    }

    fn words(&self, name: &str) -> Option<f64> {
        Some(self.counter(name)? * WORD_BYTES)
    }

    /// Returns 1 if the port is up. The file reads "4: ACTIVE".
    fn active(&self) -> Option<f64> {
        let state = text(&self.folder.join("state"));
        let (_, word) = state.split_once(':')?;
        Some(f64::from(u8::from(word.trim() == "ACTIVE")))
    }

    /// Returns the rate of the link. The file reads "400 Gb/sec (4X NDR)".
    fn rate(&self) -> Option<f64> {
        let rate = text(&self.folder.join("rate"));
        let gigabits: f64 = rate.split_whitespace().next()?.parse().ok()?;
        Some(gigabits * 1e9)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn counters_of_each_port_are_read() {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = root.path().join("sys/class/infiniband/mlx5_0/ports/1").join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("state", "4: ACTIVE\n");
        write("rate", "400 Gb/sec (4X NDR)\n");
        write("counters/port_xmit_data", "250\n");
        write("counters/symbol_error", "3\n");
        write("hw_counters/out_of_sequence", "9\n");
        let ports = Port::all(root.path());
        assert_eq!(ports.len(), 1);
        assert_eq!(ports[0].name, "mlx5_0/1");
        let known: Vec<_> = QUANTITIES
            .iter()
            .filter_map(|it| Some((it.desc.key(), (it.read)(&ports[0])?)))
            .collect();
        let expected = [
            ("active", 1.0),
            ("rate_bits_per_second", 4e11),
            ("bytes.transmit", 1000.0),
            ("errors.symbol_error", 3.0),
            ("errors.out_of_sequence", 9.0),
        ];
        assert_eq!(known, expected.map(|(key, value)| (key.to_owned(), value)));
        assert_eq!(Port::all(Path::new("/nowhere")), []);
    }
}
