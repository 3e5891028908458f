//! Summaries of the hardware during an attempt.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A piece of hardware during an attempt, from its first step to its end. Quantities that it does
/// not report are left out.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct HardwareSummary {
    /// Number of readings.
    pub readings: u64,
    /// Time from the first reading to the last.
    pub seconds: f64,
    /// Quantities that go up and down, by name.
    pub gauges: BTreeMap<String, Spread>,
    /// Quantities that only grow, by name.
    pub counters: BTreeMap<String, Increase>,
    /// Values of some quantities over time; `null` in large jobs.
    pub series: Option<Series>,
}

/// NVML throttle reasons that do not occur on a healthy machine under load. A power cap does: large
/// matrix products draw as much power as they may.
const ALARMING: [&str; 4] =
    ["hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake"];

/// Returns whether throttling for the reason of this name is a fault.
pub fn is_alarming(reason: &str) -> bool {
    ALARMING.contains(&reason)
}

/// Smallest share of the time for which throttling counts.
const HELD_DOWN_LEAST: f64 = 0.01;

impl HardwareSummary {
    /// Returns the reasons for which a GPU was throttled and should not have been; `None` if
    /// unknown.
    pub fn held_down(&self) -> Option<Vec<&str>> {
        let is_known = self.gauges.keys().any(|key| key.starts_with("throttled."));
        is_known.then(|| self.alarming_reasons())
    }

    fn alarming_reasons(&self) -> Vec<&str> {
        let reasons = self.gauges.iter().filter(|(_, spread)| spread.mean >= HELD_DOWN_LEAST);
        let reasons = reasons.filter_map(|(key, _)| key.strip_prefix("throttled."));
        reasons.filter(|reason| is_alarming(reason)).collect()
    }

    /// Returns the cap on a GPU's power; `None` if there is none, or it is unknown.
    pub fn power_cap(&self) -> Option<PowerCap> {
        let limit = |name: &str| Some(self.gauges.get(name)?.min);
        let watts = limit("power_limit_watts")?;
        let default_watts = limit("power_limit_default_watts")?;
        (watts < default_watts).then_some(PowerCap { watts, default_watts })
    }

    /// Returns the growth of a counter.
    pub fn grown(&self, name: &str) -> Option<f64> {
        Some(self.counters.get(name)?.total)
    }
}

/// Power limit of a GPU below its default.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PowerCap {
    /// Lowest limit that was in force.
    pub watts: f64,
    /// Default limit, which published peaks assume.
    pub default_watts: f64,
}

impl fmt::Display for PowerCap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { watts, default_watts } = self;
        write!(f, "power capped at {watts:.0} W of {default_watts:.0} W")
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

/// Growth of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Increase {
    /// Growth from the first reading to the last.
    pub total: f64,
    /// Growth per second.
    pub per_second: f64,
}

/// Values over time, at some of the readings.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Series {
    /// Seconds since the first reading.
    pub seconds: Vec<f64>,
    /// Values by name: a gauge, or the growth of a counter per second since the previous entry.
    pub values: BTreeMap<String, Vec<Option<f64>>>,
}

/// A port of an RDMA adapter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PortSummary {
    /// Name of the port, as in `mlx5_0/1`.
    pub port: String,
    /// Summary of the port's readings.
    #[serde(flatten)]
    pub summary: HardwareSummary,
}

/// Hardware summaries of one rank.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct RankHardware {
    /// Summary of its GPU.
    pub gpu: Option<HardwareSummary>,
    /// Reason why its GPU could not be read.
    pub gpu_missing: Option<String>,
    /// Id of the machine, which ranks in several pods may share.
    pub machine: String,
    /// Reason why the energy of its host is unknown although the host counts it.
    pub energy_missing: Option<String>,
    /// Summary of the host, on the first rank of a node.
    pub host: Option<HardwareSummary>,
    /// Ports of RDMA adapters, on the first rank of a node.
    pub ports: Vec<PortSummary>,
}
