//! Events about a run while it runs.

use serde::Serialize;
use serde_json::{Value, json};

use crate::hardware::{Missing, Readings};
use record::{
    Anomaly, CheckpointSaved, Corruption, Reason, StartParts, Status, StepLine, Straggler,
};

/// One event. Steps are plain data, so that training can emit them without allocating.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant, reason = "most events are steps, and they fill a fixed queue")]
pub enum Event {
    /// Training starts, or resumes.
    Start(String),
    /// The first step of the attempt is done, with the parts of the start.
    FirstStep(StartParts),
    /// A step is done.
    Step(StepLine),
    /// A message that the user may not expect.
    Note(String),
    /// A warning about something unusual, which belongs in the record.
    Warning(Anomaly),
    /// A rank is slow, or no longer is.
    Verdict(Verdict),
    /// A check has found wrong values.
    Corruption(WrongValues),
    /// A checkpoint is committed.
    Checkpoint(CheckpointSaved),
    /// A piece of hardware was read.
    Hardware(Readings),
    /// Some hardware cannot be read.
    HardwareMissing(Missing),
    /// A signal asks the run to stop.
    Stop(StopRequest),
    /// The run ended.
    End(RunEnd),
}

/// A request to stop that has arrived at this rank, and what follows from it.
#[derive(Debug, Clone, Serialize)]
pub struct StopRequest {
    /// The request in words.
    #[serde(skip)]
    pub text: String,
    /// Name of the signal, as in `SIGTERM`.
    pub signal: &'static str,
    /// Step after which the run ends; `None` if unknown, or if it ends at once.
    pub last_step: Option<u64>,
    /// Expected number of seconds until the end, without copies to farther tiers; `None` before a
    /// step is timed, and if it ends at once.
    pub expected_seconds: Option<f64>,
    /// Newest committed checkpoint.
    pub committed_step: Option<u64>,
    /// True if the process ends now, without a save.
    pub ends_at_once: bool,
}

/// Verdict that a rank is slow, or no longer is.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// Slow rank, and the kind of work that it is slow at.
    pub straggler: Straggler,
    /// Verdict in words.
    pub anomaly: Anomaly,
}

/// Wrong values that a check has found.
#[derive(Debug, Clone)]
pub struct WrongValues {
    /// Finding of the check.
    pub finding: Corruption,
    /// Finding in words.
    pub anomaly: Anomaly,
}

/// End of a run.
#[derive(Debug, Clone)]
pub struct RunEnd {
    /// The end in words.
    pub text: String,
    /// State of the run.
    pub status: Status,
    /// Exit code, unless it still runs.
    pub exit_code: Option<u8>,
    /// Cause of a failure or stop.
    pub reason: Option<Reason>,
    /// Newest committed checkpoint.
    pub committed_step: Option<u64>,
}

impl Event {
    /// Name in JSON.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Start(_) => "start",
            Self::FirstStep(_) => "first_step",
            Self::Step(_) => "step",
            Self::Note(_) => "note",
            Self::Warning(_) => "warning",
            Self::Verdict(_) => "verdict",
            Self::Corruption(_) => "corruption",
            Self::Checkpoint(_) => "checkpoint",
            Self::Hardware(_) | Self::HardwareMissing(_) => "hardware",
            Self::Stop(_) => "stop",
            Self::End(_) => "end",
        }
    }

    /// Describes the event in a sentence.
    pub fn text(&self) -> String {
        match self {
            Self::Start(text) | Self::Note(text) => text.clone(),
            Self::FirstStep(parts) => {
                format!("the first step is done, {:.3} s after the start", parts.total_seconds())
            }
            Self::Step(line) => format!("step {}", line.sample.step),
            Self::Warning(anomaly) => anomaly.text.clone(),
            Self::Verdict(verdict) => verdict.anomaly.text.clone(),
            Self::Corruption(found) => found.anomaly.text.clone(),
            Self::Checkpoint(saved) => format!("checkpoint of step {} is committed", saved.step),
            Self::Hardware(readings) => format!("{:?} was read", readings.source),
            Self::HardwareMissing(missing) => format!("{missing:?}"),
            Self::Stop(request) => request.text.clone(),
            Self::End(end) => end.text.clone(),
        }
    }

    /// Returns the other details, by name.
    pub fn details(&self) -> Value {
        match self {
            Self::Start(_) | Self::Note(_) | Self::HardwareMissing(_) => json!({}),
            Self::FirstStep(parts) => json!(parts),
            Self::Step(line) => json!(line),
            Self::Warning(Anomaly { step, rank, .. }) => json!({"step": step, "of_rank": rank}),
            Self::Verdict(verdict) => json!({"straggler": verdict.straggler}),
            Self::Corruption(found) => json!({"corruption": found.finding}),
            Self::Checkpoint(saved) => json!(saved),
            Self::Hardware(readings) => json!(readings),
            Self::Stop(request) => json!(request),
            Self::End(RunEnd { status, exit_code, reason, committed_step, .. }) => json!({
                "status": status,
                "exit_code": exit_code,
                "reason": reason,
                "committed_step": committed_step,
            }),
        }
    }
}
