//! Anomalies of the hardware during an attempt, for readers of the record.

use std::collections::BTreeMap;

use record::hardware::{HardwareSummary, RankHardware};
use record::text::list;
use record::{Anomaly, RankRecord};

/// Smallest share of stolen processor time that slows a run down.
const STEAL_LEAST: f64 = 0.05;

/// Counters of a host that should not grow, and the meaning of growth.
const HOST_COUNTERS: [(&str, &str); 3] = [
    ("cgroup_oom_kills", "processes killed for memory"),
    ("network_errors.receive_errors", "network packets received with errors"),
    ("network_errors.transmit_errors", "network packets sent with errors"),
];

/// Counters of an RDMA port that should not grow.
const PORT_COUNTERS: [(&str, &str); 6] = [
    ("errors.symbol_error", "RDMA ports with symbol_error"),
    ("errors.link_downed", "RDMA ports with link_downed"),
    ("errors.link_error_recovery", "RDMA ports with link_error_recovery"),
    ("errors.port_rcv_errors", "RDMA ports with port_rcv_errors"),
    ("errors.local_link_integrity_errors", "RDMA ports with local_link_integrity_errors"),
    ("errors.local_ack_timeout_err", "RDMA ports with local_ack_timeout_err"),
];

/// Counters of a GPU that should not grow. XID and uncorrected ECC errors are reported when they
/// occur.
const GPU_COUNTERS: [(&str, &str); 4] = [
    ("pcie_replays", "packets sent again over PCIe"),
    ("nvlink_errors.crc", "CRC errors of NVLinks"),
    ("nvlink_errors.replay", "replays of NVLinks"),
    ("nvlink_errors.recovery", "recoveries of NVLinks"),
];

/// Something unusual, at one place.
struct Unusual {
    /// Description, equal at all places.
    what: String,
    /// Place and amount.
    place: String,
    rank: Option<usize>,
}

/// Returns one anomaly for each kind of unusual event, with its places. `all` holds the readings of
/// the ranks, in order.
pub fn hardware_anomalies(all: &[RankHardware], ranks: &[RankRecord]) -> Vec<Anomaly> {
    let mut by_kind: BTreeMap<String, Vec<Unusual>> = BTreeMap::new();
    for (hardware, rank) in all.iter().zip(ranks) {
        for unusual in of_rank(hardware, rank, ranks) {
            by_kind.entry(unusual.what.clone()).or_default().push(unusual);
        }
    }
    let anomaly = |(what, places): (String, Vec<Unusual>)| {
        let rank = places[0].rank.filter(|_| places.len() == 1);
        let places: Vec<String> = places.into_iter().map(|unusual| unusual.place).collect();
        Anomaly { step: None, rank, text: format!("{what}: {}", list(&places)) }
    };
    by_kind.into_iter().map(anomaly).collect()
}

fn of_rank(hardware: &RankHardware, rank: &RankRecord, ranks: &[RankRecord]) -> Vec<Unusual> {
    let host = &rank.host;
    let on_rank = |(what, amount): (String, String)| {
        let place = format!("{} {amount}", rank.location(ranks));
        Unusual { what, place: place.trim_end().to_owned(), rank: Some(rank.rank) }
    };
    let on_host = |(what, amount): (String, String)| {
        let place = format!("{host} {amount}");
        Unusual { what, place: place.trim_end().to_owned(), rank: None }
    };
    let mut unusual = Vec::new();
    if rank.device.is_some() {
        unusual.extend(
            hardware.gpu_missing.iter().map(|why| missing("ranks[].gpu", why)).map(on_rank),
        );
    }
    unusual.extend(hardware.gpu.iter().flat_map(of_gpu).map(on_rank));
    let energy = hardware.energy_missing.iter();
    unusual.extend(energy.map(|why| missing("energy.cpu_joules", why)).map(on_host));
    unusual.extend(hardware.host.iter().flat_map(of_host).map(on_host));
    for port in &hardware.ports {
        let of_port = grown(&port.summary, &PORT_COUNTERS);
        unusual.extend(of_port.map(|(what, amount)| Unusual {
            what,
            place: format!("{host} {} {amount}", port.port),
            rank: None,
        }));
    }
    unusual
}

/// Description and amount of something unusual.
type Amount = (String, String);

fn missing(what: &str, why: &str) -> Amount {
    (format!("{what} is null, {why}"), String::new())
}

fn of_gpu(gpu: &HardwareSummary) -> Vec<Amount> {
    let held_down = gpu.held_down().unwrap_or_default().into_iter().map(|reason| {
        let percent = gpu.gauges[&format!("throttled.{reason}")].mean * 100.0;
        (
            format!("clocks of GPUs were held down, {reason}"),
            format!("in {percent:.0} % of the time"),
        )
    });
    held_down.chain(grown(gpu, &GPU_COUNTERS)).collect()
}

fn of_host(host: &HardwareSummary) -> Vec<Amount> {
    let steal = host.gauges.get("cpu_ratio.steal").map_or(0.0, |steal| steal.mean);
    let steal = (steal >= STEAL_LEAST).then(|| {
        let what = "the hypervisor gave processors' time to others (steal)".to_owned();
        (what, format!("{:.0} %", steal * 100.0))
    });
    steal.into_iter().chain(grown(host, &HOST_COUNTERS)).collect()
}

/// Returns the counters that have grown.
fn grown<'a>(
    summary: &'a HardwareSummary,
    counters: &'a [(&'a str, &'a str)],
) -> impl Iterator<Item = Amount> + 'a {
    counters.iter().filter_map(|(key, what)| {
        let total = summary.grown(key).filter(|total| *total > 0.0)?;
        Some(((*what).to_owned(), format!("{total:.0}")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use record::fixtures::finished;
    use record::hardware::{Increase, PortSummary, Spread};

    fn with(gauges: &[(&str, f64)], counters: &[(&str, f64)]) -> HardwareSummary {
        let spread = |mean: f64| Spread { mean, min: 0.0, max: 1.0 };
        let increase = |total: f64| Increase { total, per_second: 0.0 };
        HardwareSummary {
            gauges: gauges.iter().map(|(key, mean)| ((*key).to_owned(), spread(*mean))).collect(),
            counters: counters.iter().map(|(key, n)| ((*key).to_owned(), increase(*n))).collect(),
            ..HardwareSummary::default()
        }
    }

    #[test]
    fn what_is_unusual_is_told_with_its_place() {
        let gauges = [("throttled.hw_thermal_slowdown", 0.4), ("throttled.sw_power_cap", 1.0)];
        let port = with(&[], &[("errors.symbol_error", 7.0), ("errors.link_downed", 0.0)]);
        let hot = RankHardware {
            gpu: Some(with(&gauges, &[("pcie_replays", 3.0)])),
            host: Some(with(&[("cpu_ratio.steal", 0.12)], &[("cgroup_oom_kills", 0.0)])),
            ports: vec![PortSummary { port: "mlx5_0/1".to_owned(), summary: port }],
            energy_missing: Some("energy_uj cannot be read".to_owned()),
            ..RankHardware::default()
        };
        let warm = RankHardware {
            gpu: Some(with(&[("throttled.hw_thermal_slowdown", 0.02)], &[("pcie_replays", 0.0)])),
            ..RankHardware::default()
        };
        let found = hardware_anomalies(&[warm, hot], &finished().ranks);
        let texts: Vec<_> = found.iter().map(|anomaly| anomaly.text.as_str()).collect();
        let [first, second] = ["rank 0 (node-a, local rank 0)", "rank 1 (node-b, local rank 0)"];
        let expected = [
            "RDMA ports with symbol_error: node-b mlx5_0/1 7",
            &format!(
                "clocks of GPUs were held down, hw_thermal_slowdown: {first} in 2 % of the time, \
                 {second} in 40 % of the time"
            ),
            "energy.cpu_joules is null, energy_uj cannot be read: node-b",
            &format!("packets sent again over PCIe: {second} 3"),
            "the hypervisor gave processors' time to others (steal): node-b 12 %",
        ];
        assert_eq!(texts, expected);
        let ranks: Vec<_> = found.iter().map(|anomaly| anomaly.rank).collect();
        assert_eq!(ranks, [None, None, None, Some(1), None]);
    }
}
