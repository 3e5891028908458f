//! Cost of training: energy, and money if a price is known.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::hardware::{HardwareSummary, RankHardware};
use crate::sections::RankRecord;

/// The energy of an attempt from its first step to its end, saves and evaluations included.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Energy {
    /// Energy of the GPUs of all ranks (NVML); `null` unless all of them report it.
    pub gpu_joules: Option<f64>,
    /// GPU energy per token of the attempt.
    pub gpu_joules_per_token: Option<f64>,
    /// Energy of the processor packages of all nodes (RAPL), including everything else that runs on
    /// them; `null` unless all of them report it.
    pub cpu_joules: Option<f64>,
    /// Processor energy per token of the attempt.
    pub cpu_joules_per_token: Option<f64>,
}

/// Cost of the run at a configured price.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Cost {
    /// Price from `telemetry.price_per_node_hour`, in any currency.
    pub price_per_node_hour: f64,
    /// Number of machines; number of pods if the attempt failed.
    pub nodes: usize,
    /// Cost of a billion tokens at the measured rate, saves and evaluations included.
    pub per_billion_tokens: f64,
}

impl Energy {
    /// Sums the energy that all ranks have read, over `tokens` of the attempt; `None` if no total
    /// is known. GPUs and machines that ranks share are counted once.
    pub fn of(all: &[RankHardware], ranks: &[RankRecord], tokens: u64) -> Option<Self> {
        let energy = |summary: &Option<HardwareSummary>, name: &str| {
            Some(summary.as_ref()?.counters.get(name)?.total)
        };
        let mut gpus = BTreeMap::new();
        let mut machines = BTreeMap::new();
        for (hardware, rank) in all.iter().zip(ranks) {
            let address = rank.device.as_ref().map(|device| device.pci_bus_id.as_str());
            let of_gpu = energy(&hardware.gpu, "energy_joules");
            gpus.entry((hardware.machine.as_str(), address)).or_insert(of_gpu);
            if hardware.host.is_some() {
                let of_host = energy(&hardware.host, "cpu_energy_joules");
                machines.entry(hardware.machine.as_str()).or_insert(of_host);
            }
        }
        let sum = |values: Vec<Option<f64>>| -> Option<f64> {
            if values.is_empty() { None } else { values.into_iter().sum() }
        };
        let gpu_joules = sum(gpus.into_values().collect());
        let cpu_joules = sum(machines.into_values().collect());
        let per_token = |joules: f64| (tokens > 0).then(|| joules / tokens as f64);
        gpu_joules.or(cpu_joules)?;
        Some(Self {
            gpu_joules,
            gpu_joules_per_token: gpu_joules.and_then(per_token),
            cpu_joules,
            cpu_joules_per_token: cpu_joules.and_then(per_token),
        })
    }
}

/// Number of machines, which ranks in several pods may share.
pub fn machines(all: &[RankHardware]) -> usize {
    all.iter().map(|hardware| hardware.machine.as_str()).collect::<BTreeSet<_>>().len()
}

impl Cost {
    /// Computes the cost from a price and a rate in tokens per second.
    pub fn of(price_per_node_hour: f64, nodes: usize, tokens_per_second: f64) -> Self {
        let per_second = price_per_node_hour * nodes as f64 / 3600.0;
        let per_billion_tokens = per_second / tokens_per_second * 1e9;
        Self { price_per_node_hour, nodes, per_billion_tokens }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::finished;
    use crate::hardware::Increase;

    fn summary(name: &str, joules: f64) -> Option<HardwareSummary> {
        let mut summary = HardwareSummary::default();
        let increase = Increase { total: joules, per_second: 1.0 };
        summary.counters.insert(name.to_owned(), increase);
        Some(summary)
    }

    #[test]
    fn energy_is_that_of_all_or_unknown_and_of_each_gpu_once() {
        let gpu = |machine: &str, joules| RankHardware {
            gpu: summary("energy_joules", joules),
            machine: machine.to_owned(),
            ..RankHardware::default()
        };
        let ranks = finished().ranks; // two, without addresses of GPUs
        let mut first = gpu("a", 3000.0);
        first.host = summary("cpu_energy_joules", 500.0);
        let of = |all: [RankHardware; 2]| Energy::of(&all, &ranks, 2000);
        let energy = of([first.clone(), gpu("b", 1000.0)]).unwrap();
        assert_eq!((energy.gpu_joules, energy.gpu_joules_per_token), (Some(4000.0), Some(2.0)));
        assert_eq!((energy.cpu_joules, energy.cpu_joules_per_token), (Some(500.0), Some(0.25)));
        let mut second = gpu("a", 3000.0);
        second.host = summary("cpu_energy_joules", 500.0);
        let shared = of([first.clone(), second]).unwrap();
        assert_eq!((shared.gpu_joules, shared.cpu_joules), (Some(3000.0), Some(500.0)));
        let without = RankHardware { machine: "b".to_owned(), ..RankHardware::default() };
        let partly = of([first, without.clone()]).unwrap();
        assert_eq!((partly.gpu_joules, partly.cpu_joules), (None, Some(500.0)));
        assert_eq!(of([without.clone(), without]), None);
    }

    /// 8 nodes at 36 an hour cost 0.08 a second; a billion tokens at 400,000 a second take 2500 s.
    #[test]
    fn cost_is_price_over_rate() {
        let cost = Cost::of(36.0, 8, 400_000.0);
        assert!((cost.per_billion_tokens - 200.0).abs() < 1e-9, "{cost:?}");
    }
}
