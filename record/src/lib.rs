//! The result of a run, as files: `record.json`, `attempts/NNN.json` for each attempt, step files,
//! and the vocabulary that they share with everything that reads or writes them (phases,
//! statistics, exit codes, number formats).
//!
//! This crate depends on no other crate of the workspace. Types of the record that two crates need
//! are defined here.

pub mod anomalies;
mod attempt;
pub mod benchmark_file;
mod bucket;
mod compute;
mod corruption;
mod dead;
mod energy;
mod environment;
mod error;
mod error_file;
mod exit_code;
pub mod files;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
mod former_settings;
pub mod golden;
mod goodput;
mod groups;
pub mod hardware;
mod job;
mod json;
pub mod limits;
pub mod machine;
mod measure;
mod missing;
pub mod network;
mod order_of_run;
pub mod peaks;
pub mod phase;
pub mod pods;
mod profile;
mod program;
mod random;
mod record;
mod recovery;
pub mod seal;
mod sections;
mod sharded;
pub mod slow_ranks;
mod stall_file;
pub mod statistics;
pub mod steps;
mod straggler;
pub mod student;
mod sum_order;
pub mod text;
mod traffic;
mod trigger;
mod tuned_products;
mod unusable;
mod weights_digest;

pub use anomalies::{
    node_anomalies, rank_anomalies, transport_anomalies, transport_gaps, without_gdr,
};
pub use attempt::{Attempt, AttemptEnd, LaunchParts, PodTimes, StartParts, with_recorded_loss};
pub use bucket::BucketRecord;
pub use compute::Compute;
pub use corruption::{
    Corrupted, Corruption, CorruptionAction, CorruptionRecord, Opinions, Repeated,
};
pub use energy::{Cost, Energy, machines};
pub use environment::Environment;
pub use error::Error;
pub use error_file::ErrorFile;
pub use exit_code::ExitCode;
pub use groups::groups;
pub use job::JobRecord;
pub use json::write as write_json;
pub use machine::{NodeGroup, NodeReport, node_groups};
pub use measure::{FlopsPerSecond, Reference};
pub use network::{Transport, name_nics};
pub use pods::PodList;
pub use profile::{OpRecord, ProfileRecord, WeightShape};
pub use program::Program;
pub use random::Random;
pub use record::{IDENTITY, LoadedRecord, Record, SCHEMA, injected_warning, is_run};
pub use recovery::{Recovery, RecoverySource};
pub use sections::{
    Anomaly, CadenceRecord, CheckpointSaved, Checkpoints, Clocks, Collectives, Fingerprint,
    FlopsPerToken, Goodput, HostRecord, MeshPlace, MeshSizes, MfuMeasured, NumaRecord,
    PhaseSummary, PromotedTo, RankRecord, Rate, Reason, Saves, Status, StepsSummary, TargetRecord,
    TierRecord, WorkloadRecord,
};
pub use stall_file::{Position, StallFile};
pub use steps::{
    MeasuredSteps, OwnTimes, SteadyWatch, StepBlock, StepLine, StepReader, StepSample, StepSeries,
    TargetLoss, TargetReached, read_steps, steps_path, truncate_after,
};
pub use straggler::{Basis, CalibrationRates, Kind, Pattern, Straggler};
pub use sum_order::SumOrder;
pub use traffic::DimensionTraffic;
pub use trigger::Trigger;
pub use tuned_products::{TunedProducts, TuningSource};
pub use unusable::{MEASURED_STEPS_MIN, Unusable};
pub use weights_digest::WeightsDigest;

#[cfg(test)]
mod tests;
