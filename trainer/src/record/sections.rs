//! The sections of a record.

use serde::{Deserialize, Serialize};

use crate::phase::{Phase, PhaseTimes};
use crate::statistics::Distribution;

/// How far a run or an attempt came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// It goes on, or it was killed without being able to say so.
    Running,
    /// Every step was made.
    Complete,
    /// It was asked to stop, and can go on from a committed checkpoint.
    Stopped,
    /// It ended early.
    Failed,
    /// It ran, but its numbers must not be used.
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
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Reason {
    /// Rank that caused it.
    pub rank: Option<usize>,
    /// Host of that rank.
    pub host: Option<String>,
    /// Step in which it happened, from 1.
    pub step: Option<u64>,
    /// What that rank was doing.
    pub phase: Option<Phase>,
    /// The whole sentence.
    pub text: String,
}

/// What was computed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkloadRecord {
    /// Hash of everything that decides what is computed.
    pub id: String,
    /// Name of the preset or file.
    pub name: String,
    /// The hashed half of the configuration.
    pub config: serde_json::Value,
}

/// One rank: where it ran, and how fast.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankRecord {
    /// Its number, from 0.
    pub rank: usize,
    /// Name of its host.
    pub host: String,
    /// Its process on that host.
    pub pid: u32,
    /// Cores it is bound to; `null` when it is not bound.
    pub cores: Option<Vec<usize>>,
    /// Compute threads.
    pub threads: usize,
    /// Logical processors that the launcher may run on and no rank of the machine is bound to: the
    /// same number on every rank of a machine; 0 in records that were made before it was told.
    #[serde(default)]
    pub unused_cores: usize,
    /// Instruction set of our matmul in the precision of the run, as chosen at run time; `null`
    /// where the engine has a matmul of its own, and in records that were made before it was told.
    #[serde(default)]
    pub matmul_kernel: Option<String>,
    /// Peak of its memory by the plan, as the ranks of its node turned out to share memory or not;
    /// `null` in records that were made before it was told.
    #[serde(default)]
    pub planned_bytes: Option<u64>,
    /// Nanoseconds in each phase over all its steps; `null` before it ends.
    pub phases_ns: Option<PhaseTimes>,
}

/// Steps of a run on rank 0, without those that a resumed attempt made again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepsSummary {
    /// Number of the last step.
    pub completed: u64,
    /// Steps on file; fewer than `completed` only if a machine lost what it wrote.
    pub recorded: u64,
    /// Steps that the times are made from: of the last attempt, without its first 2 of more than 4.
    pub measured: u64,
    /// Tokens of all recorded steps.
    pub tokens: u64,
    /// Loss of the first step, nats per token.
    pub loss_first: Option<f64>,
    /// Loss of the last step, nats per token.
    pub loss_last: Option<f64>,
    /// Last held-out loss, nats per token.
    pub evaluation_loss_last: Option<f64>,
    /// The loss that no model can go below, nats per token; `null` for data of people.
    pub entropy_floor: Option<f64>,
    /// FLOPs of training on one token.
    pub flops_per_token: Option<FlopsPerToken>,
    /// Milliseconds per step without checkpoints and evaluation.
    pub step_ms: Distribution,
    /// Milliseconds per step with everything.
    pub wall_ms: Distribution,
}

/// FLOPs of forward and backward per token: matmuls only, logits in, embedding lookup out.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FlopsPerToken {
    /// Attention counted over the lower triangle.
    pub causal: f64,
    /// Attention counted over all pairs.
    pub full: f64,
}

/// Where time went in the measured steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PhaseSummary {
    /// Sum over the measured steps.
    pub seconds: f64,
    /// Part of the wall time of the measured steps.
    pub share: f64,
    /// Median over the measured steps.
    pub median_ms: f64,
}

/// A rate by two clocks, both over the measured steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Clocks {
    /// Against time without checkpoints and evaluation.
    pub step: Rate,
    /// Against all time.
    pub wall: Rate,
}

/// Tokens per second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Of all ranks together.
    pub total: f64,
    /// Of one rank.
    pub per_rank: f64,
}

/// Model FLOPs utilisation against a rate measured in the run, by the `step` clock.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MfuMeasured {
    /// Attention counted causal.
    pub causal: f64,
    /// Attention counted full.
    pub full: f64,
    /// FLOP/s of the device's matmul, for one rank.
    pub matmul_flops_per_second: f64,
}

/// What the network did in the measured steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Collectives {
    /// Backend, as in `mpi`.
    pub backend: String,
    /// What the library says it is.
    pub library: Option<String>,
    /// Smallest size of a gradient bucket: it closes with the segment that reaches it.
    pub bucket_bytes: u64,
    /// Bytes of the buffers communicated per step, median.
    pub bytes_per_step: f64,
    /// Time per step in which gradients, or weights of a sharded optimizer, were under way, hidden
    /// or not.
    pub total_ms: Distribution,
    /// Communication per step that compute waited for.
    pub exposed_ms: Distribution,
    /// Part of that time that computing covered; 0 without communication.
    pub hidden_share: f64,
}

/// What one pair of ranks talks over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transport {
    /// One rank.
    pub from: usize,
    /// The other.
    pub to: usize,
    /// As the library names it.
    pub name: String,
}

/// One committed checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointSaved {
    /// Steps that it holds.
    pub step: u64,
    /// Bytes over all ranks.
    pub bytes: u64,
    /// From the trigger to the commit.
    pub save_ns: u64,
    /// Time that training stood still for it.
    pub stall_ns: u64,
}

/// Checkpoints committed by the attempt that wrote the record.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Checkpoints {
    /// How many.
    pub count: usize,
    /// Steps that the last one holds.
    pub last_step: u64,
    /// Bytes of the last one over all ranks.
    pub bytes: u64,
    /// Bytes per second from trigger to commit, over all of them.
    pub bytes_per_second: f64,
    /// From trigger to commit.
    pub save_ms: Distribution,
    /// Time that training stood still for one.
    pub stall_ms: Distribution,
}

/// How much of the time since the first start became training that counts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Goodput {
    /// From the start of the first attempt to the end of the last.
    pub elapsed_seconds: f64,
    /// Time in steps that count, without checkpoints and evaluation.
    pub training_seconds: f64,
    /// The second of these over the first.
    pub share: f64,
    /// Steps that were made and lost, because no checkpoint held them.
    pub lost_steps: u64,
}

/// BLAKE3 digests in hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// Over the bits of every loss, as little-endian binary64, in the order of steps.
    pub losses: String,
    /// Over the final weights; `null` when the run did not get there.
    pub weights: Option<String>,
}

/// Something odd, or something that could not be known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anomaly {
    /// Where that is known, the step.
    pub step: Option<u64>,
    /// Where that is known, the rank.
    pub rank: Option<usize>,
    /// The whole sentence.
    pub text: String,
}
