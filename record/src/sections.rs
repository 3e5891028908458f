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
use crate::straggler::{CalibrationRates, Straggler};
use crate::traffic::DimensionTraffic;
use crate::trigger::Trigger;

/// State of a run or an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Running, or killed before it could record its end.
    Running,
    /// All steps are done.
    Complete,
    /// Stopped on request; it can be resumed from a committed checkpoint.
    Stopped,
    /// Ended with an error.
    Failed,
    /// Void: its figures must not be used.
    Void,
}

impl Status {
    /// Name in files.
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

/// Reason why a run did not complete.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Reason {
    /// Rank that caused it.
    pub rank: Option<usize>,
    /// Host of that rank.
    pub host: Option<String>,
    /// Step in which it happened, from 1.
    pub step: Option<u64>,
    /// Activity of that rank at that time.
    pub phase: Option<Phase>,
    /// The error message.
    pub text: String,
}

impl Reason {
    /// Adds a rank's own account to this reason.
    #[must_use]
    pub fn merged_with(self, said: Self) -> Self {
        let parts = [self.text, said.text].into_iter().filter(|text| !text.is_empty());
        Self {
            rank: self.rank.or(said.rank),
            host: self.host.or(said.host),
            text: parts.collect::<Vec<_>>().join("; "),
            ..said
        }
    }
}

/// Workload that was computed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkloadRecord {
    /// Hash of everything that determines the computation.
    pub id: String,
    /// Name of the preset or file.
    pub name: String,
    /// The half of the configuration that is hashed into the id.
    pub config: serde_json::Value,
}

/// Place of a rank in the dimensions of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MeshPlace {
    /// Number of its group among those that each hold a whole model.
    pub data: usize,
    /// Its number in the group.
    pub shard: usize,
}

impl std::fmt::Display for MeshPlace {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { data, shard } = self;
        write!(formatter, "data {data}, shard {shard}")
    }
}

/// Numbers of ranks along the dimensions of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeshSizes {
    /// Groups that each hold a whole model.
    pub data: usize,
    /// Ranks of each.
    pub shard: usize,
}

impl MeshSizes {
    /// Returns the sizes of the dimensions of these ranks; `None` where there are ranks in one of
    /// them only.
    pub fn of(ranks: &[RankRecord]) -> Option<Self> {
        let places = ranks.iter().filter_map(|rank| rank.mesh);
        let sizes =
            places.map(|MeshPlace { data, shard }| Self { data: data + 1, shard: shard + 1 });
        sizes.reduce(|a, b| Self { data: a.data.max(b.data), shard: a.shard.max(b.shard) })
    }
}

/// One rank: its place and its speed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RankRecord {
    /// Number of the rank, from 0.
    pub rank: usize,
    /// Name of the host; in a pod, the pod's name.
    pub host: String,
    /// Name of the node that runs the pod, if `NODE_NAME` is set.
    #[serde(default)]
    pub node: Option<String>,
    /// Place in the dimensions of `[parallel]`; `null` where there are ranks in one of them only.
    #[serde(default)]
    pub mesh: Option<MeshPlace>,
    /// Process id on that host.
    pub pid: u32,
    /// Cores it is bound to; `null` if it is not bound.
    pub cores: Option<Vec<usize>>,
    /// Number of compute threads.
    pub threads: usize,
    /// Number of logical processors that are available to the launcher and that no rank of the
    /// machine is bound to: equal on every rank of a machine.
    pub unused_cores: usize,
    /// Instruction set of our matmul in the precision of the run, as chosen at run time; `null`
    /// where the engine has a matmul of its own.
    pub matmul_kernel: Option<String>,
    /// GPU that it computes on; `null` if the processor computes.
    pub device: Option<DeviceProperties>,
    /// NIC to other nodes: as logged by NCCL, else the active RDMA port that is nearest to its GPU
    /// by PCIe; without a GPU, the network interface that carries MPI. `null` if the system does
    /// not identify it without doubt, and on CPUs of a single node.
    #[serde(default)]
    pub nic: Option<String>,
    /// NUMA node of that GPU; `null` without a GPU, and if the system does not report it.
    pub numa: Option<NumaRecord>,
    /// Planned peak memory of the host, which depends on whether the ranks of its node share
    /// memory.
    pub planned_bytes: u64,
    /// Nanoseconds in each phase over all its steps; `null` until the attempt ends.
    pub phases_ns: Option<PhaseTimes>,
    /// Buckets by operation and size; empty on a single rank, in jobs of more than 256 ranks, and
    /// until the attempt ends.
    #[serde(default)]
    pub buckets: Vec<BucketRecord>,
    /// Own time in the attempt's steps; `null` until the attempt ends.
    pub times: Option<OwnTimes>,
    /// Rates at work that is equal on all ranks, after the first step; `null` on a single rank, and
    /// if not measured.
    #[serde(default)]
    pub sniffed: Option<CalibrationRates>,
    /// Last time that the attempt found it slower than the other ranks; `null` if it never did.
    #[serde(default)]
    pub straggler: Option<Straggler>,
    /// Summary of its GPU; `null` without a GPU, without data from NVML, and until the attempt
    /// ends. For ranks other than 0 also `null` if the attempt failed.
    #[serde(default)]
    pub gpu: Option<HardwareSummary>,
}

impl RankRecord {
    /// Names the rank with its place in the dimensions, as in `rank 9 (data 1, shard 1)`.
    pub fn name(&self) -> String {
        let place = self.mesh.map_or(String::new(), |place| format!(" ({place})"));
        format!("rank {}{place}", self.rank)
    }

    /// Describes the rank with its place, as in `rank 9 (job-worker-1 on node-b, data 1, shard 1,
    /// local rank 1, NVIDIA H100 0000:17:00.0, NIC mlx5_0:1)`.
    pub fn location(&self, ranks: &[Self]) -> String {
        let Self { rank, host, node, mesh, device, nic, .. } = self;
        let local_rank = ranks[..*rank].iter().filter(|other| other.host == *host).count();
        let device = device
            .as_ref()
            .map_or(String::new(), |device| format!(", {} {}", device.name, device.pci_bus_id));
        let nic = nic.as_ref().map_or(String::new(), |nic| format!(", NIC {nic}"));
        let node = node.as_ref().map_or(String::new(), |node| format!(" on {node}"));
        let mesh = mesh.map_or(String::new(), |place| format!(", {place}"));
        format!("rank {rank} ({host}{node}{mesh}, local rank {local_rank}{device}{nic})")
    }
}

/// A node during an attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HostRecord {
    /// Name of the host.
    pub host: String,
    /// Summary of its processors, memory, network and disks.
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
    /// True if the rank's threads run on cores of that node only.
    pub is_local: bool,
}

/// Steps of a run on rank 0, without those that a later attempt repeated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepsSummary {
    /// Number of the last step.
    pub completed: u64,
    /// Number of steps in the file; fewer than `completed` only if a machine lost written data.
    pub recorded: u64,
    /// Number of warm-up steps of the last attempt, which are not measured.
    pub warmup: u64,
    /// Number of measured steps: those of the last attempt after its warm-up.
    pub measured: u64,
    /// True if step times had settled by then: the warm-up was found by the rule MSER-5, and the
    /// medians of both halves of the measured steps differ by less than 5 %.
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
    /// Histogram of step times, in milliseconds.
    pub histogram: Histogram,
    /// All steps in blocks of 1, 2, 4, ... steps: at most a few hundred blocks.
    pub series: Vec<StepBlock>,
}

/// Loss of `--target-loss`, and the step that reached it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TargetRecord {
    /// Target loss, nats per token.
    pub nats: f64,
    /// True for a held-out loss, false for the loss of a step.
    pub held_out: bool,
    /// First step that reached it; `null` if none did.
    pub step: Option<u64>,
    /// Wall time of all steps up to and including that one, with evaluations and the saves between
    /// them, without starts and steps that a later attempt repeated.
    pub seconds: Option<f64>,
}

/// FLOPs of forward and backward per token: matmuls only, with logits, without embedding lookup.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FlopsPerToken {
    /// FLOPs with attention counted over the lower triangle.
    pub causal: f64,
    /// FLOPs with attention counted over all pairs.
    pub full: f64,
}

/// Time of a phase in the measured steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PhaseSummary {
    /// Seconds, the sum over the measured steps.
    pub seconds: f64,
    /// Part of the wall time of the measured steps.
    pub share: f64,
    /// Median over the measured steps.
    pub median_ms: f64,
}

/// Rates over the measured steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Clocks {
    /// Rate over the time without checkpoints and evaluation.
    pub step: Rate,
    /// Rate over all time.
    pub wall: Rate,
}

impl Clocks {
    /// Name of [`step`](Self::step) in text for people.
    pub const STEP_RATE: &str = "tokens/s (step clock)";
    /// Name of [`wall`](Self::wall) in text for people.
    pub const WALL_RATE: &str = "tokens/s (wall clock)";
}

/// Tokens per second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Rate {
    /// Rate of all ranks together.
    pub total: f64,
    /// Rate of one rank.
    pub per_rank: f64,
}

/// Model FLOPs utilisation relative to the matmul rate measured in the run, without the time of
/// checkpoints and evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MfuMeasured {
    /// Utilisation with attention counted causal.
    pub causal: f64,
    /// Utilisation with attention counted full.
    pub full: f64,
    /// Matmul rate of one rank's device, FLOP/s.
    pub matmul_flops_per_second: f64,
}

/// Communication in the measured steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Collectives {
    /// Backend, as in `mpi`.
    pub backend: String,
    /// Name and version that the library reports.
    pub library: Option<String>,
    /// Smallest size of a gradient bucket: the segment that reaches it is the bucket's last.
    pub bucket_bytes: u64,
    /// Bytes of the buffers communicated per step, median.
    pub bytes_per_step: f64,
    /// Time per step in which gradients, or weights of a sharded optimizer, were in flight, hidden
    /// or not.
    pub total_ms: Distribution,
    /// Communication time per step that compute waited for.
    pub exposed_ms: Distribution,
    /// Share of the total that was hidden behind computation; 0 without communication.
    pub hidden_share: f64,
    /// Traffic over each dimension of ranks, the mean of all ranks; empty if the attempt failed.
    #[serde(default)]
    pub traffic: Vec<DimensionTraffic>,
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
    /// Time in which the slowest rank made its files durable.
    pub write_ns: u64,
    /// Time from the trigger until training learned of the commit.
    pub save_ns: u64,
    /// Time for which training was stopped.
    pub stall_ns: u64,
}

/// Checkpoints that were copied to a farther tier by the attempt that wrote the record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PromotedTo {
    /// Name of the tier.
    pub tier: String,
    /// Number of checkpoints committed there.
    pub count: usize,
    /// Number of steps that the newest checkpoint on the tier holds.
    pub last_step: Option<u64>,
    /// Copy rate in bytes per second, over all ranks and checkpoints.
    pub bytes_per_second: Option<f64>,
    /// Time from the start of a checkpoint's copy to its commit.
    pub copy_ms: Option<Distribution>,
    /// Number of failed tries of rank 0.
    pub failures: u64,
    /// Error of the last failed try.
    pub last_error: Option<String>,
    /// Number of checkpoints that were superseded by a newer one before they were copied.
    pub dropped: u64,
}

/// Tier on which the attempt that wrote the record kept checkpoints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TierRecord {
    /// Name of the tier, as in `nvme`.
    pub name: String,
    /// Folder or URL of the run on the tier.
    pub address: String,
    /// Kind of the file system, as rank 0 sees it; `null` for an object store, and if unknown.
    pub filesystem: Option<String>,
    /// True if each node keeps a copy of the files of another node's ranks.
    #[serde(default)]
    pub has_partner_copies: bool,
}

/// Calculated interval between saves, as of the end of the attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CadenceRecord {
    /// Name of the tier.
    pub tier: String,
    /// Time from one save to the next, by J. T. Daly's formula; not shorter than `durable_seconds`.
    pub interval_seconds: f64,
    /// Time for which the last save stopped training.
    pub stall_seconds: f64,
    /// Time from the trigger of that save until it was durable on the tier.
    pub durable_seconds: f64,
    /// Mean time between failures of the job.
    pub mean_seconds_between_failures: f64,
    /// True if the configuration sets that mean; else it is estimated.
    pub is_mean_given: bool,
}

/// Saves of an attempt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Saves {
    /// Committed checkpoints.
    pub committed: Vec<CheckpointSaved>,
    /// Number of committed checkpoints by trigger.
    pub triggers: BTreeMap<Trigger, usize>,
    /// Number of failed saves.
    pub failed: usize,
    /// Number of saves that were due while another one was being written, and so were not started.
    pub skipped: usize,
}

/// Checkpoints committed by the attempt that wrote the record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Checkpoints {
    /// Tier that most checkpoints were saved on; rate and times are those of its checkpoints.
    #[serde(default)]
    pub tier: String,
    /// Number of checkpoints, on all tiers.
    pub count: usize,
    /// Number of steps that the last checkpoint holds.
    pub last_step: u64,
    /// Bytes of the last checkpoint over all ranks.
    pub bytes: u64,
    /// Number of saves that were due while another one was being written, and so were not started.
    #[serde(default)]
    pub skipped: usize,
    /// Number of checkpoints that were not saved because of an error.
    #[serde(default)]
    pub failed: usize,
    /// Number of checkpoints by trigger.
    #[serde(default)]
    pub triggers: BTreeMap<Trigger, usize>,
    /// Bytes per second while the slowest rank wrote, over the checkpoints on `tier`.
    pub bytes_per_second: f64,
    /// Time from the trigger until training learned of the commit, for checkpoints on `tier`.
    pub save_ms: Distribution,
    /// Time for which a checkpoint on `tier` stopped training.
    pub stall_ms: Distribution,
    /// Last committed checkpoints.
    #[serde(default)]
    pub saved: Vec<CheckpointSaved>,
    /// Calculated intervals of tiers with `auto`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cadence: Vec<CadenceRecord>,
    /// Copies on farther tiers.
    #[serde(default)]
    pub promoted: Vec<PromotedTo>,
}

/// Breakdown of the time since the first start, over all attempts: the parts add up to
/// `elapsed_seconds`.
///
/// The buckets are those of Google's ml-goodput-measurement.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Goodput {
    /// Time of all attempts, each from the start of its process, and the time between them.
    pub elapsed_seconds: f64,
    /// Time in steps that were kept, without the parts below.
    pub training_seconds: f64,
    /// `training_seconds` over `elapsed_seconds`.
    pub share: f64,
    /// Time waiting for data, in steps that were kept.
    pub data_seconds: f64,
    /// Time waiting for checkpoints, in steps that were kept.
    pub checkpoint_seconds: f64,
    /// Time of evaluation, in steps that were kept.
    pub evaluation_seconds: f64,
    /// Time of the starts of attempts, until the state is initialised or restored.
    pub start_seconds: f64,
    /// Time of initialising and restoring the state.
    pub restore_seconds: f64,
    /// Time of steps that a later attempt repeated.
    pub repeated_seconds: f64,
    /// Time from the end of an attempt to the start of the next one's process; 0 if the clock went
    /// back.
    pub down_seconds: f64,
    /// Remaining time: parts of attempts that were killed, and ends.
    pub other_seconds: f64,
    /// Number of steps that had to be repeated because no checkpoint held them.
    pub lost_steps: u64,
}

/// Digests in hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Fingerprint {
    /// BLAKE3 of the bits of every loss, as little-endian binary64, in the order of steps.
    pub losses: String,
    /// `v2:` and a sum over all final weights, which no layout of ranks changes; `null` if the run
    /// did not complete. A digest without `v2:`, of an earlier version, compares with none of
    /// these.
    pub weights: Option<String>,
    /// Comparison of the losses with golden ones; `null` without golden losses.
    #[serde(default)]
    pub golden: Option<GoldenCheck>,
    /// Parts of the key in which the run differs from the nearest golden losses of its workload;
    /// `null` where the losses are compared, and without golden losses of the workload.
    #[serde(default)]
    pub not_comparable: Option<String>,
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
