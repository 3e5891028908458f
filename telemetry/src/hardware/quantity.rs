//! A quantity of the hardware: what it is called, what it means, and how it is read.

use serde::{Deserialize, Serialize};

use super::{gpu, host, port};

/// How a quantity changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It goes up and down.
    Gauge,
    /// It only grows, by whole numbers, until the machine or its driver starts again.
    Counter,
}

/// What tells quantities of one name apart, as in `reason="hw_thermal_slowdown"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label {
    pub name: &'static str,
    pub value: &'static str,
}

/// What a quantity is.
#[derive(Debug, Clone, Copy)]
pub struct About {
    /// As in `power_watts`.
    pub name: &'static str,
    /// Distinguishes quantities of one name.
    pub label: Option<Label>,
    /// Gauge or counter.
    pub kind: Kind,
    /// What it means, as a sentence.
    pub help: &'static str,
    /// Whether the record has its course over time, for a chart.
    pub is_charted: bool,
}

/// A quantity, and how it is read from what knows it.
pub(crate) struct Quantity<T> {
    pub(crate) about: About,
    /// `None` where it is not known.
    pub(crate) read: fn(&T) -> Option<f64>,
}

impl About {
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
        Quantity { about: self, read }
    }

    /// The name in the record, as in `throttled.hw_thermal_slowdown`.
    pub fn key(&self) -> String {
        match self.label {
            None => self.name.to_owned(),
            Some(Label { value, .. }) => format!("{}.{value}", self.name),
        }
    }
}

/// What is read.
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
    /// One of each kind.
    pub const KINDS: [Self; 3] = [Self::Gpu, Self::Host, Self::Port(String::new())];

    /// What its readings are of, in their order.
    pub fn quantities(&self) -> Vec<&'static About> {
        match self {
            Self::Gpu => gpu::QUANTITIES.iter().map(|quantity| &quantity.about).collect(),
            Self::Host => host::QUANTITIES.iter().map(|quantity| &quantity.about).collect(),
            Self::Port(_) => port::QUANTITIES.iter().map(|quantity| &quantity.about).collect(),
        }
    }

    /// What names of its metrics begin with.
    pub fn prefix(&self) -> &'static str {
        match self {
            Self::Gpu => "yardstick_gpu",
            Self::Host => "yardstick_host",
            Self::Port(_) => "yardstick_rdma",
        }
    }
}

/// What a source said at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Readings {
    /// The hardware that was read.
    pub source: Source,
    /// Seconds since the rank began to read, by a monotonic clock.
    pub seconds: f64,
    /// One of each quantity of the source, in their order; `None` where it is not known.
    pub values: Vec<Option<f64>>,
}
