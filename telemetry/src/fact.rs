//! Events that only the record needs: the description of a run, and its measurements at the end.

use std::sync::Arc;

use record::hardware::RankHardware;
use record::{
    CalibrationRates, Checkpoints, CorruptionRecord, DimensionTraffic, Environment, FlopsPerToken,
    JobRecord, NodeGroup, PodList, ProfileRecord, RankRecord, Reason, Recovery, Status, TierRecord,
    Transport, TunedProducts, WeightsDigest, WorkloadRecord,
};
use serde_json::Value;

/// A fact that belongs in the record of a run.
#[derive(Debug, Clone)]
pub enum Fact {
    /// An attempt begins, before anything of it can fail.
    Begun(Box<Begun>),
    /// The state of the attempt's first step is ready.
    Resumed(Resumed),
    /// Algorithms of matrix products were chosen by measurement.
    Tuned(TunedProducts),
    /// Weights that the run starts with were imported from a folder.
    Imported(Value),
    /// Status of the job's pods.
    Pods(JobPods),
    /// A checkpoint with this number of steps is committed.
    Committed(u64),
    /// Transports between the ranks.
    Transports(Vec<Transport>),
    /// Rates of all ranks at the same work, in the order of ranks.
    Calibration(Vec<Option<CalibrationRates>>),
    /// Best matmul rate of rank 0, in FLOP/s.
    MatmulRate(f64),
    /// Profile of a step on rank 0.
    Profile(Box<ProfileRecord>),
    /// All ranks with their times, at the end of an attempt.
    Ranks(Vec<RankRecord>),
    /// Traffic over each dimension of ranks, at the end of an attempt.
    Traffic(Vec<DimensionTraffic>),
    /// Hardware of all ranks, at the end of an attempt.
    Hardware(Vec<RankHardware>),
    /// Digest of the final weights.
    Weights(WeightsDigest),
    /// Checks for silent data corruption so far.
    Corruption(CorruptionRecord),
    /// Checkpoints of the attempt, at its end.
    Saves(Saves),
    /// The attempt ended.
    Ended(Ended),
}

/// An attempt at its start.
#[derive(Debug, Clone)]
pub struct Begun {
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Workload that is computed.
    pub workload: WorkloadRecord,
    /// Settings outside of the workload.
    pub run: Value,
    /// Machine and software of rank 0.
    pub environment: Environment,
    /// All ranks.
    pub ranks: Vec<RankRecord>,
    /// Nodes, in groups that are alike.
    pub nodes: Vec<NodeGroup>,
    /// Cluster job that the attempt belongs to.
    pub job: Option<JobRecord>,
    /// Status of the job's pods, if known.
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

/// Pods, including those of a job.
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
    /// Number of steps in the state.
    pub step: u64,
    /// Recovery of the state; `None` without a checkpoint.
    pub recovery: Option<Recovery>,
    /// Smallest mean loss that any model can reach on the data, in nats.
    pub entropy_floor: Option<f64>,
}

/// Checkpoints of an attempt.
#[derive(Debug, Clone)]
pub struct Saves {
    /// Tiers of the checkpoints, the nearest first.
    pub tiers: Vec<TierRecord>,
    /// Figures of the checkpoints; `None` without any.
    pub figures: Option<Checkpoints>,
}

/// The end of an attempt.
#[derive(Debug, Clone)]
pub struct Ended {
    /// Number of the attempt.
    pub attempt: u32,
    /// Final state of the attempt.
    pub status: Status,
    /// Exit code of this process.
    pub exit_code: u8,
    /// Reason why it did not complete.
    pub reason: Option<Reason>,
    /// Last completed step.
    pub last_step: u64,
    /// Communication of the ranks; `None` for a single rank, and if it never began.
    pub communication: Option<Communication>,
    /// True if a newer attempt has claimed the checkpoints.
    pub is_fenced: bool,
}

/// Communication between ranks.
#[derive(Debug, Clone)]
pub struct Communication {
    /// Name of the backend.
    pub backend: String,
    /// Library of the backend.
    pub library: Option<String>,
}

impl Ended {
    /// Returns whether the attempt failed.
    pub(crate) fn is_failure(&self) -> bool {
        matches!(self.status, Status::Failed | Status::Void)
    }
}
