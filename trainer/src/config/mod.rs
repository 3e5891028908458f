//! Configuration of a run: the hashed workload and the unhashed rest.
//!
//! Values come from a preset or a TOML file, then from `--set key=value`; the last one wins. An
//! unknown key or an impossible value is an error that names it.

mod corruption;
mod origin;
mod overrides;
pub mod size;
mod tier_variables;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use checkpoint::remote::{RemoteOptions, require_no_secret};
use launch::bootstrap::Backend;
use models::Workload;
use models::fused::{AttentionBackend, LOGITS_BYTES_ON_CUDA, Recompute};
use models::workload::Compute;
use record::files::regular_file;
use record::text::{Interval, SecretUrl, duration, is_remote, redacted};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::data::{CacheOptions, Locations};
use crate::failure::{Failure, Outcome};
use record::limits::CONFIG_BYTES_MAX;

pub use corruption::CorruptionConfig;
use origin::Origin;
pub use tier_variables::Variables;

/// Sections that decide what is computed, and thereby the workload id.
const WORKLOAD_SECTIONS: [&str; 6] =
    ["model", "data", "batch", "precision", "optimizer", "schedule"];

/// Largest number of compute threads of one rank: as many cores as a CPU mask has.
const THREADS_MAX: usize = launch::CORES_MAX;

/// Resolved configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Name of the preset or file, for people.
    pub name: String,
    /// Base folder of relative data files.
    pub base: PathBuf,
    /// Sections that are hashed into the workload id.
    pub workload: Workload,
    /// Sections that are not hashed.
    pub settings: Settings,
    /// Choice of a run for its devices, where `run.recompute` is not set. It is no setting: another
    /// run of the same settings chooses for its own.
    pub chosen_recompute: Option<Recompute>,
}

/// Sections that are not part of the workload.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Execution: engine, device, threads and data.
    pub run: RunConfig,
    /// Division of the work among ranks.
    pub parallel: ParallelConfig,
    /// Communication between ranks.
    pub collectives: CollectivesConfig,
    /// Schedule and storage of checkpoints.
    pub checkpoint: CheckpointConfig,
    /// Logs and measurements.
    pub telemetry: TelemetryConfig,
    /// Checks for silent data corruption.
    pub sdc: CorruptionConfig,
}

/// Implementation of the model's forward and backward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// Explicit forward and backward: the workload itself.
    #[default]
    Fused,
    /// candle's modules and autograd: the reference.
    Candle,
}

/// Device that computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// The processor's cores.
    #[default]
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
}

/// The `[run]` section.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunConfig {
    /// Engine.
    pub engine: Engine,
    /// Device.
    pub device: Device,
    /// Implementation of attention on a CUDA device.
    pub attention: AttentionBackend,
    /// Chooses the algorithms of matrix products on a CUDA device by measurement, not by the
    /// library's estimate.
    pub tune_matmul: bool,
    /// Compute threads of each rank; 0 divides the available cores among the ranks that share them.
    pub threads: usize,
    /// Activations that backward computes again; where it is not set, what [the plan] chooses.
    ///
    /// [the plan]: crate::plan::with_chosen_recompute
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recompute: Option<Recompute>,
    /// Hugging Face folder with the weights of step 0; without it the seed determines them. In a
    /// workload file it is relative to the file, as data is; on the command line it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub init_from: Option<String>,
    /// Folder of each node that caches token files of object stores; by default in the user's
    /// folder for caches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_cache: Option<PathBuf>,
    /// Largest size of all files in it.
    #[serde(with = "size")]
    pub data_cache_bytes: u64,
    /// Time for which a request to an object store is retried, in addition to the time for its
    /// bytes.
    #[serde(with = "duration")]
    pub data_deadline: Duration,
}

impl Default for RunConfig {
    fn default() -> Self {
        Self {
            engine: Engine::default(),
            device: Device::default(),
            attention: AttentionBackend::default(),
            tune_matmul: false,
            threads: 0,
            recompute: None,
            init_from: None,
            data_cache: None,
            data_cache_bytes: CacheOptions::LIMIT_BYTES,
            data_deadline: RemoteOptions::default().patience,
        }
    }
}

/// The `[parallel]` section.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ParallelConfig {
    /// Groups of ranks that each hold a whole model; 0 for the rest of the ranks.
    pub data: usize,
    /// Ranks of such a group, which share what is sharded; 0 for the rest of the ranks.
    pub shard: usize,
    /// State that is sharded.
    pub sharded: Sharded,
    /// Buckets of sharded weights that are gathered ahead of the one that is computed with.
    pub gather_ahead: usize,
    /// Releases gathered weights after their use, and gathers them again for backward; otherwise
    /// each rank keeps all weights until the update.
    pub reshard: bool,
}

impl Default for ParallelConfig {
    fn default() -> Self {
        Self { data: 1, shard: 0, sharded: Sharded::None, gather_ahead: 1, reshard: true }
    }
}

/// State that ranks share: each kind includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sharded {
    /// Each rank holds all of it.
    #[default]
    None,
    /// Each rank holds and updates the optimizer's state of its own parts only (ZeRO-1).
    Optimizer,
    /// Each rank also sums the gradients of its own parts only (ZeRO-2).
    Gradients,
    /// Each rank also holds the weights of its place in the shard group only (ZeRO-3).
    Weights,
}

impl Sharded {
    /// All kinds, from the least to the most.
    pub const ALL: [Self; 4] = [Self::None, Self::Optimizer, Self::Gradients, Self::Weights];
}

impl fmt::Display for Sharded {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::None => "none",
            Self::Optimizer => "optimizer",
            Self::Gradients => "gradients",
            Self::Weights => "weights",
        })
    }
}

/// The `[collectives]` section.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CollectivesConfig {
    /// Backend.
    pub backend: Backend,
    /// Smallest size of a gradient bucket in bytes (the last one may be smaller).
    #[serde(with = "size")]
    pub bucket_bytes: usize,
    /// Overlaps communication with computation: reductions with backward, and the all-gather of a
    /// sharded optimizer's weights with the next forward.
    pub overlap: bool,
    /// Longest time that an operation between ranks may take, except where they wait for storage;
    /// then the run ends with an error.
    #[serde(with = "duration")]
    pub deadline: Duration,
}

impl Default for CollectivesConfig {
    fn default() -> Self {
        Self {
            backend: Backend::Auto,
            bucket_bytes: 32 << 20,
            overlap: true,
            deadline: Duration::from_secs(120),
        }
    }
}

/// The `[checkpoint]` section.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointConfig {
    /// Interval between saves: `50steps`, `5m`, `auto` or `never`.
    pub every: Interval,
    /// Time between failures of the job, for `auto`; without it, estimated from the number of ranks
    /// and the attempts of the run.
    #[serde(with = "duration::optional", skip_serializing_if = "Option::is_none")]
    pub mean_time_between_failures: Option<Duration>,
    /// Saves after the last step as well.
    pub at_end: bool,
    /// Number of committed checkpoints to keep.
    pub keep: usize,
    /// Continues training while a checkpoint is written.
    pub background: bool,
    /// Memory per rank that the state is copied to before it is written. By default all of the
    /// state that a rank saves, so that no step waits for storage.
    #[serde(with = "size::optional", skip_serializing_if = "Option::is_none")]
    pub staging_bytes: Option<u64>,
    /// Folder of each node's own, where checkpoints are saved first.
    pub nvme: TierConfig,
    /// Folder that all ranks see: the run's folder by default; the path `none` leaves it out.
    pub shared: TierConfig,
    /// Object store.
    pub object: TierConfig,
    /// Most bytes per second that a rank copies to farther tiers; unlimited by default.
    #[serde(with = "size::optional", skip_serializing_if = "Option::is_none")]
    pub copy_bytes_per_second_max: Option<u64>,
    /// Time that a requested stop waits for copies to farther tiers; the next attempt resumes the
    /// rest.
    #[serde(with = "duration")]
    pub stop_grace: Duration,
    /// Saves a checkpoint when a rank is found slow: its node may fail soon.
    pub on_verdict: bool,
    /// Longest time that ranks wait for the slowest writer or reader, of checkpoints and at the
    /// start of the run's folder; then the run ends with an error.
    #[serde(with = "duration")]
    pub deadline: Duration,
}

impl CheckpointConfig {
    /// Returns whether checkpoints are saved during training, on any tier.
    pub fn has_interval(&self) -> bool {
        let Self { every, nvme, shared, object, .. } = self;
        let of_tiers = [nvme, shared, object].into_iter().filter_map(|tier| tier.every);
        of_tiers.chain([*every]).any(|every| every != Interval::Never)
    }

    /// Returns whether there is a shared tier.
    pub fn has_shared_tier(&self) -> bool {
        self.shared.path.as_deref() != Some("none")
    }
}

/// Tier of checkpoints: `[checkpoint.nvme]`, `[checkpoint.shared]` or `[checkpoint.object]`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TierConfig {
    /// Folder, or `s3://bucket/prefix`. Each run has a folder of its own in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Interval between checkpoints there; every saved checkpoint by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<Interval>,
    /// Number of committed checkpoints to keep there; `checkpoint.keep` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep: Option<usize>,
    /// Keeps a copy of each rank's files on another node. Only for the tier of nodes.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub partner: bool,
}

impl Default for CheckpointConfig {
    fn default() -> Self {
        Self {
            every: Interval::Never,
            mean_time_between_failures: None,
            at_end: true,
            keep: 2,
            background: true,
            staging_bytes: None,
            nvme: TierConfig::default(),
            shared: TierConfig::default(),
            object: TierConfig::default(),
            copy_bytes_per_second_max: None,
            stop_grace: Duration::from_secs(20),
            on_verdict: false,
            deadline: Duration::from_secs(600),
        }
    }
}

/// The `[telemetry]` section.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TelemetryConfig {
    /// Steps between lines of the console.
    pub log_every_steps: u64,
    /// Time for measuring the matmul rate, over all of its measurements; `0s` leaves `mfu_measured`
    /// null.
    #[serde(with = "duration")]
    pub matmul_probe: Duration,
    /// Steps whose mean own time of a rank is one value for the detector of slow ranks; 0 for no
    /// detection.
    pub straggler_block_steps: usize,
    /// Percentage by which a rank must be slower to be named.
    pub straggler_percent: f64,
    /// Healthy ranks that may be named in a thousand hours of a job.
    pub straggler_false_per_1000h: f64,
    /// Folder of an earlier run of this workload, whose ranks' own times are the known paces of
    /// their devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paces: Option<PathBuf>,
    /// Interval between hardware samples; `0s` for never.
    #[serde(with = "duration")]
    pub hardware_interval: Duration,
    /// Root of the host's `/proc` and `/sys`, where a container has its own.
    pub host_root: PathBuf,
    /// Price of a node for an hour, in any currency: the record then has the cost of training.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price_per_node_hour: Option<f64>,
    /// Steps between those that compute the norms of weights and of their last update; 0 for never.
    pub health_every_steps: u64,
    /// Robust z-score from which a loss is a spike; 0 for never.
    pub loss_spike_z: f64,
    /// Writes events for TensorBoard on rank 0, in the run's folder.
    pub tensorboard: bool,
    /// File of golden losses; by default those of built-in workloads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub golden: Option<PathBuf>,
    /// Address at which one rank of each node serves metrics for Prometheus, as in `0.0.0.0:9402`;
    /// none does by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prometheus: Option<SocketAddr>,
    /// Time for which it is served after the end of the run.
    #[serde(with = "duration")]
    pub prometheus_linger: Duration,
    /// URL of an OpenTelemetry collector to which every rank sends its metrics and spans, by OTLP
    /// over HTTP, as in `http://HOST:4318`; empty for none.
    pub otlp: SecretUrl,
    /// Folder or URL of an object store that receives the record at the end, as `yardstick
    /// baseline` keeps them; empty for none.
    pub records: SecretUrl,
    /// File with the status of the job's pods, as `kubectl get pods -o json` prints it, for the
    /// record; empty for none.
    pub pods: String,
}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self {
            log_every_steps: 10,
            matmul_probe: Duration::from_millis(250),
            straggler_block_steps: 10,
            straggler_percent: 3.0,
            straggler_false_per_1000h: 1.0,
            paces: None,
            hardware_interval: Duration::from_secs(1),
            host_root: PathBuf::from("/"),
            price_per_node_hour: None,
            health_every_steps: 10,
            loss_spike_z: 8.0,
            tensorboard: false,
            golden: None,
            prometheus: None,
            prometheus_linger: Duration::ZERO,
            otlp: SecretUrl::default(),
            records: SecretUrl::default(),
            pods: String::new(),
        }
    }
}

impl Config {
    /// Returns the precisions and options of the fused engine, with so many threads of each rank.
    pub fn fused_options(&self, threads: usize) -> models::fused::Options {
        let options = models::fused::Options {
            recompute: self.recompute(),
            threads,
            on_cuda: self.is_on_cuda(),
            attention: self.settings.run.attention,
            ..self.workload.precision.compute.into()
        };
        if !options.on_cuda {
            return options;
        }
        models::fused::Options { logits_bytes: LOGITS_BYTES_ON_CUDA, ..options }
    }

    /// Activations that backward computes again: where that is neither set nor chosen, the least.
    pub fn recompute(&self) -> Recompute {
        let run = &self.settings.run;
        let least = match (run.engine, run.device) {
            (Engine::Candle, _) | (_, Device::Cuda) => Recompute::None,
            (Engine::Fused, Device::Cpu) => Recompute::Selective,
        };
        run.recompute.or(self.chosen_recompute).unwrap_or(least)
    }

    /// Returns the settings with what was chosen, for the record.
    pub fn settings_in_effect(&self) -> Settings {
        let mut settings = self.settings.clone();
        settings.run.recompute = Some(self.recompute());
        settings
    }

    /// Returns whether each rank holds only its own parts of the optimizer's state.
    pub fn shards_optimizer(&self) -> bool {
        self.settings.parallel.sharded >= Sharded::Optimizer
    }

    /// Returns whether each rank sums only its own parts of the gradients.
    pub fn shards_gradients(&self) -> bool {
        self.settings.parallel.sharded >= Sharded::Gradients
    }

    /// Returns whether each rank holds only its shard of the weights.
    pub fn shards_weights(&self) -> bool {
        self.settings.parallel.sharded == Sharded::Weights
    }

    /// Returns whether a CUDA device computes, not the processor.
    pub fn is_on_cuda(&self) -> bool {
        self.settings.run.device == Device::Cuda
    }

    /// Loads a preset or a file, and applies `key=value` overrides.
    ///
    /// # Errors
    /// Exit code 2, naming the file and the key.
    pub fn load(workload: &str, overrides: &[String]) -> Outcome<Self> {
        Self::from_origin(Origin::read(workload, overrides)?, overrides)
    }

    /// Loads the configuration that a run has left in its folder.
    ///
    /// # Errors
    /// Exit code 2 if it is missing or unreadable, and the errors of [`Config::load`].
    pub fn of_run(folder: &Path) -> Outcome<Self> {
        let path = folder.join("config.toml");
        let text = regular_file::read_text(&path, CONFIG_BYTES_MAX);
        let text = text.map_err(|error| Failure::usage(error.to_string()))?;
        let text = without_former_attention(&text);
        Self::from_origin(Origin::of_file(&path.to_string_lossy(), &[], text), &[])
    }

    fn from_origin(origin: Origin<'_>, overrides: &[String]) -> Outcome<Self> {
        let (workload, settings) = halves(&origin, overrides)?;
        if let Err(failure) = validate(&workload, &settings) {
            let alone = halves(&origin, &[]).and_then(|(w, s)| validate(&w, &s)).err();
            return Err(origin.blame(failure, alone.as_ref()));
        }
        Ok(Self {
            name: origin.name,
            base: origin.base,
            workload,
            settings,
            chosen_recompute: None,
        })
    }

    /// Requires every secret that the run needs: a stored configuration lacks them.
    ///
    /// # Errors
    /// Exit code 2, naming the key and the flag.
    pub fn require_secrets(&self) -> Outcome<()> {
        let otlp = &self.settings.telemetry.otlp;
        if otlp.is_redacted() {
            let expected = "the URL with its password, which is not stored: give it by --otlp";
            return Err(invalid("telemetry.otlp", otlp, expected));
        }
        Ok(())
    }

    /// Refuses a password in an address that others will store, as in manifests.
    ///
    /// # Errors
    /// Exit code 2, naming the key and another way.
    pub fn refuse_secrets(&self) -> Outcome<()> {
        let otlp = &self.settings.telemetry.otlp;
        if otlp.has_secret() {
            let expected = "a URL without user and password, which everybody who reads the \
                            manifest would see: pass OTEL_EXPORTER_OTLP_HEADERS from a Secret";
            return Err(invalid("telemetry.otlp", otlp, expected));
        }
        Ok(())
    }

    /// Formats the whole configuration as TOML, without passwords; `--workload FILE` accepts it.
    ///
    /// # Panics
    /// Never: every field has a TOML form.
    pub fn to_toml(&self) -> String {
        let mut table = Table::try_from(&self.workload).expect("a workload is a table");
        table.extend(Table::try_from(&self.settings).expect("settings are a table"));
        toml::to_string_pretty(&table).expect("a table is TOML")
    }
}

/// Parses both halves, with the overrides applied.
fn halves(origin: &Origin<'_>, overrides: &[String]) -> Outcome<(Workload, Settings)> {
    let mut table: Table = origin.text.parse().map_err(|error| origin.not_toml(&error))?;
    resolve_init_from(&origin.base, &mut table);
    for item in overrides {
        overrides::apply(&mut table, item)?;
    }
    refuse_former_key(&table)?;
    let is_hashed = |key: &str| WORKLOAD_SECTIONS.contains(&key);
    let mut hashed = Table::new();
    let mut settings = Table::new();
    for (key, value) in table {
        let half = if is_hashed(&key) { &mut hashed } else { &mut settings };
        half.insert(key, value);
    }
    let workload = Value::Table(hashed)
        .try_into()
        .map_err(|error| origin.misfit::<Workload>(&error, is_hashed))?;
    let settings = Value::Table(settings)
        .try_into()
        .map_err(|error| origin.misfit::<Settings>(&error, |key| !is_hashed(key)))?;
    Ok((workload, settings))
}

/// Blanks the values of `run.attention` that only earlier versions had: commands that read a run do
/// not need them.
fn without_former_attention(text: &str) -> String {
    const FORMER: [&str; 2] = ["attention = \"cudnn\"", "attention = \"plain\""];
    let blank = |line| if FORMER.contains(&line) { "" } else { line };
    text.lines().map(blank).collect::<Vec<_>>().join("\n")
}

/// Refuses `run.shard_optimizer`, which earlier versions had.
fn refuse_former_key(table: &Table) -> Outcome<()> {
    match table.get("run").and_then(|run| run.get("shard_optimizer")) {
        Some(found) => {
            let expected = "parallel.sharded = \"optimizer\" or \"none\" instead of this key";
            Err(invalid("run.shard_optimizer", found, expected))
        }
        None => Ok(()),
    }
}

/// Resolves a relative `run.init_from` of a workload file against the folder of that file.
fn resolve_init_from(base: &Path, table: &mut Table) {
    let run = table.get_mut("run").and_then(Value::as_table_mut);
    if let Some(Value::String(folder)) = run.and_then(|run| run.get_mut("init_from")) {
        *folder = base.join(&*folder).to_string_lossy().into_owned();
    }
}

/// Checks every value that can be checked without knowing the world size.
fn validate(workload: &Workload, settings: &Settings) -> Outcome<()> {
    workload.validate()?;
    workload.batch.accumulation(1)?; // what one rank cannot divide, no world can
    settings.validate()?;
    if settings.run.engine == Engine::Candle && settings.run.device == Device::Cuda {
        return Err(invalid("run.engine", "candle", "fused with run.device = cuda"));
    }
    let backend = settings.collectives.backend;
    match (settings.run.device, backend) {
        (Device::Cpu, Backend::Nccl) => {
            let expected = "auto, single or mpi with run.device = cpu";
            return Err(invalid("collectives.backend", "nccl", expected));
        }
        (Device::Cuda, Backend::Mpi) => {
            let expected = "auto, single or nccl with run.device = cuda";
            return Err(invalid("collectives.backend", "mpi", expected));
        }
        _ => {}
    }
    let compute = workload.precision.compute;
    let attention = settings.run.attention;
    if attention != AttentionBackend::Flash && settings.run.device != Device::Cuda {
        return Err(invalid("run.attention", attention, "flash with run.device = cpu"));
    }
    if settings.run.tune_matmul && settings.run.device != Device::Cuda {
        return Err(invalid("run.tune_matmul", true, "false with run.device = cpu"));
    }
    if attention == AttentionBackend::Wgmma && compute != Compute::Bf16 {
        return Err(invalid("run.attention", attention, "flash with precision.compute = f32"));
    }
    if settings.run.engine == Engine::Candle && settings.parallel.sharded == Sharded::Weights {
        let expected = "none, optimizer or gradients with run.engine = candle";
        return Err(invalid("parallel.sharded", "weights", expected));
    }
    if settings.run.engine == Engine::Candle && compute != Compute::F32 {
        return Err(invalid("precision.compute", compute, "f32 with run.engine = candle"));
    }
    Ok(())
}

impl Config {
    /// Returns the locations of token files.
    pub fn data_locations(&self) -> Locations {
        let run = &self.settings.run;
        let cache = CacheOptions {
            folder: run.data_cache.clone(),
            limit_bytes: run.data_cache_bytes,
            remote: RemoteOptions { patience: run.data_deadline, ..Default::default() },
        };
        Locations { base: self.base.clone(), cache }
    }
}

impl Settings {
    fn validate(&self) -> Outcome<()> {
        let mean = self.checkpoint.mean_time_between_failures;
        for (key, deadline) in [
            ("checkpoint.mean_time_between_failures", mean.unwrap_or(Duration::MAX)),
            ("collectives.deadline", self.collectives.deadline),
            ("checkpoint.deadline", self.checkpoint.deadline),
            ("run.data_deadline", self.run.data_deadline),
        ] {
            if deadline.is_zero() {
                return Err(invalid(key, duration::format(deadline), "a duration above 0"));
            }
        }
        if self.run.threads > THREADS_MAX {
            return Err(invalid("run.threads", self.run.threads, "at most 1024"));
        }
        let recomputes = self.run.recompute.filter(|&level| level != Recompute::None);
        if let (Engine::Candle, Some(level)) = (self.run.engine, recomputes) {
            return Err(invalid("run.recompute", level, "none with run.engine = candle"));
        }
        if self.collectives.bucket_bytes == 0 {
            return Err(invalid("collectives.bucket_bytes", 0, "at least 1"));
        }
        let CheckpointConfig { nvme, shared, object, .. } = &self.checkpoint;
        let tier = |tier: &'_ TierConfig| tier.path.as_deref().unwrap_or("none").to_owned();
        let records = self.telemetry.records.expose();
        for (key, path) in [
            ("checkpoint.nvme.path", tier(nvme)),
            ("checkpoint.shared.path", tier(shared)),
            ("checkpoint.object.path", tier(object)),
            ("telemetry.records", if records.is_empty() { "none" } else { records }.to_owned()),
        ] {
            require_place(key, &path)?;
        }
        if !self.checkpoint.has_shared_tier()
            && nvme.path.is_none()
            && object.path.is_none()
            && !Variables::read().has_nvme()
        {
            let expected =
                "another path, or checkpoint.nvme.path or checkpoint.object.path as well";
            return Err(invalid("checkpoint.shared.path", "none", expected));
        }
        for (key, tier) in
            [("checkpoint.shared.partner", shared), ("checkpoint.object.partner", object)]
        {
            if tier.partner {
                let expected = "false: all nodes see this tier, so only nvme has partner copies";
                return Err(invalid(key, true, expected));
            }
        }
        if self.checkpoint.keep == 0 {
            return Err(invalid("checkpoint.keep", 0, "at least 1"));
        }
        if self.checkpoint.copy_bytes_per_second_max == Some(0) {
            return Err(invalid("checkpoint.copy_bytes_per_second_max", 0, "at least 1"));
        }
        if self.telemetry.hardware_interval > HARDWARE_INTERVAL_MAX {
            let found = duration::format(self.telemetry.hardware_interval);
            return Err(invalid("telemetry.hardware_interval", found, "at most 1m"));
        }
        let price = self.telemetry.price_per_node_hour.unwrap_or(f64::MAX);
        if !price.is_finite() || price <= 0.0 {
            return Err(invalid("telemetry.price_per_node_hour", price, "a price above 0"));
        }
        let otlp = &self.telemetry.otlp;
        if !otlp.is_empty() && !is_http(otlp.expose()) {
            // Without a scheme it is unknown which part before an @ is a password.
            let shown = otlp.to_string();
            let is_known = shown.contains("://") || !shown.contains('@');
            let found = if is_known { shown } else { "another text".to_owned() };
            let found = found.escape_debug().to_string();
            return Err(invalid("telemetry.otlp", found, "a URL, as in http://HOST:4318"));
        }
        if self.telemetry.log_every_steps == 0 {
            return Err(invalid("telemetry.log_every_steps", 0, "at least 1"));
        }
        for (key, value) in [
            ("telemetry.straggler_percent", self.telemetry.straggler_percent),
            ("telemetry.straggler_false_per_1000h", self.telemetry.straggler_false_per_1000h),
        ] {
            if !value.is_finite() || value <= 0.0 {
                return Err(invalid(key, value, "a number above 0"));
            }
        }
        let spike_z = self.telemetry.loss_spike_z;
        if !spike_z.is_finite() || spike_z < 0.0 {
            return Err(invalid("telemetry.loss_spike_z", spike_z, "a number from 0 on"));
        }
        Ok(())
    }
}

/// Requires a folder or a prefix of an object store, whose credentials are not in the URL.
fn require_place(key: &str, path: &str) -> Outcome<()> {
    if path.is_empty() || path.contains("://") && !is_remote(path) {
        let expected = "a folder, or s3://, gs:// or az:// BUCKET/PREFIX";
        return Err(invalid(key, redacted(path), expected));
    }
    if is_remote(path) {
        require_no_secret(path).map_err(|error| Failure::usage(format!("{key}: {error}")))?;
    }
    Ok(())
}

/// Longest interval between hardware samples: energy counters wrap around after some minutes.
const HARDWARE_INTERVAL_MAX: Duration = Duration::from_secs(60);

/// Returns whether a text is the URL of a web server, to which paths can be added.
fn is_http(text: &str) -> bool {
    let is_base = |url: reqwest::Url| {
        matches!(url.scheme(), "http" | "https")
            && url.has_host()
            && url.query().is_none()
            && url.fragment().is_none()
    };
    let is_written_as_sent = text.bytes().all(|byte| byte.is_ascii_graphic());
    is_written_as_sent && reqwest::Url::parse(text).is_ok_and(is_base)
}

fn invalid(key: &str, found: impl ToString, expected: &str) -> Failure {
    models::Error::invalid(key, found, expected).into()
}
