//! Settings of telemetry.

use std::path::PathBuf;

use super::otlp::OtlpOptions;
use super::prometheus::PrometheusOptions;
use serde::{Deserialize, Serialize};

/// The format of steps, messages and warnings on stderr.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Aligned columns, and a progress bar on a terminal.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// What telemetry needs to know about a run.
#[derive(Debug, Clone)]
pub struct TelemetryOptions {
    /// The run's folder; steps go to its folder `steps`.
    pub dir: PathBuf,
    /// This rank; only rank 0 prints.
    pub rank: usize,
    /// Its host.
    pub host: String,
    /// Number of ranks.
    pub world: usize,
    /// Format of the printed steps.
    pub log_format: LogFormat,
    /// Number of steps of the whole run, for the progress bar.
    pub total_steps: u64,
    /// Steps between lines of text (the first and the last step, and those with an evaluation, are
    /// printed in addition).
    pub log_every_steps: u64,
    /// The attempt of which rank 0 writes events for TensorBoard; `None` for none.
    pub tensorboard: Option<u32>,
    /// The endpoint of metrics; `None` for none.
    pub prometheus: Option<PrometheusOptions>,
    /// Where metrics and spans are sent by OTLP; `None` for nowhere.
    pub otlp: Option<OtlpOptions>,
}
