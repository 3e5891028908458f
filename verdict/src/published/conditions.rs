//! Conditions of a run beside those of a published row: they may differ between comparable runs.

use std::collections::BTreeSet;

use record::Record;
use record::hardware::HardwareSummary;
use record::text::number_format::thousands;
use serde::Serialize;

use super::rows::{Published, Row};

/// A condition of both figures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Condition {
    /// Name of the condition.
    pub name: &'static str,
    /// Value of the published figure; `null` if the source does not state it.
    pub published: Option<String>,
    /// Value of this run; `null` if its record does not have it.
    pub run: Option<String>,
    /// True unless both are known and equal.
    pub differs: bool,
}

impl Condition {
    fn new(name: &'static str, published: Option<String>, run: Option<String>) -> Self {
        let differs = published.is_none() || published != run;
        Self { name, published, run, differs }
    }
}

/// Lists device, precision, sequence length, number of devices and power limit.
pub(super) fn conditions(record: &Record, published: &Published, row: &Row) -> Vec<Condition> {
    let config = &record.workload.config;
    let precision = config["precision"]["compute"].as_str();
    let sequence_tokens = config["batch"]["sequence_tokens"].as_u64();
    let device = record.ranks.first().and_then(|rank| rank.device.as_ref());
    let number = |value: u64| thousands(value as f64);
    let watts = |watts: f64| format!("{watts:.0} W");
    let mut all = vec![
        Condition::new(
            "device",
            Some(published.driver_name.clone()),
            device.map(|device| device.name.clone()),
        ),
        Condition::new("precision", Some(row.precision.clone()), precision.map(str::to_owned)),
        Condition::new(
            "tokens of a sequence",
            row.sequence_tokens.map(number),
            sequence_tokens.map(number),
        ),
        Condition::new("devices", row.devices.map(number), Some(number(devices(record) as u64))),
    ];
    let cap = power_cap_watts(record);
    if row.power_watts.is_some() || cap.is_some() {
        all.push(Condition::new("power limit", row.power_watts.map(watts), cap.map(watts)));
    }
    all
}

/// Number of GPUs: several ranks may share one.
pub(super) fn devices(record: &Record) -> usize {
    let gpus = record.ranks.iter().filter_map(|rank| {
        let device = rank.device.as_ref()?;
        Some((&rank.host, &device.pci_bus_id))
    });
    gpus.collect::<BTreeSet<_>>().len()
}

/// Lowest power limit below a GPU's default, in watts.
fn power_cap_watts(record: &Record) -> Option<f64> {
    let gpus = record.ranks.iter().filter_map(|rank| rank.gpu.as_ref());
    let caps = gpus.filter_map(HardwareSummary::power_cap).map(|cap| cap.watts);
    caps.reduce(f64::min)
}
