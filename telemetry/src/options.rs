//! Settings of telemetry.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use record::text::SecretUrl;
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

/// Where and what to serve.
#[derive(Debug, Clone)]
pub struct PrometheusOptions {
    /// Where local rank 0 listens; port 0 takes any.
    pub address: SocketAddr,
    /// For how long it answers after the end of the run.
    pub linger: Duration,
    /// This rank among those of its node.
    pub local_rank: usize,
    /// All ranks of its node.
    pub ranks: Vec<usize>,
    /// Number of the attempt.
    pub attempt: u32,
    /// What the run is, by label.
    pub info: Vec<(String, String)>,
}

/// Where telemetry goes, and of what run it is.
#[derive(Debug, Clone)]
pub struct OtlpOptions {
    /// URL of the collector, as in `http://HOST:4318`.
    pub url: SecretUrl,
    /// Checks the proxy of the environment for this URL: the HTTP client takes no notice of one
    /// that it cannot use.
    pub check_proxy: fn(&str) -> io::Result<()>,
    /// Id of the run.
    pub run: String,
    /// Number of the attempt. With the id of the run it names the trace, the same on all ranks.
    pub attempt: u32,
    /// When this rank has started.
    pub started: SystemTime,
    /// Name of the workload.
    pub workload: String,
    /// Id of the workload.
    pub workload_id: String,
}
