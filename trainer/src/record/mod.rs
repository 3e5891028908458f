//! What a run leaves: `record.json`, and `attempts/NNN.json` for each of its starts.
//!
//! Written when an attempt starts and when it ends, also when it fails; always whole. What could
//! not be known is `null`.

pub(crate) mod atomic;
mod attempt;
mod environment;
mod error;
mod measure;
mod odd_ranks;
mod sections;
mod unknown;
mod word;

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use attempt::Attempt;
pub use environment::Environment;
pub use error::Error;
pub use measure::Reference;
pub(crate) use odd_ranks::odd_ranks;
pub use sections::{
    Anomaly, CheckpointSaved, Checkpoints, Clocks, Collectives, Fingerprint, FlopsPerToken,
    Goodput, MfuMeasured, PhaseSummary, RankRecord, Rate, Reason, Status, StepsSummary, Transport,
    WorkloadRecord,
};
pub use word::Word;

use crate::phase::ByPhase;

/// Version of the record's form. A reader refuses newer ones.
pub const SCHEMA: u32 = 1;

/// The record of a run. The order of the fields is the order in the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// [`SCHEMA`] of the program that wrote it.
    pub schema: u32,
    /// How far the run came.
    pub status: Status,
    /// Exit code of rank 0's process; `null` while it runs.
    pub exit_code: Option<u8>,
    /// Why it did not complete; `null` when there is nothing to explain.
    pub reason: Option<Reason>,
    /// What was computed.
    pub workload: WorkloadRecord,
    /// The settings outside the workload: `[run] [collectives] [checkpoint] [telemetry]`; and
    /// `initial_weights`, where they came from if not from the seed.
    pub run: serde_json::Value,
    /// The machine and the software of rank 0.
    pub environment: Environment,
    /// Every rank of the last attempt, in the order of ranks.
    pub ranks: Vec<RankRecord>,
    /// Every start of the run, in order.
    pub attempts: Vec<Attempt>,
    /// Times and losses of all steps that count, on rank 0; `null` before any step.
    pub steps: Option<StepsSummary>,
    /// Where the time of measured steps went on rank 0; the shares add up to 1.
    pub phases: Option<ByPhase<PhaseSummary>>,
    /// Tokens per second over the measured steps, by two clocks.
    pub tokens_per_second: Option<Clocks>,
    /// Share of the device's published peak, attention counted causal; `null` without a published
    /// peak, as on every CPU.
    pub mfu_causal: Option<f64>,
    /// The same with attention counted full.
    pub mfu_full: Option<f64>,
    /// Share of the matmul rate measured on the same device in the same run.
    pub mfu_measured: Option<MfuMeasured>,
    /// What the network did on rank 0; `null` for a single rank.
    pub collectives: Option<Collectives>,
    /// What each pair of ranks talks over, where there is evidence.
    pub transports: Option<Vec<Transport>>,
    /// Checkpoints committed by the last attempt.
    pub checkpoints: Option<Checkpoints>,
    /// How much of the time since the first start became training that counts.
    pub goodput: Option<Goodput>,
    /// Identity of the result: equal in runs that computed the same bits.
    pub fingerprint: Option<Fingerprint>,
    /// What was odd, and what could not be known.
    pub anomalies: Vec<Anomaly>,
}

impl Record {
    /// The record of a run that starts now: nothing is measured yet.
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
            environment,
            ranks,
            attempts,
            steps: None,
            phases: None,
            tokens_per_second: None,
            mfu_causal: None,
            mfu_full: None,
            mfu_measured: None,
            collectives: None,
            transports: None,
            checkpoints: None,
            goodput: None,
            fingerprint: None,
            anomalies: Vec::new(),
        }
    }

    /// Notes how the run and its last attempt ended, and writes the attempt's file.
    ///
    /// To be followed by [`measure`](Self::measure) and [`write`](Self::write).
    ///
    /// # Errors
    /// [`Error::Io`] when the attempt cannot be written.
    pub fn end(
        &mut self,
        dir: &Path,
        status: Status,
        exit_code: u8,
        reason: Option<Reason>,
        last_step: u64,
    ) -> Result<(), Error> {
        (self.status, self.exit_code, self.reason) = (status, Some(exit_code), reason.clone());
        match self.attempts.last_mut() {
            Some(attempt) => attempt.end(dir, status, exit_code, reason, last_step),
            None => Ok(()),
        }
    }

    /// Where the record lies in a run's folder.
    pub fn path(dir: &Path) -> PathBuf {
        dir.join("record.json")
    }

    /// Puts the record in place of the one in `dir`, durably; the old one stays if that fails.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&self, dir: &Path) -> Result<(), Error> {
        write_json(&Self::path(dir), self)
    }

    /// Reads the record in `dir`.
    ///
    /// # Errors
    /// [`Error::NoRecord`], [`Error::Schema`] when it is newer than this program,
    /// [`Error::Malformed`] when it is damaged, [`Error::Io`].
    pub fn read(dir: &Path) -> Result<Self, Error> {
        let path = Self::path(dir);
        let bytes = fs::read(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Error::NoRecord { path: path.clone() },
            _ => Error::io("read", &path)(error),
        })?;
        let versioned: Versioned = parse(&path, &bytes, "a record with its schema")?;
        if versioned.schema > u64::from(SCHEMA) {
            return Err(Error::Schema { path, found: versioned.schema, supported: SCHEMA });
        }
        parse(&path, &bytes, "a record of schema 1")
    }
}

/// The part of a record that every version has.
#[derive(Deserialize)]
struct Versioned {
    schema: u64,
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<(), Error> {
    let mut bytes = serde_json::to_vec_pretty(value).expect("plain data in memory");
    bytes.push(b'\n');
    atomic::write(path, &bytes)
}

fn parse<T: for<'de> Deserialize<'de>>(
    path: &Path,
    bytes: &[u8],
    expected: &'static str,
) -> Result<T, Error> {
    serde_json::from_slice(bytes).map_err(|source| {
        let (path, line) = (path.to_owned(), source.line());
        Error::Malformed { path, line, expected, source }
    })
}

#[cfg(test)]
pub(crate) mod tests;
