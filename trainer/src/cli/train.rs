//! `yardstick train`.

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::Args;
use tracing_subscriber::EnvFilter;

use crate::config::{Config, Every};
use crate::failure::Outcome;
use crate::inject::Injection;
use crate::run::{self, Over, RunOptions};
use crate::telemetry::LogFormat;

/// Train a workload: alone, or as one rank of `mpirun`.
///
/// The same --out resumes from the newest checkpoint in it.
#[derive(Debug, Args)]
pub(super) struct Train {
    /// A preset (see `yardstick workloads`) or a TOML file.
    #[arg(long, value_name = "NAME|FILE", default_value = "smoke")]
    workload: String,
    /// Changes one value, as in `--set batch.micro_sequences=2`; may be repeated.
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    overrides: Vec<String>,
    /// Where to compute.
    #[arg(long, value_parser = ["cpu", "cuda"])]
    device: Option<String>,
    /// Which implementation: the workload itself, or candle's autograd to check it against.
    #[arg(long, value_parser = ["fused", "candle"])]
    engine: Option<String>,
    /// Compute threads of each rank [default: the cores it may run on, divided among ranks that
    /// share them].
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Stop after this many steps, before the schedule ends.
    #[arg(long, value_name = "N")]
    steps: Option<u64>,
    /// The run's folder [default: a new one under runs/].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Refuse a folder that is not empty, rather than resume.
    #[arg(long)]
    fresh: bool,
    /// Start with the weights of a Hugging Face folder (ours, or any GPT-2 or Llama of the same
    /// dimensions); a run that resumes does not read them again.
    #[arg(long, value_name = "FOLDER")]
    init_from: Option<String>,
    /// Save every 50steps or 100s (`never`: only at the end).
    #[arg(long, value_name = "INTERVAL")]
    checkpoint_every: Option<Every>,
    /// Measure the held-out loss every N steps.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    eval_every: Option<u64>,
    /// Stop once the loss is this low (held-out loss with --eval-every, else the step's loss).
    #[arg(long, value_name = "NATS", value_parser = finite)]
    target_loss: Option<f64>,
    /// Every operation between ranks ends within this time, or the run does, as in `120s`.
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    deadline: Option<f64>,
    /// What is told on stderr, for people or as JSON lines for programs.
    #[arg(long, value_enum, default_value = "text")]
    pub(super) log_format: LogFormat,
    /// Print what each op of this step took (calls, time, FLOP/s, bytes/s, shares of what the
    /// machine can do) to stdout.
    #[arg(long, value_name = "N")]
    profile_step: Option<u64>,
    /// Injects a fault for a drill or a test: kill|nan|hang|slow|stop@step=S,rank=R[,point=P].
    #[arg(long, value_name = "FAULT")]
    inject: Vec<Injection>,
}

fn finite(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite());
    number.ok_or_else(|| format!("{text:?}: expected a number"))
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(Every::Seconds(seconds)) => Ok(seconds),
        _ => Err(format!("{text:?}: expected a time such as 120s")),
    }
}

/// Warnings by default; `RUST_LOG` asks for more or less. A stderr that is gone ends no run.
fn log_to_stderr(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .log_internal_errors(false) // they would be printed to that stderr, and panic
        .with_ansi(std::io::stderr().is_terminal() && !is_plain);
    match format {
        LogFormat::Text => log.with_target(false).init(),
        LogFormat::Json => log.json().init(),
    }
}

impl Train {
    pub(super) fn run(self) -> Outcome<Over> {
        log_to_stderr(self.log_format);
        let config = Config::load(&self.workload, &self.overrides())?;
        run::run(&RunOptions {
            config,
            out: self.out,
            fresh: self.fresh,
            steps: self.steps,
            eval_every: self.eval_every,
            target_loss: self.target_loss,
            log_format: self.log_format,
            profile_step: self.profile_step,
            injections: self.inject,
        })
    }

    /// Everyday flags are short for settings.
    fn overrides(&self) -> Vec<String> {
        let mut all = self.overrides.clone();
        let mut set = |key: &str, value: Option<String>| {
            all.extend(value.map(|value| format!("{key}={value}")));
        };
        set("run.device", self.device.clone());
        set("run.engine", self.engine.clone());
        let quoted = |text: String| toml::Value::String(text).to_string();
        set("run.init_from", self.init_from.clone().map(quoted));
        set("run.threads", self.threads.map(|n| n.to_string()));
        set("checkpoint.every", self.checkpoint_every.map(|every| every.to_string()));
        set("collectives.deadline_s", self.deadline.map(|seconds| seconds.to_string()));
        all
    }
}
