//! Rows of a step that add up to its time, each with its bound.

use record::phase::{Phase, PhaseTimes};
use record::{OpRecord, ProfileRecord, Record, WeightShape};
use serde::Serialize;

use super::bound::{Bound, BoundBy};
use super::communication::{BucketGap, Communication};
use super::links::MeasuredLinks;
use super::ops::Rates;
use crate::error::{self, Error};

/// Time of a profiled step beside its bounds. [`Display`](std::fmt::Display) is a page of at most
/// ten rows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Gap {
    /// Workload of the run.
    pub workload: String,
    /// Id of the workload.
    pub workload_id: String,
    /// Number of the profiled step.
    pub step: u64,
    /// Time of the step on rank 0, by its phases.
    pub step_ms: f64,
    /// Sum of the times of all rows.
    pub rows_ms: f64,
    /// Sum of the bounds of all rows; `null` if one is.
    pub bound_ms: Option<f64>,
    /// Sum of the gaps of all rows; `null` if one is.
    pub gap_ms: Option<f64>,
    /// Rows, the largest gap first; one whose gap is not known counts as if its bound were zero.
    pub rows: Vec<GapRow>,
    /// Operations on buckets beside the links that `yardstick comm` measured; empty where no bound
    /// of communication is known.
    pub buckets: Vec<BucketGap>,
}

/// Part of a step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GapRow {
    /// Phase of the part.
    pub phase: Phase,
    /// Name of an op, or of the part.
    pub name: String,
    /// Weight of a matrix product; `null` for other parts.
    pub weight: Option<WeightShape>,
    /// Time of the part.
    pub ms: f64,
    /// Time that the measured rates allow; `null` if not known.
    pub bound_ms: Option<f64>,
    /// Time above the bound.
    pub gap_ms: Option<f64>,
    /// Rate of the bound.
    pub bound_by: Option<BoundBy>,
    /// Reason why the bound is not known.
    pub reason: Option<String>,
}

/// Largest difference between the sum of the rows and the step, as a share of the step.
const DIFFERENCE_MAX: f64 = 0.01;

impl Gap {
    /// Explains the profiled step of a record. `links` are those between its ranks, if they were
    /// measured.
    ///
    /// # Errors
    /// Exit code 2 if the record has no profile, or none with the times of phases.
    pub fn of(record: &Record, links: Option<&MeasuredLinks>) -> error::Result<Self> {
        let profile = record.profile.as_ref().ok_or_else(|| {
            Error::Usage(
                "--gap: the record has no profile of a step\n  hint: train with --profile-step N"
                    .to_owned(),
            )
        })?;
        let step = profile.step;
        let phases_ns = profile.phases_ns.ok_or_else(|| {
            Error::Usage(format!(
                "--gap: the profile of step {step} has no times of phases: the run ended before \
                 they were read"
            ))
        })?;
        let communication = Communication::of(record, &phases_ns, links);
        let mut rows = rows(profile, &phases_ns, communication.bound);
        let step_ms = milliseconds(phases_ns.wall_ns());
        let rows_ms = rows.iter().map(|row| row.ms).sum();
        if let Some(reason) = disturbed(profile, step_ms, rows_ms) {
            rows.iter_mut().for_each(|row| row.forget(&reason));
        }
        rows.sort_by(|a, b| b.unexplained_ms().total_cmp(&a.unexplained_ms()));
        Ok(Self {
            workload: record.workload.name.clone(),
            workload_id: record.workload.id.clone(),
            step,
            step_ms,
            rows_ms,
            bound_ms: rows.iter().map(|row| row.bound_ms).sum(),
            gap_ms: rows.iter().map(|row| row.gap_ms).sum(),
            rows,
            buckets: communication.buckets,
        })
    }
}

impl GapRow {
    fn new(phase: Phase, name: &str, ms: f64, bound: Result<Bound, String>) -> Self {
        let (bound, reason) = match bound {
            Ok(bound) => (Some(bound), None),
            Err(reason) => (None, Some(reason)),
        };
        Self {
            phase,
            name: name.to_owned(),
            weight: None,
            ms,
            bound_ms: bound.map(|bound| bound.ms),
            gap_ms: bound.map(|bound| ms - bound.ms),
            bound_by: bound.map(|bound| bound.by),
            reason,
        }
    }

    /// A part that a step could do without.
    fn needless(phase: Phase, name: &str, ms: f64) -> Self {
        Self::new(phase, name, ms, Ok(Bound { ms: 0.0, by: BoundBy::Nothing }))
    }

    /// Time that nothing explains: all of it if the bound is not known.
    pub(super) fn unexplained_ms(&self) -> f64 {
        self.gap_ms.unwrap_or(self.ms)
    }

    fn forget(&mut self, reason: &str) {
        (self.bound_ms, self.gap_ms, self.bound_by) = (None, None, None);
        self.reason = Some(reason.to_owned());
    }
}

/// Phases whose time is that of ops.
const COMPUTING: [Phase; 3] = [Phase::Forward, Phase::Backward, Phase::Optimizer];

fn rows(
    profile: &ProfileRecord,
    phases_ns: &PhaseTimes,
    communication: Result<Bound, String>,
) -> Vec<GapRow> {
    let rates = Rates::of(profile);
    let phase_ms = |phase| milliseconds(phases_ns.get(phase));
    let op = |op: &OpRecord| GapRow {
        weight: op.weight,
        ..GapRow::new(op.phase, &op.name, op.ms, rates.bound(op))
    };
    let mut rows: Vec<GapRow> = profile.ops.iter().map(op).collect();
    rows.extend(COMPUTING.map(|phase| {
        let between_ms = (phase_ms(phase) - ops_ms(profile, phase)).max(0.0);
        GapRow::needless(phase, "between ops", between_ms)
    }));
    let exposed = Phase::CommExposed;
    rows.push(GapRow::new(exposed, "waiting for ranks", phase_ms(exposed), communication));
    let others = [
        (Phase::Data, "waiting for data"),
        (Phase::Checkpoint, "saves"),
        (Phase::Eval, "evaluation"),
        (Phase::Other, "in no phase"),
    ];
    rows.extend(others.map(|(phase, name)| GapRow::needless(phase, name, phase_ms(phase))));
    rows
}

/// Time of all ops of a phase.
fn ops_ms(profile: &ProfileRecord, phase: Phase) -> f64 {
    profile.ops.iter().filter(|op| op.phase == phase).map(|op| op.ms).sum()
}

/// Returns why the times of ops cannot be used, if so.
fn disturbed(profile: &ProfileRecord, step_ms: f64, rows_ms: f64) -> Option<String> {
    if let Some(error) = &profile.incomplete {
        return Some(format!("times of ops are missing: {error}"));
    }
    let above_ms = rows_ms - step_ms;
    (above_ms > DIFFERENCE_MAX * step_ms).then(|| {
        format!("the ops take {above_ms:.2} ms more than their phases: their times were disturbed")
    })
}

fn milliseconds(ns: u64) -> f64 {
    ns as f64 / 1e6
}
