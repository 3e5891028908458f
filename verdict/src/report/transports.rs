//! The line about transports: the number of rank pairs of each, and of those with GPUDirect RDMA.

use std::collections::BTreeMap;

use record::text::number_format;
use record::{Record, Transport};

/// Formats the line; `null` if NCCL was used and its choice is unknown, `None` if it was not used.
pub(super) fn transports(record: &Record) -> Option<String> {
    let Some(transports) = &record.transports else {
        let collectives = record.collectives.as_ref()?;
        return (collectives.backend == "nccl").then(|| "null".to_owned());
    };
    let mut names: BTreeMap<&str, Vec<&Transport>> = BTreeMap::new();
    for transport in transports {
        names.entry(&transport.name).or_default().push(transport);
    }
    let texts: Vec<_> = names.iter().map(|(name, pairs)| of_name(name, pairs)).collect();
    Some(texts.join("; "))
}

fn of_name(name: &str, pairs: &[&Transport]) -> String {
    let is_switch = pairs.iter().all(|pair| pair.to.is_none());
    let count = number_format::count(pairs.len(), if is_switch { "rank" } else { "pair" });
    if !pairs.iter().any(|pair| pair.is_network()) {
        return format!("{name} in {count}");
    }
    let with = pairs.iter().filter(|pair| pair.has_gdr()).count();
    let gdr = match pairs.len() - with {
        0 => "with GPUDirect RDMA in both directions".to_owned(),
        without if with == 0 => {
            let all = if without == 1 { "" } else { "all " };
            format!("{all}without GPUDirect RDMA in at least one direction")
        }
        without => {
            format!("{without} of them without GPUDirect RDMA in at least one direction")
        }
    };
    format!("{name} in {count}, {gdr}")
}

#[cfg(test)]
mod tests {
    use record::network::NetworkEnd;

    use super::*;
    use record::fixtures::finished;

    fn pair(name: &str, gdr: Option<[bool; 2]>) -> Transport {
        let end = |gdr| NetworkEnd { nics: Vec::new(), gdr };
        let [send, receive] = gdr.map_or([None, None], |gdr| gdr.map(|gdr| Some(end(gdr))));
        let to = (name != "NVLS").then_some(1);
        Transport { from: 0, to, name: name.to_owned(), channels: 2, send, receive }
    }

    #[test]
    fn pairs_are_counted_by_transport_and_gdr() {
        let mut record = finished();
        assert_eq!(transports(&record), None, "not NCCL");
        record.collectives.as_mut().unwrap().backend = "nccl".to_owned();
        assert_eq!(transports(&record).unwrap(), "null");
        let mut text = |pairs: &[(&str, Option<[bool; 2]>)]| {
            let pairs = pairs.iter().map(|(name, gdr)| pair(name, *gdr));
            record.transports = Some(pairs.collect());
            transports(&record).unwrap()
        };
        let full = ("NET/IB", Some([true, true]));
        let half = ("NET/IB", Some([true, false]));
        let local = ("P2P/IPC", None);
        assert_eq!(text(&[local]), "P2P/IPC in 1 pair");
        assert_eq!(text(&[("NVLS", None); 2]), "NVLS in 2 ranks");
        assert_eq!(
            text(&[local, full, full, local]),
            "NET/IB in 2 pairs, with GPUDirect RDMA in both directions; P2P/IPC in 2 pairs"
        );
        let some = "NET/IB in 3 pairs, 1 of them without GPUDirect RDMA in at least one direction";
        assert_eq!(text(&[full, half, full]), some);
        let none = "NET/IB in 2 pairs, all without GPUDirect RDMA in at least one direction";
        assert_eq!(text(&[half, half]), none);
    }
}
