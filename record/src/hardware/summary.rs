//! Summaries of what the hardware did during an attempt.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A piece of hardware during an attempt, from its first step to its end. Quantities that it does
/// not tell are left out.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct HardwareSummary {
    /// How often it was read.
    pub readings: u64,
    /// From the first reading to the last.
    pub seconds: f64,
    /// What goes up and down, by name.
    pub gauges: BTreeMap<String, Spread>,
    /// What only grows, by name.
    pub counters: BTreeMap<String, Increase>,
    /// The course of some of it; `null` in large jobs.
    pub series: Option<Series>,
}

/// NVML's reasons for which clocks are held down that are not met in a healthy machine under load.
/// A power cap is: large matrix products draw as much as they may.
const ALARMING: [&str; 4] =
    ["hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake"];

/// Whether clocks should not be held down for the reason of this name.
pub fn is_alarming(reason: &str) -> bool {
    ALARMING.contains(&reason)
}

/// A share of the time in which clocks were held down that counts.
const HELD_DOWN_LEAST: f64 = 0.01;

impl HardwareSummary {
    /// Why the clocks of a GPU were held down that should not have been; `None` where that is not
    /// known.
    pub fn held_down(&self) -> Option<Vec<&str>> {
        let is_known = self.gauges.keys().any(|key| key.starts_with("throttled."));
        is_known.then(|| self.alarming_reasons())
    }

    fn alarming_reasons(&self) -> Vec<&str> {
        let reasons = self.gauges.iter().filter(|(_, spread)| spread.mean >= HELD_DOWN_LEAST);
        let reasons = reasons.filter_map(|(key, _)| key.strip_prefix("throttled."));
        reasons.filter(|reason| is_alarming(reason)).collect()
    }

    /// How much a counter grew.
    pub fn grown(&self, name: &str) -> Option<f64> {
        Some(self.counters.get(name)?.total)
    }
}

/// Values of a gauge over all readings.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs, reason = "as their names")]
pub struct Spread {
    pub mean: f64,
    pub min: f64,
    pub max: f64,
}

/// How much a counter grew.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Increase {
    /// From the first reading to the last.
    pub total: f64,
    /// The same per second.
    pub per_second: f64,
}

/// Values over time, at some of the readings.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Series {
    /// Since the first reading.
    pub seconds: Vec<f64>,
    /// By name: a gauge, or the growth of a counter per second since the entry before.
    pub values: BTreeMap<String, Vec<Option<f64>>>,
}

/// A port of an RDMA adapter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PortSummary {
    /// As in `mlx5_0/1`.
    pub port: String,
    /// What it did.
    #[serde(flatten)]
    pub summary: HardwareSummary,
}

/// What one rank has read.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct RankHardware {
    /// Its GPU.
    pub gpu: Option<HardwareSummary>,
    /// Why its GPU could not be read.
    pub gpu_missing: Option<String>,
    /// Id of the machine, which ranks in several pods may share.
    pub machine: String,
    /// Why the energy of its host is not known, although that counts it.
    pub energy_missing: Option<String>,
    /// Of the first rank of a node.
    pub host: Option<HardwareSummary>,
    /// Ports of RDMA adapters, of the first rank of a node.
    pub ports: Vec<PortSummary>,
}
