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

/// Settings of telemetry for a run.
#[derive(Debug, Clone)]
pub struct TelemetryOptions {
    /// Folder of the run; steps are written to its folder `steps`.
    pub dir: PathBuf,
    /// This rank; only rank 0 prints.
    pub rank: usize,
    /// Host of this rank.
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
    /// Attempt of which rank 0 writes events for TensorBoard; `None` for no events.
    pub tensorboard: Option<u32>,
    /// Endpoint of metrics; `None` for no endpoint.
    pub prometheus: Option<PrometheusOptions>,
    /// Collector of metrics and spans by OTLP; `None` for no collector.
    pub otlp: Option<OtlpOptions>,
}

/// Settings of the endpoint of metrics.
#[derive(Debug, Clone)]
pub struct PrometheusOptions {
    /// Address that local rank 0 listens on; port 0 takes any.
    pub address: SocketAddr,
    /// Time for which it answers after the end of the run.
    pub linger: Duration,
    /// Index of this rank among the ranks of its node.
    pub local_rank: usize,
    /// All ranks of its node.
    pub ranks: Vec<usize>,
    /// Number of the attempt.
    pub attempt: u32,
    /// Description of the run, by label.
    pub info: Vec<(String, String)>,
}

/// Settings of the collector, and the run of its telemetry.
#[derive(Debug, Clone)]
pub struct OtlpOptions {
    /// URL of the collector, as in `http://HOST:4318`.
    pub url: SecretUrl,
    /// Checks the proxy of the environment for this URL: the HTTP client ignores one that it cannot
    /// use.
    pub check_proxy: fn(&str) -> io::Result<()>,
    /// Id of the run.
    pub run: String,
    /// Number of the attempt. With the id of the run it names the trace, which all ranks share.
    pub attempt: u32,
    /// Start of this rank.
    pub started: SystemTime,
    /// Name of the workload.
    pub workload: String,
    /// Id of the workload.
    pub workload_id: String,
}
