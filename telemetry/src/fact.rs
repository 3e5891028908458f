//! Events that only the record needs: what a run is, and what it has measured at its end.

use std::sync::Arc;

use record::hardware::RankHardware;
use record::{
    Checkpoints, Environment, FlopsPerToken, JobRecord, NodeGroup, PodList, RankRecord, Reason,
    Recovery, Sniffed, Status, TierRecord, Transport, WorkloadRecord,
};
use serde_json::Value;

/// Something that belongs in the record of a run.
#[derive(Debug, Clone)]
pub enum Fact {
    /// An attempt begins, before anything of it can fail.
    Begun(Box<Begun>),
    /// The state of the attempt's first step is there.
    Resumed(Resumed),
    /// Weights that the run starts with were imported from a folder.
    Imported(Value),
    /// Status of the job's pods.
    Pods(JobPods),
    /// A checkpoint with so many steps is committed.
    Committed(u64),
    /// How the ranks are connected.
    Transports(Vec<Transport>),
    /// Rates of all ranks at the same work, in their order.
    Sniffed(Vec<Sniffed>),
    /// Best matmul rate of rank 0, in FLOP/s.
    MatmulRate(f64),
    /// All ranks with their times, at the end of an attempt.
    Ranks(Vec<RankRecord>),
    /// Hardware of all ranks, at the end of an attempt.
    Hardware(Vec<RankHardware>),
    /// Digest of the final weights.
    Weights(blake3::Hash),
    /// Checkpoints of the attempt, at its end.
    Saves(Saves),
    /// The attempt ended.
    Ended(Ended),
}

/// An attempt at its start.
#[derive(Debug, Clone)]
pub struct Begun {
    /// Its number, from 1.
    pub attempt: u32,
    /// What is computed.
    pub workload: WorkloadRecord,
    /// Settings outside of the workload.
    pub run: Value,
    /// Machine and software of rank 0.
    pub environment: Environment,
    /// All ranks.
    pub ranks: Vec<RankRecord>,
    /// Nodes, those that are alike together.
    pub nodes: Vec<NodeGroup>,
    /// The job of a cluster that it belongs to.
    pub job: Option<JobRecord>,
    /// Status of the job's pods, where it is known.
    pub pods: Option<JobPods>,
    /// Faults that are injected, as on the command line.
    pub injected: Vec<String>,
    /// FLOPs of training on one token.
    pub flops_per_token: FlopsPerToken,
    /// Published peak of a rank's device, in FLOP/s.
    pub peak_flops_per_second: Option<f64>,
    /// Size of a bucket of gradients.
    pub bucket_bytes: u64,
    /// Price of a node for an hour.
    pub price_per_node_hour: Option<f64>,
}

/// Pods, with those of a job among them.
#[derive(Debug, Clone)]
pub struct JobPods {
    /// Name of the job.
    pub job: String,
    /// Status of the pods.
    pub pods: Arc<PodList>,
}

/// The state that an attempt starts from.
#[derive(Debug, Clone)]
pub struct Resumed {
    /// Number of steps in it.
    pub step: u64,
    /// How it was restored; `None` without a checkpoint.
    pub recovery: Option<Recovery>,
    /// Smallest mean loss that any model can reach on the data, in nats.
    pub entropy_floor: Option<f64>,
}

/// Checkpoints of an attempt.
#[derive(Debug, Clone)]
pub struct Saves {
    /// Where they were kept, the nearest first.
    pub tiers: Vec<TierRecord>,
    /// Their figures; `None` without any.
    pub figures: Option<Checkpoints>,
}

/// The end of an attempt.
#[derive(Debug, Clone)]
pub struct Ended {
    /// Number of the attempt.
    pub attempt: u32,
    /// Its final state.
    pub status: Status,
    /// Exit code of this process.
    pub exit_code: u8,
    /// Why it did not complete.
    pub reason: Option<Reason>,
    /// Last completed step.
    pub last_step: u64,
    /// Communication of the ranks; `None` for a single rank, and where it never began.
    pub communication: Option<Communication>,
    /// Whether a newer attempt has claimed the checkpoints.
    pub is_fenced: bool,
}

/// How ranks communicate.
#[derive(Debug, Clone)]
pub struct Communication {
    /// Name of the backend.
    pub backend: String,
    /// Its library.
    pub library: Option<String>,
}

impl Ended {
    /// Whether the attempt failed.
    pub(crate) fn is_failure(&self) -> bool {
        matches!(self.status, Status::Failed | Status::Void)
    }
}
