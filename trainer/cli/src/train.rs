//! `yardstick train`.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{OsStr, Resettable};
use clap::{Args, Parser};
use tracing_subscriber::EnvFilter;

use super::LogArguments;
use super::storage;
use record::text::{Interval, duration};
use telemetry::LogFormat;
use telemetry::log_lines::JsonLines;
use trainer::config::Config;
use trainer::failure::{Failure, Outcome};
use trainer::fault_injection::Injection;
use trainer::run::{self, Exit, RunOptions};

/// Train a workload, alone or as one rank of `mpirun`.
///
/// With the --out of an earlier run, training resumes from its newest committed checkpoint. Flags
/// override the workload file.
#[derive(Debug, Args)]
pub(super) struct Train {
    /// Preset (see `yardstick workloads`) or TOML file.
    #[arg(long, value_name = "NAME|FILE", default_value = "smoke")]
    workload: String,
    /// Set a value of the configuration, as in `--set batch.micro_sequences=2`; may be repeated.
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    overrides: Vec<String>,
    /// Device to compute on [default: cpu].
    #[arg(long, value_parser = ["cpu", "cuda"])]
    device: Option<String>,
    /// Implementation of the model: `fused` is the workload; `candle`, on autograd, is the
    /// reference for checking it [default: fused].
    #[arg(long, value_parser = ["fused", "candle"])]
    engine: Option<String>,
    /// Number of compute threads of each rank [default: the available cores, divided among the
    /// ranks that share them].
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Stop after step N, before the schedule ends.
    #[arg(long, value_name = "N")]
    steps: Option<u64>,
    /// Folder of the run [default: a new one under runs/].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Fail if the folder of the run is not empty, instead of resuming.
    #[arg(long)]
    fresh: bool,
    /// Load the initial weights from a Hugging Face folder: an export, or any GPT-2 or Llama of the
    /// same dimensions. Ignored when resuming.
    #[arg(long, value_name = "DIR")]
    init_from: Option<String>,
    /// Interval between checkpoints: steps, as in 50steps, a duration, as in 90s or 5m, or `never`
    /// (only at the end) [default: never].
    #[arg(long, value_name = "INTERVAL")]
    checkpoint_every: Option<Interval>,
    /// Evaluate the held-out loss every N steps.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    eval_every: Option<u64>,
    /// Stop when the loss is at most this: the held-out loss with --eval-every, else the training
    /// loss.
    #[arg(long, value_name = "NATS", env = unless_empty("TARGET_LOSS"), value_parser = finite)]
    target_loss: Option<f64>,
    /// Timeout of every operation between ranks, as in 90s or 5m; when it expires, the run ends
    /// with exit code 5 [default: 2m]. While ranks wait for storage, the longer of this and
    /// checkpoint.deadline counts. Ranks have at least 10 s to join.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    deadline: Option<Duration>,
    /// Serve metrics for Prometheus at this address on one rank of each node, as in 0.0.0.0:9402.
    #[arg(long, value_name = "ADDRESS")]
    prometheus: Option<SocketAddr>,
    /// Send metrics and spans of all ranks to an OpenTelemetry collector, by OTLP over HTTP, as in
    /// http://HOST:4318.
    #[arg(long, value_name = "URL")]
    otlp: Option<String>,
    /// Also store the final record in this folder or object store, in the layout of `yardstick
    /// baseline`.
    #[arg(long, value_name = "DIR|URL")]
    records: Option<String>,
    /// Record the startup times of the job's pods, from a file with the output of `kubectl get pods
    /// -o json`. Rank 0 reads it, and a process with access to the cluster's API keeps it up to
    /// date.
    #[arg(long, value_name = "FILE", env = unless_empty("YARDSTICK_PODS"))]
    pods: Option<String>,
    #[command(flatten)]
    pub(super) log: LogArguments,
    /// Print a profile of step N on stdout: calls, time, FLOP/s and bytes/s of each op, and their
    /// shares of the rates measured on this machine. The record keeps it for `yardstick report
    /// --gap`.
    #[arg(long, value_name = "N")]
    profile_step: Option<u64>,
    /// Trace these steps of all ranks, as in 10..12, to a file in `trace/` of the run's folder, for
    /// Chrome's and Perfetto's viewers.
    #[arg(long, value_name = "FIRST..LAST", value_parser = steps)]
    trace_steps: Option<RangeInclusive<u64>>,
    /// Inject a fault, for a drill or a test:
    /// kill|nan|corrupt|hang|freeze|slow|stop@step=S,rank=R[,failpoint=P], or from a step on
    /// slow-compute|slow-data|slow-communication|slow-checkpoint@rank=R,percent=P[,step=S]. Faults
    /// apply to the first attempt of the run; attempt=N or attempt=every selects others.
    /// clock@rank=R,percent=P,seed=N[,step=S], with part=compute|data|communication|checkpoint for
    /// the slow part, reports virtual times in place of measured ones.
    #[arg(long, value_name = "FAULT")]
    inject: Vec<Injection>,
}

/// Parses a step, or the first and the last of several.
fn steps(text: &str) -> Result<RangeInclusive<u64>, String> {
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    let steps = first.parse().ok().zip(last.parse().ok()).map(|(first, last)| first..=last);
    steps
        .filter(|steps| *steps.start() > 0 && !steps.is_empty())
        .ok_or_else(|| format!("{text:?}: expected the first and the last step, as in 10..12"))
}

/// Returns the variable that stands for a flag. An empty one counts as unset, as in job files.
fn unless_empty(name: &'static str) -> Resettable<OsStr> {
    let value = std::env::var_os(name);
    let is_empty = value.is_some_and(|it| it.to_str().is_some_and(|it| it.trim().is_empty()));
    if is_empty { Resettable::Reset } else { Resettable::Value(name.into()) }
}

/// Returns the origin of a target loss: the flag takes precedence.
fn target_origin() -> &'static str {
    let is_flag = |word: std::ffi::OsString| {
        word.to_str().is_some_and(|word| word.split('=').next() == Some("--target-loss"))
    };
    if std::env::args_os().any(is_flag) {
        "--target-loss"
    } else {
        "TARGET_LOSS of the environment"
    }
}

fn finite(text: &str) -> Result<f64, String> {
    let number = text.trim().parse().ok().filter(|number: &f64| number.is_finite());
    number.ok_or_else(|| format!("{text:?}: expected a number, here or as TARGET_LOSS"))
}

/// Sets up the log on stderr: warnings by default; `RUST_LOG` selects more or less. A closed stderr
/// does not end the run.
fn log_to_stderr(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .log_internal_errors(false) // printed to that closed stderr, they would panic
        .with_ansi(std::io::stderr().is_terminal() && !is_plain);
    match format {
        LogFormat::Text => log.with_target(false).init(),
        LogFormat::Json => log.with_ansi(false).event_format(JsonLines).init(),
    }
}

/// Returns the configuration that `train` reads for these arguments.
pub(super) fn config_of(arguments: &[String]) -> Outcome<Config> {
    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        train: Train,
    }
    let line = std::iter::once("train").chain(arguments.iter().map(String::as_str));
    let line = Line::try_parse_from(line)
        .map_err(|error| Failure::usage(error.render().to_string().trim_end()))?;
    line.train.config()
}

impl Train {
    pub(super) fn run(self) -> Outcome<Exit> {
        run::run(&[self.options()?])
    }

    /// Sets up the log, and reads the configuration.
    pub(super) fn options(&self) -> Outcome<RunOptions> {
        log_to_stderr(self.log.format);
        let config = self.config()?;
        config.require_secrets()?;
        Ok(RunOptions {
            keep_record: storage::keep,
            config,
            out: self.out.clone(),
            fresh: self.fresh,
            steps: self.steps,
            steady_steps: None,
            eval_every: self.eval_every,
            target_loss: self.target_loss,
            target_origin: target_origin(),
            log_format: self.log.format,
            profile_step: self.profile_step,
            trace_steps: self.trace_steps.clone(),
            injections: self.inject.clone(),
            refuse_complete: false,
        })
    }

    /// Returns the folder of the run, if one is named.
    pub(super) fn out(&self) -> Option<&Path> {
        self.out.as_deref()
    }

    fn config(&self) -> Outcome<Config> {
        Config::load(&self.workload, &self.overrides())
    }

    /// Returns whether the folder must be empty.
    pub(super) fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Returns the `--set` values, and the flags that are short for one.
    fn overrides(&self) -> Vec<String> {
        let mut all = self.overrides.clone();
        let mut set = |key: &str, value: Option<String>| {
            all.extend(value.map(|value| format!("{key}={value}")));
        };
        set("run.device", self.device.clone());
        set("run.engine", self.engine.clone());
        fn quoted(text: String) -> String {
            toml::Value::String(text).to_string()
        }
        set("run.init_from", self.init_from.clone().map(quoted));
        set("telemetry.prometheus", self.prometheus.map(|address| quoted(address.to_string())));
        set("telemetry.otlp", self.otlp.clone().map(quoted));
        set("telemetry.records", self.records.clone().map(quoted));
        set("telemetry.pods", self.pods.clone().map(quoted));
        set("run.threads", self.threads.map(|n| n.to_string()));
        set("checkpoint.every", self.checkpoint_every.map(|interval| interval.to_string()));
        set("collectives.deadline", self.deadline.map(duration::format));
        all
    }
}
