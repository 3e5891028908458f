//! Quantities of the hardware: name, meaning, and way of reading.

use serde::{Deserialize, Serialize};

use super::{gpu, host, port};

/// Behaviour of a quantity over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Goes up and down.
    Gauge,
    /// Only grows, by whole numbers, until the machine or its driver restarts.
    Counter,
}

/// Label that distinguishes quantities of one name, as in `reason="hw_thermal_slowdown"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label {
    pub name: &'static str,
    pub value: &'static str,
}

/// Description of a quantity.
#[derive(Debug, Clone, Copy)]
pub struct MetricDesc {
    /// Name, as in `power_watts`.
    pub name: &'static str,
    /// Label that distinguishes quantities of one name.
    pub label: Option<Label>,
    /// Gauge or counter.
    pub kind: Kind,
    /// Meaning, as a sentence.
    pub help: &'static str,
    /// True if the record has its values over time, for a chart.
    pub is_charted: bool,
}

/// A quantity, and how it is read from its source.
pub(crate) struct Quantity<T> {
    pub(crate) desc: MetricDesc,
    /// Reads the value; `None` if unknown.
    pub(crate) read: fn(&T) -> Option<f64>,
}

impl MetricDesc {
    pub(crate) const fn gauge(name: &'static str, help: &'static str) -> Self {
        Self { name, label: None, kind: Kind::Gauge, help, is_charted: false }
    }

    pub(crate) const fn counter(name: &'static str, help: &'static str) -> Self {
        Self { kind: Kind::Counter, ..Self::gauge(name, help) }
    }

    pub(crate) const fn of(self, name: &'static str, value: &'static str) -> Self {
        Self { label: Some(Label { name, value }), ..self }
    }

    pub(crate) const fn charted(self) -> Self {
        Self { is_charted: true, ..self }
    }

    pub(crate) const fn read<T>(self, read: fn(&T) -> Option<f64>) -> Quantity<T> {
        Quantity { desc: self, read }
    }

    /// Name in the record, as in `throttled.hw_thermal_slowdown`.
    pub fn key(&self) -> String {
        match self.label {
            None => self.name.to_owned(),
            Some(Label { value, .. }) => format!("{}.{value}", self.name),
        }
    }
}

/// Source of readings.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Source {
    /// The GPU of a rank.
    Gpu,
    /// A node.
    Host,
    /// A port of an RDMA adapter, as in `mlx5_0/1`.
    Port(String),
}

impl Source {
    /// One source of each kind.
    pub const KINDS: [Self; 3] = [Self::Gpu, Self::Host, Self::Port(String::new())];

    /// Quantities of its readings, in their order.
    pub fn quantities(&self) -> Vec<&'static MetricDesc> {
        match self {
            Self::Gpu => gpu::QUANTITIES.iter().map(|quantity| &quantity.desc).collect(),
            Self::Host => host::QUANTITIES.iter().map(|quantity| &quantity.desc).collect(),
            Self::Port(_) => port::QUANTITIES.iter().map(|quantity| &quantity.desc).collect(),
        }
    }

    /// Prefix of the names of its metrics.
    pub fn prefix(&self) -> &'static str {
        match self {
            Self::Gpu => "yardstick_gpu",
            Self::Host => "yardstick_host",
            Self::Port(_) => "yardstick_rdma",
        }
    }
}

/// Readings of a source at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Readings {
    /// The hardware that was read.
    pub source: Source,
    /// Seconds since the rank began to sample, by a monotonic clock.
    pub seconds: f64,
    /// Value of each quantity of the source, in their order; `None` if it is unknown.
    pub values: Vec<Option<f64>>,
}
