//! `record.json`, the result of a run.
//!
//! The record is written when an attempt starts and when it ends, also when it fails, and replaced
//! atomically. Unknown values are `null`.

use std::fs;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::attempt::{Attempt, AttemptEnd};
use crate::corruption::CorruptionRecord;
use crate::energy::{Cost, Energy};
use crate::environment::Environment;
use crate::error::Error;
use crate::files::{IoError, regular_file};
use crate::job::JobRecord;
use crate::limits::RECORD_BYTES_MAX;
use crate::machine::NodeGroup;
use crate::measure::FlopsPerSecond;
use crate::network::Transport;
use crate::phase::ByPhase;
use crate::profile::ProfileRecord;
use crate::sections::{
    Anomaly, Checkpoints, Clocks, Collectives, Fingerprint, Goodput, HostRecord, MfuMeasured,
    PhaseSummary, RankRecord, Reason, Status, StepsSummary, TargetRecord, TierRecord,
    WorkloadRecord,
};
use crate::tuned_products::TunedProducts;
use crate::unusable::{MEASURED_STEPS_MIN, Unusable};
use crate::{former_settings, json, seal};

/// Version of the record's schema. A reader refuses other versions.
pub const SCHEMA: u32 = 4;

/// File in a run's folder that identifies the run.
pub const IDENTITY: &str = "identity.json";

/// Path of a record, with the record or the error that prevents reading it.
pub type LoadedRecord<E> = (PathBuf, Result<Record, E>);

/// The record of a run. The order of the fields is the order in the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Record {
    /// Schema version: [`SCHEMA`] of the program that wrote it.
    pub schema: u32,
    /// State of the run.
    pub status: Status,
    /// Exit code of rank 0's process; `null` while it runs.
    pub exit_code: Option<u8>,
    /// Reason why it did not complete; `null` if it did, and while it runs.
    pub reason: Option<Reason>,
    /// Workload that was computed.
    pub workload: WorkloadRecord,
    /// The settings outside the workload: `[run] [parallel] [collectives] [checkpoint]
    /// [telemetry]`; and `initial_weights`, their source if they were not initialised from the
    /// seed.
    #[serde(deserialize_with = "former_settings::deserialize")]
    pub run: serde_json::Value,
    /// Cluster job of the run; `null` outside a cluster.
    #[serde(default)]
    pub job: Option<JobRecord>,
    /// Machine and software of rank 0.
    pub environment: Environment,
    /// Matrix products of the last attempt that were tuned; `null` without `run.tune_matmul`, and
    /// where ranks cannot use the same algorithms.
    #[serde(default)]
    pub tuned_products: Option<TunedProducts>,
    /// Nodes of the last attempt, in groups that are alike, the largest group first.
    #[serde(default)]
    pub nodes: Vec<NodeGroup>,
    /// Ranks of the last attempt, in order.
    pub ranks: Vec<RankRecord>,
    /// All attempts of the run, in order.
    pub attempts: Vec<Attempt>,
    /// Times and losses of all steps, on rank 0, without those that a later attempt repeated;
    /// `null` before the first step.
    pub steps: Option<StepsSummary>,
    /// Target loss of the last attempt; `null` without one, and while it runs.
    pub target_loss: Option<TargetRecord>,
    /// Breakdown of the time of measured steps on rank 0; the shares add up to 1.
    pub phases: Option<ByPhase<PhaseSummary>>,
    /// Tokens per second over the measured steps, without and with checkpoints and evaluation.
    pub tokens_per_second: Option<Clocks>,
    /// FLOP/s of the model on one rank's device over the measured steps, without checkpoints and
    /// evaluation.
    #[serde(default)]
    pub rank_flops_per_second: Option<FlopsPerSecond>,
    /// Share of the device's published peak, attention counted causal; `null` without a published
    /// peak, as on every CPU.
    pub mfu_causal: Option<f64>,
    /// Share of the device's published peak, attention counted full.
    pub mfu_full: Option<f64>,
    /// Share of the matmul rate measured on the same device in the same run.
    pub mfu_measured: Option<MfuMeasured>,
    /// Profile of a step of the last attempt; `null` without `--profile-step`.
    #[serde(default)]
    pub profile: Option<ProfileRecord>,
    /// Communication on rank 0; `null` for a single rank.
    pub collectives: Option<Collectives>,
    /// Transports of NCCL between ranks, from its log after the first step of the last attempt;
    /// `null` if NCCL was not used or its log names no pair.
    pub transports: Option<Vec<Transport>>,
    /// Tiers on which the last attempt kept checkpoints, the nearest first.
    #[serde(default)]
    pub tiers: Vec<TierRecord>,
    /// Checkpoints committed by the last attempt.
    pub checkpoints: Option<Checkpoints>,
    /// Hardware summary of each node in the last attempt; only that of rank 0 if the attempt
    /// failed.
    #[serde(default)]
    pub hosts: Vec<HostRecord>,
    /// Energy of the last attempt; `null` if nothing reports it.
    #[serde(default)]
    pub energy: Option<Energy>,
    /// Cost of training; `null` without `telemetry.price_per_node_hour`.
    #[serde(default)]
    pub cost: Option<Cost>,
    /// Share of the time since the first start that was spent in steps that were kept.
    pub goodput: Option<Goodput>,
    /// Digests of losses and weights: equal in runs that computed the same bits.
    pub fingerprint: Option<Fingerprint>,
    /// Checks of the last attempt for silent data corruption; `null` before its first step.
    #[serde(default)]
    pub sdc: Option<CorruptionRecord>,
    /// Unusual events, and values that could not be determined.
    pub anomalies: Vec<Anomaly>,
    /// BLAKE3 digest of all other fields, which reveals a change of the file; `null` in records of
    /// versions without it.
    #[serde(default)]
    pub digest: Option<String>,
}

impl Record {
    /// Creates the record of a run that starts: nothing is measured yet.
    pub fn running(
        workload: WorkloadRecord,
        run: serde_json::Value,
        environment: Environment,
        ranks: Vec<RankRecord>,
        attempts: Vec<Attempt>,
    ) -> Self {
        Self {
            schema: SCHEMA,
            status: Status::Running,
            exit_code: None,
            reason: None,
            workload,
            run,
            job: None,
            environment,
            tuned_products: None,
            nodes: Vec::new(),
            ranks,
            attempts,
            steps: None,
            target_loss: None,
            phases: None,
            tokens_per_second: None,
            rank_flops_per_second: None,
            mfu_causal: None,
            mfu_full: None,
            mfu_measured: None,
            profile: None,
            collectives: None,
            transports: None,
            tiers: Vec::new(),
            checkpoints: None,
            hosts: Vec::new(),
            energy: None,
            cost: None,
            goodput: None,
            fingerprint: None,
            sdc: None,
            anomalies: Vec::new(),
            digest: None,
        }
    }

    /// Records how the run and its last attempt ended, and writes the attempt's file. Call
    /// [`measure`](Self::measure) and [`write`](Self::write) after it.
    ///
    /// # Errors
    /// [`Error::Io`] when the attempt cannot be written.
    pub fn end(&mut self, dir: &Path, end: AttemptEnd) -> Result<(), Error> {
        self.status = end.status;
        self.exit_code = Some(end.exit_code);
        self.reason.clone_from(&end.reason);
        match self.attempts.last_mut() {
            Some(attempt) => attempt.end(dir, end),
            None => Ok(()),
        }
    }

    /// The JSON schema of `record.json`.
    pub fn json_schema() -> serde_json::Value {
        schemars::schema_for!(Self).to_value()
    }

    /// Returns whether other records can be compared with this one.
    pub fn is_measured(&self) -> bool {
        self.unusable().is_none()
    }

    /// Returns why the figures cannot be compared with those of other records; `None` if they can
    /// be. Injected faults are reported only without another reason.
    pub fn unusable(&self) -> Option<Unusable> {
        if self.status != Status::Complete {
            return Some(Unusable::Incomplete(self.status));
        }
        if let Some(step) = self.target_loss.and_then(|target| target.step) {
            return Some(Unusable::EndedAtTarget(step));
        }
        if self.ranks.is_empty() {
            return Some(Unusable::NoRanks);
        }
        let measured = self.steps.as_ref().map_or(0, |steps| steps.measured);
        if measured < MEASURED_STEPS_MIN || self.tokens_per_second.is_none() {
            return Some(Unusable::FewSteps(measured));
        }
        let injected: Vec<String> = self.injected().map(str::to_owned).collect();
        if !injected.is_empty() {
            return Some(Unusable::Injected(injected));
        }
        let findings = self.sdc.as_ref().map_or(0, |sdc| sdc.findings.len());
        (findings > 0).then_some(Unusable::Corrupted(findings))
    }

    /// Name of a rank of the last attempt, with its place in the dimensions if it has one.
    pub fn rank_name(&self, rank: usize) -> String {
        let known = self.ranks.iter().find(|known| known.rank == rank);
        known.map_or_else(|| format!("rank {rank}"), RankRecord::name)
    }

    /// Faults that were injected in any of its attempts, as on the command line.
    pub fn injected(&self) -> impl Iterator<Item = &str> {
        self.attempts.iter().flat_map(|attempt| &attempt.injected).map(String::as_str)
    }

    /// Start of the first attempt, Unix time in milliseconds; 0 without attempts.
    pub fn started_unix_ms(&self) -> u64 {
        self.attempts.first().map_or(0, |attempt| attempt.started_unix_ms)
    }

    /// Tokens per second of all ranks by the step clock; `None` for a run that is not complete or
    /// has injected faults, as its figures are no result.
    pub fn result_rate(&self) -> Option<f64> {
        let is_result = self.status == Status::Complete && self.injected().next().is_none();
        self.tokens_per_second.filter(|_| is_result).map(|rates| rates.step.total)
    }

    /// Path of the record in a run's folder.
    pub fn path(dir: &Path) -> PathBuf {
        dir.join("record.json")
    }

    /// Replaces the record in `dir`, durably; after an error the old one is unchanged.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&self, dir: &Path) -> Result<(), Error> {
        json::write(&Self::path(dir), &self.sealed())
    }

    /// Returns the record with its digest, as it is written.
    pub fn sealed(&self) -> Self {
        let record = self.clone();
        Self { digest: Some(seal::digest(self)), ..record }
    }

    /// Reads the record in `dir`.
    ///
    /// # Errors
    /// [`Error::NoRecord`], [`Error::Schema`] when it is of another version,
    /// [`Error::Malformed`] when it is damaged, [`Error::Changed`] when it was edited,
    /// [`Error::Io`].
    pub fn read(dir: &Path) -> Result<Self, Error> {
        Self::read_by(regular_file::read, &Self::path(dir))
    }

    /// Reads all records of a place, each with its path, in the order of names. A place is a file,
    /// the folder of a run, or a folder of such folders and files.
    ///
    /// # Errors
    /// Same errors as [`read`](Self::read); [`Error::NoRecord`] where there is none.
    pub fn read_all(place: &Path) -> Result<Vec<(PathBuf, Self)>, Error> {
        let each = Self::read_each(place)?.into_iter();
        each.map(|(path, record)| Ok((path, record?))).collect()
    }

    /// Reads all records of a place like [`read_all`](Self::read_all), with an error in place of
    /// each record that is missing or cannot be read.
    ///
    /// # Errors
    /// [`Error::NoRecord`] where there is none; [`Error::Io`] for a folder that cannot be listed.
    pub fn read_each(place: &Path) -> Result<Vec<LoadedRecord<Error>>, Error> {
        let of_run = Self::path(place);
        if place.is_file() || of_run.is_file() {
            let is_named = place.is_file();
            let path = if is_named { place.to_owned() } else { of_run };
            let read = if is_named { regular_file::read_named } else { regular_file::read };
            let record = Self::read_by(read, &path);
            return Ok(vec![(path, record)]);
        }
        if is_run(place) {
            return Err(Error::NoRecord { path: of_run });
        }
        let entries = fs::read_dir(place).map_err(|_| Error::NoRecord { path: of_run.clone() })?;
        let paths: Result<Vec<_>, _> = entries.map(|entry| entry.map(|it| it.path())).collect();
        let mut paths = paths.map_err(IoError::at(place, "list"))?;
        paths.sort();
        let is_json = |path: &PathBuf| path.extension().is_some_and(|found| found == "json");
        let records =
            paths.into_iter().filter(|path| is_run(path) || is_json(path) && path.is_file());
        let mut found = Vec::new();
        for path in records {
            let is_run = path.is_dir();
            let path = if is_run { Self::path(&path) } else { path };
            let read = if is_run { regular_file::read } else { regular_file::read_named };
            let record = Self::read_by(read, &path);
            found.push((path, record));
        }
        if found.is_empty() { Err(Error::NoRecord { path: of_run }) } else { Ok(found) }
    }

    /// Reads a record with `read`: that of a run's folder, or by `read_named` a file that a user
    /// has named, which may be a link.
    fn read_by(
        read: fn(&Path, u64) -> Result<Vec<u8>, IoError>,
        path: &Path,
    ) -> Result<Self, Error> {
        let bytes = read(path, RECORD_BYTES_MAX).map_err(|error| match error.source.kind() {
            std::io::ErrorKind::NotFound => Error::NoRecord { path: path.to_owned() },
            _ => error.into(),
        })?;
        Self::parse(path, &bytes)
    }

    /// Parses the record in a file with this content.
    ///
    /// # Errors
    /// [`Error::Schema`] when it is of another version, [`Error::Malformed`] when it is damaged,
    /// [`Error::Changed`] when it was edited.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self, Error> {
        let versioned: Versioned = json::parse(path, bytes, "a record with its schema")?;
        if versioned.schema != u64::from(SCHEMA) {
            let path = path.to_owned();
            return Err(Error::Schema { path, found: versioned.schema, supported: SCHEMA });
        }
        let record = json::parse(path, bytes, "a record of schema 4")?;
        seal::check(path, bytes)?;
        Ok(record)
    }
}

/// Warning about faults that were injected into runs; `None` without any.
pub fn injected_warning<'a>(faults: impl Iterator<Item = &'a str>) -> Option<String> {
    let faults: Vec<_> = faults.collect();
    (!faults.is_empty()).then(|| {
        let faults = faults.join(" ");
        format!("faults were injected, so the figures are not those of the machine: {faults}")
    })
}

/// Returns whether a folder is that of a run, including a run that ended before its record or has
/// lost it.
pub fn is_run(folder: &Path) -> bool {
    [Record::path(folder), folder.join(IDENTITY)].iter().any(|file| file.is_file())
}

/// The part of a record that all versions have in common.
#[derive(Deserialize)]
struct Versioned {
    schema: u64,
}
