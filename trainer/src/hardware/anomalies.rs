//! What the hardware of an attempt says that a reader of the record should know.

use super::summary::{HardwareSummary, RankHardware};
use crate::record::{Anomaly, RankRecord, list};

/// A share of stolen processor time that slows a run down.
const STEAL_LEAST: f64 = 0.05;

/// Counters of a host that should not grow, and what it means.
const HOST_COUNTERS: [(&str, &str); 3] = [
    ("cgroup_oom_kills", "processes killed for memory"),
    ("network_errors.receive_errors", "network packets received with errors"),
    ("network_errors.transmit_errors", "network packets sent with errors"),
];

/// Counters of an RDMA port that should not grow.
const PORT_COUNTERS: [&str; 6] = [
    "errors.symbol_error",
    "errors.link_downed",
    "errors.link_error_recovery",
    "errors.port_rcv_errors",
    "errors.local_link_integrity_errors",
    "errors.local_ack_timeout_err",
];

/// Counters of a GPU that should not grow. XID and uncorrected ECC errors are told when they
/// happen.
const GPU_COUNTERS: [(&str, &str); 4] = [
    ("pcie_replays", "packets sent again over PCIe"),
    ("nvlink_errors.crc", "CRC errors of NVLinks"),
    ("nvlink_errors.replay", "replays of NVLinks"),
    ("nvlink_errors.recovery", "recoveries of NVLinks"),
];

/// One anomaly for each thing that is unusual on a rank or a host. What all ranks have read is in
/// the order of ranks.
pub(crate) fn hardware_anomalies(all: &[RankHardware], ranks: &[RankRecord]) -> Vec<Anomaly> {
    let mut anomalies: Vec<Anomaly> = missing(all, ranks).into_iter().collect();
    for (hardware, rank) in all.iter().zip(ranks) {
        let at = |rank: Option<usize>, text: String| Anomaly { step: None, rank, text };
        let place = rank.location(ranks);
        for text in hardware.gpu.iter().flat_map(of_gpu) {
            anomalies.push(at(Some(rank.rank), format!("{place}: {text}")));
        }
        let host = &rank.host;
        for text in hardware.host.iter().flat_map(of_host) {
            anomalies.push(at(None, format!("host {host}: {text}")));
        }
        for port in &hardware.ports {
            for text in of_port(&port.summary) {
                anomalies.push(at(None, format!("host {host}, port {}: {text}", port.port)));
            }
        }
    }
    anomalies
}

/// Ranks whose GPU could not be read.
fn missing(all: &[RankHardware], ranks: &[RankRecord]) -> Option<Anomaly> {
    let is_missing = |(it, rank): &(&RankHardware, &RankRecord)| {
        rank.device.is_some() && it.gpu_missing.is_some()
    };
    let without: Vec<_> = all.iter().zip(ranks).filter(is_missing).collect();
    let why = without.first()?.0.gpu_missing.as_deref()?;
    let numbers: Vec<_> = without.iter().map(|(_, rank)| rank.rank.to_string()).collect();
    let noun = if numbers.len() == 1 { "rank" } else { "ranks" };
    let text = format!("ranks[].gpu is null on {noun} {}: {why}", list(&numbers));
    Some(Anomaly { step: None, rank: None, text })
}

fn of_gpu(gpu: &HardwareSummary) -> Vec<String> {
    let held_down = gpu.held_down().into_iter().map(|reason| {
        let percent = gpu.gauges[&format!("throttled.{reason}")].mean * 100.0;
        format!("clocks of the GPU were held down in {percent:.0} % of the time: {reason}")
    });
    held_down.chain(grown(gpu, &GPU_COUNTERS)).collect()
}

fn of_host(host: &HardwareSummary) -> Vec<String> {
    let steal = host.gauges.get("cpu_ratio.steal").map_or(0.0, |steal| steal.mean);
    let steal = (steal >= STEAL_LEAST).then(|| {
        let percent = steal * 100.0;
        format!("the hypervisor gave {percent:.0} % of the processors' time to others (steal)")
    });
    steal.into_iter().chain(grown(host, &HOST_COUNTERS)).collect()
}

fn of_port(port: &HardwareSummary) -> Vec<String> {
    let counters = PORT_COUNTERS.map(|key| (key, key.trim_start_matches("errors.")));
    grown(port, &counters).collect()
}

/// The counters that have grown, in words.
fn grown<'a>(
    summary: &'a HardwareSummary,
    counters: &'a [(&'a str, &'a str)],
) -> impl Iterator<Item = String> + 'a {
    counters.iter().filter_map(|(key, what)| {
        let total = summary.grown(key);
        (total > 0.0).then(|| format!("{what}: {total:.0}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::{Increase, PortSummary, Spread};
    use crate::record::tests::finished;

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
            gpu_missing: None,
        };
        let calm = RankHardware {
            gpu: Some(with(&[("throttled.sw_power_cap", 1.0)], &[("pcie_replays", 0.0)])),
            ..RankHardware::default()
        };
        let found = hardware_anomalies(&[calm, hot], &finished().ranks);
        let texts: Vec<_> = found.iter().map(|anomaly| anomaly.text.as_str()).collect();
        let place = "rank 1 (node-b, local rank 0)";
        let expected = [
            &format!(
                "{place}: clocks of the GPU were held down in 40 % of the time: \
                 hw_thermal_slowdown"
            ),
            &format!("{place}: packets sent again over PCIe: 3"),
            "host node-b: the hypervisor gave 12 % of the processors' time to others (steal)",
            "host node-b, port mlx5_0/1: symbol_error: 7",
        ];
        assert_eq!(texts, expected);
    }
}
