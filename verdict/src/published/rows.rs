//! Rows of published training throughput, from `published.toml`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::PREFIX;
use crate::error::{Error, Result};

/// The published rows.
const ROWS: &str = include_str!("published.toml");

/// Convention for the FLOPs of attention in a published figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Convention {
    /// Half of all pairs of a sequence.
    Causal,
    /// All pairs.
    Full,
    /// The source does not state it, and its figures do not show it.
    NotStated,
}

impl Convention {
    /// Name in text.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Causal => "attention causal",
            Self::Full => "attention full",
            Self::NotStated => "attention not stated",
        }
    }
}

/// One published throughput.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Short name of the device.
    pub device: String,
    /// Name of the model.
    pub model: String,
    /// Number format of the matrix products.
    pub precision: String,
    /// Tokens per second of one device.
    pub tokens_per_second: f64,
    /// Model TFLOP/s of one device, in the row's convention; `None` if not published.
    pub teraflops: Option<f64>,
    /// Share of the device's published peak, in the row's convention; `None` if not published.
    pub mfu: Option<f64>,
    /// Convention of the two figures above.
    pub convention: Convention,
    /// Tokens of a sequence, if known.
    pub sequence_tokens: Option<u64>,
    /// Number of devices, if known.
    pub devices: Option<u64>,
    /// Power limit of a device, if the source states one.
    pub power_watts: Option<f64>,
    /// Publisher and place of the figure.
    pub source: String,
    /// Version or date of the source.
    pub version: String,
    /// Inferred figures, and other remarks.
    pub note: Option<String>,
}

impl Row {
    /// Key of the row: device, model and precision. Several sources may have one key.
    pub fn key(&self) -> String {
        format!("{}/{}/{}", self.device, self.model, self.precision)
    }
}

/// Values of `[model]` in a workload's configuration that make it the published model.
pub type Shape = Map<String, Value>;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Device {
    name: String,
    driver_name: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Model {
    name: String,
    shape: Shape,
}

/// All published rows.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    device: Vec<Device>,
    model: Vec<Model>,
    row: Vec<Row>,
}

/// Published throughput of one kind of work: a model in a precision on a device.
#[derive(Debug, Clone, PartialEq)]
pub struct Published {
    /// Name on the command line, without the prefix.
    pub key: String,
    /// Name of the device that its driver reports.
    pub driver_name: String,
    /// Number format of the matrix products.
    pub precision: String,
    /// Dimensions of the model.
    pub shape: Shape,
    /// Figures of all sources, at least one.
    pub rows: Vec<Row>,
}

impl Published {
    /// Lists all published work, in the order of the file.
    ///
    /// # Panics
    /// Never: a test has read the file.
    pub fn all() -> Vec<Self> {
        let Table { device, model, row } = toml::from_str(ROWS).expect("a test has read it");
        let mut all: Vec<Self> = Vec::new();
        for row in row {
            let key = row.key();
            if let Some(known) = all.iter_mut().find(|known| known.key == key) {
                known.rows.push(row);
                continue;
            }
            let device = device.iter().find(|device| device.name == row.device);
            let model = model.iter().find(|model| model.name == row.model);
            all.push(Self {
                key,
                driver_name: device.expect("a test has read it").driver_name.clone(),
                precision: row.precision.clone(),
                shape: model.expect("a test has read it").shape.clone(),
                rows: vec![row],
            });
        }
        all
    }

    /// Finds published work by its key.
    ///
    /// # Errors
    /// Exit code 2 with all keys if there is none.
    pub fn find(key: &str) -> Result<Self> {
        let mut all = Self::all();
        match all.iter().position(|published| published.key == key) {
            Some(index) => Ok(all.swap_remove(index)),
            None => {
                let keys: Vec<String> = all.into_iter().map(|published| published.key).collect();
                let keys = keys.join("\n  ");
                Err(Error::Usage(format!("{PREFIX}{key}: expected one of\n  {keys}")))
            }
        }
    }
}
