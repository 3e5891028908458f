//! Bound of exposed communication: what measured links need for a step's buckets, less the time in
//! which backward can hide it.

use record::phase::PhaseTimes;
use record::text::number_format::scaled;
use record::{BucketRecord, MeshSizes, Record};
use serde::Serialize;

use super::bound::{Bound, BoundBy};
use super::links::MeasuredLinks;

/// Operations on buckets of one size beside the same operation alone on the same links.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BucketGap {
    /// Collective operation, as in `all_reduce`.
    pub operation: String,
    /// Size of the buffer.
    pub bytes: u64,
    /// Operations in a step.
    pub operations_per_step: f64,
    /// Mean time in flight, also while other buckets were.
    pub mean_ms: f64,
    /// Time on the measured links.
    pub bound_ms: f64,
}

/// Communication of a step.
#[derive(Debug)]
pub(super) struct Communication {
    /// Bound of the exposed communication, or the reason why there is none.
    pub(super) bound: Result<Bound, String>,
    pub(super) buckets: Vec<BucketGap>,
}

/// Largest share of a bucket's time in training that the same operation may take alone.
const TIME_SHARE_MAX: f64 = 1.05;

/// First steps of an attempt, whose buckets are not counted.
const STEPS_NOT_COUNTED: u64 = 2;

impl Communication {
    /// Computes the bound of a step with these phases.
    pub(super) fn of(
        record: &Record,
        phases_ns: &PhaseTimes,
        links: Option<&MeasuredLinks>,
    ) -> Self {
        if record.ranks.len() < 2 {
            let bound = Ok(Bound { ms: 0.0, by: BoundBy::Nothing });
            return Self { bound, buckets: Vec::new() };
        }
        match buckets(record, links) {
            Ok(buckets) => {
                let ms = exposed_ms(&buckets, phases_ns);
                // Another step, or forward, hid more than the time of this backward.
                let ms = ms.min(phases_ns.comm_exposed as f64 / 1e6);
                Self { bound: Ok(Bound { ms, by: BoundBy::Links }), buckets }
            }
            Err(reason) => Self { bound: Err(reason), buckets: Vec::new() },
        }
    }
}

/// Least exposed communication: gathers of weights may be hidden behind forward too.
fn exposed_ms(buckets: &[BucketGap], phases_ns: &PhaseTimes) -> f64 {
    let step_ms = |bucket: &BucketGap| bucket.operations_per_step * bucket.bound_ms;
    let total_ms: f64 = buckets.iter().map(step_ms).sum();
    let gathers = buckets.iter().any(|bucket| bucket.operation == "all_gather");
    let forward_ns = if gathers { phases_ns.forward } else { 0 };
    (total_ms - (phases_ns.backward + forward_ns) as f64 / 1e6).max(0.0)
}

fn buckets(record: &Record, links: Option<&MeasuredLinks>) -> Result<Vec<BucketGap>, String> {
    let all = record.ranks.first().map_or(&[][..], |rank| &rank.buckets);
    let steps = counted_steps(record).filter(|_| !all.is_empty());
    let steps = steps.ok_or("the record has no buckets after the first two steps")?;
    if MeshSizes::of(&record.ranks).is_some() {
        return Err("ranks are in two dimensions, whose links were not measured".to_owned());
    }
    let links = links.ok_or(
        "links were not measured: --comm FILE with the output of `yardstick comm --json` between \
         the same ranks",
    )?;
    links.require_ranks_of(record)?;
    let bounded = |bucket: &BucketRecord| {
        let BucketRecord { operation, bytes, operations, mean_ms, .. } = bucket;
        let fit = links.fit(operation)?;
        let bound_ms = fit.latency_ms + fit.ms_per_byte * *bytes as f64;
        if bound_ms > TIME_SHARE_MAX * mean_ms {
            return Err(format!(
                "the measurement of links was disturbed: {operation} of {} took {mean_ms:.2} ms in \
                 training, and {bound_ms:.2} alone",
                scaled(*bytes as f64, "B")
            ));
        }
        Ok(BucketGap {
            operation: operation.clone(),
            bytes: *bytes,
            operations_per_step: *operations as f64 / steps as f64,
            mean_ms: *mean_ms,
            bound_ms,
        })
    };
    all.iter().map(bounded).collect()
}

/// Number of steps of the last attempt whose buckets are counted, if any are.
fn counted_steps(record: &Record) -> Option<u64> {
    let attempt = record.attempts.last()?;
    let before = attempt.resumed_after_step.unwrap_or(0) + STEPS_NOT_COUNTED;
    attempt.last_step.checked_sub(before).filter(|steps| *steps > 0)
}
