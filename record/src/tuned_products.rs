//! Matrix products whose algorithms were chosen by measurement.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Matrix products whose algorithms were chosen by measurement, equal on all ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TunedProducts {
    /// Origin of the choice.
    pub source: TuningSource,
    /// Number of products that differ in shape, format or epilogue.
    pub products: usize,
    /// Number of those that use another algorithm than the first that the library offers.
    pub changed: usize,
    /// Percentage by which the sum of their times, each computed once, was shorter than with the
    /// first algorithms.
    pub gain_percent: f64,
    /// BLAKE3 digest of the algorithms: runs with different ones may compute different bits.
    pub digest: String,
}

/// Origin of the algorithms of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TuningSource {
    /// Rank 0 has measured them.
    Measured,
    /// An earlier run on this machine has.
    Cache,
    /// An earlier attempt of this run has used them.
    Folder,
}

impl std::fmt::Display for TuningSource {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Measured => "measured now",
            Self::Cache => "measured by an earlier run on this machine",
            Self::Folder => "those of the attempt before",
        })
    }
}
