//! The sections of a record.

use std::collections::BTreeMap;

use crate::machine::DeviceProperties;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::bucket::BucketRecord;
use crate::golden::GoldenCheck;
use crate::hardware::{HardwareSummary, PortSummary};
use crate::phase::{Phase, PhaseTimes};
use crate::statistics::{Distribution, Histogram};
use crate::steps::{OwnTimes, StepBlock};
use crate::straggler::{Sniffed, Straggler};
use crate::trigger::Trigger;

/// State of a run or an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// It is running, or it was killed before it could record its end.
    Running,
    /// All steps are done.
    Complete,
    /// It was stopped on request, and can be resumed from a committed checkpoint.
    Stopped,
    /// It ended with an error.
    Failed,
    /// Its figures must not be used.
    Void,
}

impl Status {
    /// The name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Complete => "complete",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
            Self::Void => "void",
        }
    }
}

/// Why a run did not complete.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Reason {
    /// Rank that caused it.
    pub rank: Option<usize>,
    /// Host of that rank.
    pub host: Option<String>,
    /// Step in which it happened, from 1.
    pub step: Option<u64>,
    /// What that rank was doing at that time.
    pub phase: Option<Phase>,
    /// The error message.
    pub text: String,
}

impl Reason {
    /// This reason with what a rank has said of it.
    #[must_use]
    pub fn and_said(self, said: Self) -> Self {
        let parts = [self.text, said.text].into_iter().filter(|text| !text.is_empty());
        Self {
            rank: self.rank.or(said.rank),
            host: self.host.or(said.host),
            text: parts.collect::<Vec<_>>().join("; "),
            ..said
        }
    }
}

/// What was computed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkloadRecord {
    /// Hash of everything that determines what is computed.
    pub id: String,
    /// Name of the preset or file.
    pub name: String,
    /// The half of the configuration that is hashed into the id.
    pub config: serde_json::Value,
}

/// One rank: where it ran, and how fast.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RankRecord {
    /// Its number, from 0.
    pub rank: usize,
    /// Name of its host; in a pod, the pod's name.
    pub host: String,
    /// Name of the node that runs the pod, where `NODE_NAME` tells it.
    #[serde(default)]
    pub node: Option<String>,
    /// Id of its process on that host.
    pub pid: u32,
    /// Cores it is bound to; `null` when it is not bound.
    pub cores: Option<Vec<usize>>,
    /// Compute threads.
    pub threads: usize,
    /// Logical processors that are available to the launcher and that no rank of the machine is
    /// bound to: the same number on every rank of a machine.
    pub unused_cores: usize,
    /// Instruction set of our matmul in the precision of the run, as chosen at run time; `null`
    /// where the engine has a matmul of its own.
    pub matmul_kernel: Option<String>,
    /// The GPU that it computes on; `null` where the processor does.
    pub device: Option<DeviceProperties>,
    /// By what it reaches other nodes: what NCCL has logged, else the active port for RDMA that is
    /// nearest to its GPU by PCIe; without a GPU, the network interface that carries MPI. `null`
    /// where the system does not say that without doubt, and on CPUs of a single node.
    #[serde(default)]
    pub nic: Option<String>,
    /// Where that GPU is attached; `null` without one, and where the system does not say.
    pub numa: Option<NumaRecord>,
    /// Planned peak memory of the host, given whether the ranks of its node share memory.
    pub planned_bytes: u64,
    /// Nanoseconds in each phase over all its steps; `null` until the attempt ends.
    pub phases_ns: Option<PhaseTimes>,
    /// Its buckets, in the order in which they are waited for; empty on a single rank, in jobs of
    /// more than 256 ranks, and until the attempt ends.
    #[serde(default)]
    pub buckets: Vec<BucketRecord>,
    /// Its own time of the attempt's steps; `null` until the attempt ends.
    pub times: Option<OwnTimes>,
    /// What it reached at the same work as all other ranks after the first step; `null` on a single
    /// rank, and where that was not measured.
    #[serde(default)]
    pub sniffed: Option<Sniffed>,
    /// When the attempt last found it slower than the other ranks; `null` if it never did.
    #[serde(default)]
    pub straggler: Option<Straggler>,
    /// What its GPU did; `null` without one, where NVML does not tell it, and until the attempt
    /// ends. Of ranks other than 0 also `null` where the attempt failed.
    #[serde(default)]
    pub gpu: Option<HardwareSummary>,
}

impl RankRecord {
    /// The rank with its place, as in `rank 9 (job-worker-1 on node-b, local rank 1, NVIDIA H100
    /// 0000:17:00.0, NIC mlx5_0:1)`.
    pub fn location(&self, ranks: &[Self]) -> String {
        let Self { rank, host, node, device, nic, .. } = self;
        let local_rank = ranks[..*rank].iter().filter(|other| other.host == *host).count();
        let device = device
            .as_ref()
            .map_or(String::new(), |device| format!(", {} {}", device.name, device.pci_bus_id));
        let nic = nic.as_ref().map_or(String::new(), |nic| format!(", NIC {nic}"));
        let node = node.as_ref().map_or(String::new(), |node| format!(" on {node}"));
        format!("rank {rank} ({host}{node}, local rank {local_rank}{device}{nic})")
    }
}

/// A node during an attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HostRecord {
    /// Name of the host.
    pub host: String,
    /// What its processors, memory, network and disks did.
    #[serde(flatten)]
    pub summary: HardwareSummary,
    /// Ports of its RDMA adapters.
    pub ports: Vec<PortSummary>,
}

/// The NUMA node of a rank's GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NumaRecord {
    /// Number of the node.
    pub device_node: usize,
    /// Whether the rank's threads run on cores of that node only.
    pub is_local: bool,
}

/// Steps of a run on rank 0, without those that a later attempt repeated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepsSummary {
    /// Number of the last step.
    pub completed: u64,
    /// Steps in the file; fewer than `completed` only if a machine lost what it wrote.
    pub recorded: u64,
    /// Steps of the last attempt that are its warm-up, and not measured.
    pub warmup: u64,
    /// Number of measured steps: those of the last attempt after its warm-up.
    pub measured: u64,
    /// Whether step times had settled by then: the warm-up was found by the rule MSER-5, and the
    /// medians of both halves of the measured steps differ by at most 5 %.
    pub is_steady: bool,
    /// Tokens of all recorded steps.
    pub tokens: u64,
    /// Loss of the first step, nats per token.
    pub loss_first: Option<f64>,
    /// Loss of the last step, nats per token.
    pub loss_last: Option<f64>,
    /// Last held-out loss, nats per token.
    pub evaluation_loss_last: Option<f64>,
    /// Smallest mean loss that any model can reach, nats per token; `null` for real text.
    pub entropy_floor: Option<f64>,
    /// FLOPs of training on one token.
    pub flops_per_token: Option<FlopsPerToken>,
    /// Milliseconds per step without checkpoints and evaluation.
    pub step_ms: Distribution,
    /// Milliseconds per step with checkpoints and evaluation.
    pub wall_ms: Distribution,
    /// How often step times were how long, in milliseconds.
    pub histogram: Histogram,
    /// All steps in blocks of 1, 2, 4, ... steps: at most some hundred.
    pub series: Vec<StepBlock>,
}

/// The loss of `--target-loss`, and when it was reached.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TargetRecord {
    /// Nats per token.
    pub nats: f64,
    /// Whether it is a held-out loss, and not the loss of a step.
    pub held_out: bool,
    /// The first step that reached it; `null` if none did.
    pub step: Option<u64>,
    /// Wall time of all steps up to and with that one, evaluations and the saves between them
    /// included; starts, and steps that a later attempt repeated, are not.
    pub seconds: Option<f64>,
}

/// FLOPs of forward and backward per token: matmuls only, with logits, without embedding lookup.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FlopsPerToken {
    /// Attention counted over the lower triangle.
    pub causal: f64,
    /// Attention counted over all pairs.
    pub full: f64,
}

/// Where time went in the measured steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PhaseSummary {
    /// Sum over the measured steps.
    pub seconds: f64,
    /// Part of the wall time of the measured steps.
    pub share: f64,
    /// Median over the measured steps.
    pub median_ms: f64,
}

/// Rates over the measured steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Clocks {
    /// Over the time without checkpoints and evaluation.
    pub step: Rate,
    /// Over all time.
    pub wall: Rate,
}

impl Clocks {
    /// The name of [`step`](Self::step) in all that people read.
    pub const STEP_RATE: &str = "tokens/s (step clock)";
    /// The name of [`wall`](Self::wall).
    pub const WALL_RATE: &str = "tokens/s (wall clock)";
}

/// Tokens per second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Rate {
    /// All ranks together.
    pub total: f64,
    /// One rank.
    pub per_rank: f64,
}

/// Model FLOPs utilisation relative to the matmul rate measured in the run, without the time of
/// checkpoints and evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MfuMeasured {
    /// Attention counted causal.
    pub causal: f64,
    /// Attention counted full.
    pub full: f64,
    /// Matmul rate of one rank's device, FLOP/s.
    pub matmul_flops_per_second: f64,
}

/// Communication in the measured steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Collectives {
    /// Backend, as in `mpi`.
    pub backend: String,
    /// The library's own name and version.
    pub library: Option<String>,
    /// Smallest size of a gradient bucket: the segment that reaches it is the bucket's last.
    pub bucket_bytes: u64,
    /// Bytes of the buffers communicated per step, median.
    pub bytes_per_step: f64,
    /// Time per step in which gradients, or weights of a sharded optimizer, were in flight, hidden
    /// or not.
    pub total_ms: Distribution,
    /// Communication per step that compute waited for.
    pub exposed_ms: Distribution,
    /// Share of the total that was hidden behind computation; 0 without communication.
    pub hidden_share: f64,
}

/// One committed checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckpointSaved {
    /// Name of the tier that it was saved on.
    #[serde(default)]
    pub tier: String,
    /// Number of steps that it holds.
    pub step: u64,
    /// Bytes over all ranks.
    pub bytes: u64,
    /// Time in which the slowest rank has made its files durable.
    pub write_ns: u64,
    /// From the trigger to the moment when training knew of the commit.
    pub save_ns: u64,
    /// Time for which training was stopped.
    pub stall_ns: u64,
}

/// Checkpoints that were copied to a farther tier by the attempt that wrote the record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PromotedTo {
    /// Name of the tier.
    pub tier: String,
    /// How many were committed there.
    pub count: usize,
    /// Number of steps that the newest checkpoint on the tier holds.
    pub last_step: Option<u64>,
    /// Bytes per second while they were copied, over all ranks and all of them.
    pub bytes_per_second: Option<f64>,
    /// From when the copy of one began to its commit.
    pub copy_ms: Option<Distribution>,
    /// Tries of rank 0 that failed.
    pub failures: u64,
    /// Why the last one failed.
    pub last_error: Option<String>,
    /// How many did not get there because a newer one came first.
    pub dropped: u64,
}

/// Where checkpoints were kept by the attempt that wrote the record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TierRecord {
    /// Its name, as in `nvme`.
    pub name: String,
    /// The run's folder or URL on it.
    pub address: String,
    /// Kind of the file system, as rank 0 sees it; `null` for an object store, and if unknown.
    pub filesystem: Option<String>,
}

/// An interval between saves that was calculated, as of the end of the attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CadenceRecord {
    /// Name of the tier.
    pub tier: String,
    /// From one save to the next, by J. T. Daly's formula; not shorter than `durable_seconds`.
    pub interval_seconds: f64,
    /// For how long the last save stopped training.
    pub stall_seconds: f64,
    /// From its trigger until it was durable on the tier.
    pub durable_seconds: f64,
    /// Of the job.
    pub mean_seconds_between_failures: f64,
    /// Whether the configuration says so; else it is estimated.
    pub is_mean_given: bool,
}

/// What an attempt has saved.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Saves {
    /// Those that were committed.
    pub committed: Vec<CheckpointSaved>,
    /// How many of those for each reason.
    pub triggers: BTreeMap<Trigger, usize>,
    /// How many failed.
    pub failed: usize,
    /// How many were due while another one was being written, and so were not started.
    pub skipped: usize,
}

/// Checkpoints committed by the attempt that wrote the record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Checkpoints {
    /// The tier that most of them were saved on: rate and times are of those.
    #[serde(default)]
    pub tier: String,
    /// How many, on all tiers.
    pub count: usize,
    /// Number of steps that the last one holds.
    pub last_step: u64,
    /// Bytes of the last one over all ranks.
    pub bytes: u64,
    /// How many were due while another one was being written, and so were not started.
    #[serde(default)]
    pub skipped: usize,
    /// How many were not saved because of an error.
    #[serde(default)]
    pub failed: usize,
    /// How many were saved for each reason.
    #[serde(default)]
    pub triggers: BTreeMap<Trigger, usize>,
    /// Bytes per second while the slowest rank wrote, over those on `tier`.
    pub bytes_per_second: f64,
    /// From the trigger to the moment when training knew of the commit, of those on `tier`.
    pub save_ms: Distribution,
    /// Time for which training was stopped by one of those on `tier`.
    pub stall_ms: Distribution,
    /// The last of them.
    #[serde(default)]
    pub saved: Vec<CheckpointSaved>,
    /// Of tiers with `auto`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cadence: Vec<CadenceRecord>,
    /// Copies on farther tiers.
    #[serde(default)]
    pub promoted: Vec<PromotedTo>,
}

/// Where the time since the first start went, over all attempts: the parts add up to
/// `elapsed_seconds`.
///
/// The buckets are those of Google's ml-goodput-measurement.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Goodput {
    /// All attempts, each from the start of its process, and the time between them.
    pub elapsed_seconds: f64,
    /// Time in steps that were kept, without what follows.
    pub training_seconds: f64,
    /// `training_seconds` over `elapsed_seconds`.
    pub share: f64,
    /// Waiting for data, in steps that were kept.
    pub data_seconds: f64,
    /// Waiting for checkpoints, in steps that were kept.
    pub checkpoint_seconds: f64,
    /// Evaluation, in steps that were kept.
    pub evaluation_seconds: f64,
    /// Starts of attempts, until a state is to be restored.
    pub start_seconds: f64,
    /// Initialising and restoring the state.
    pub restore_seconds: f64,
    /// Steps that a later attempt repeated.
    pub repeated_seconds: f64,
    /// From the end of an attempt to the start of the next one's process; none where the clock went
    /// back.
    pub down_seconds: f64,
    /// The rest: parts of attempts that were killed, and ends.
    pub other_seconds: f64,
    /// Steps that had to be repeated because no checkpoint held them.
    pub lost_steps: u64,
}

/// BLAKE3 digests in hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Fingerprint {
    /// Over the bits of every loss, as little-endian binary64, in the order of steps.
    pub losses: String,
    /// Over the final weights; `null` when the run did not complete.
    pub weights: Option<String>,
    /// How the losses compare with golden ones; `null` where there are none.
    #[serde(default)]
    pub golden: Option<GoldenCheck>,
}

/// An unusual event, or a value that could not be determined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Anomaly {
    /// The step, if known.
    pub step: Option<u64>,
    /// The rank, if known.
    pub rank: Option<usize>,
    /// The message.
    pub text: String,
}
