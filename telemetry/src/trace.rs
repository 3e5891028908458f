//! The JSON of Chrome's trace viewer, which Perfetto reads too ("Trace Event Format").
//!
//! A rank is a process. Its phases are one thread; a step spans them on another. Buckets may be in
//! flight at the same time, so they are asynchronous events.

use std::path::Path;

use record::files::{Mode, create_folders};
use record::phase::Phase;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use record::Error;

/// Trace of one rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankTrace {
    /// Time in each phase.
    pub phases: Vec<TracedPhase>,
    /// Buckets in flight.
    pub buckets: Vec<TracedBucket>,
}

/// Time in a phase.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TracedPhase {
    /// The step, from 1.
    pub step: u64,
    /// The phase.
    pub phase: Phase,
    /// Begin on the common clock.
    pub start_ns: i64,
    /// Duration.
    pub duration_ns: u64,
}

/// Time of a bucket in flight.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TracedBucket {
    /// True for an all-gather of weights, false for a reduction of gradients.
    pub is_gather: bool,
    /// Number of the bucket.
    pub bucket: usize,
    /// Size of its buffer.
    pub bytes: u64,
    /// Begin on the common clock.
    pub start_ns: i64,
    /// Time in flight.
    pub duration_ns: u64,
}

/// Threads of a process.
const STEPS: u32 = 0;
const PHASES: u32 = 1;
const COMMUNICATION: u32 = 2;

/// Writes the trace of all ranks.
///
/// # Errors
/// When the file cannot be written.
pub fn write(path: &Path, ranks: &[RankTrace], hosts: &[String]) -> Result<(), Error> {
    if let Some(folder) = path.parent() {
        create_folders(folder, Mode::Run)?;
    }
    record::write_json(path, &trace(ranks, hosts))
}

fn trace(ranks: &[RankTrace], hosts: &[String]) -> Value {
    let of_rank = |(rank, trace): (usize, &RankTrace)| {
        let mut events = names(rank, &hosts[rank]);
        events.extend(steps(rank, &trace.phases));
        events.extend(trace.phases.iter().map(|phase| of_phase(rank, phase)));
        let buckets = trace.buckets.iter().enumerate();
        events.extend(buckets.flat_map(|(number, bucket)| of_bucket(rank, number, bucket)));
        events
    };
    let events: Vec<Value> = ranks.iter().enumerate().flat_map(of_rank).collect();
    json!({ "displayTimeUnit": "ms", "traceEvents": events })
}

fn names(rank: usize, host: &str) -> Vec<Value> {
    let process = json!({
        "name": "process_name", "ph": "M", "pid": rank,
        "args": { "name": format!("rank {rank} ({host})") },
    });
    let order = json!({
        "name": "process_sort_index", "ph": "M", "pid": rank, "args": { "sort_index": rank },
    });
    let threads = [(STEPS, "steps"), (PHASES, "phases"), (COMMUNICATION, "communication")];
    let thread = |(thread, name)| {
        json!({
            "name": "thread_name", "ph": "M", "pid": rank, "tid": thread, "args": { "name": name },
        })
    };
    [process, order].into_iter().chain(threads.map(thread)).collect()
}

/// Creates one event over the phases of each step.
fn steps(rank: usize, phases: &[TracedPhase]) -> Vec<Value> {
    let of_step = |phases: &[TracedPhase]| {
        let end = |phase: &TracedPhase| phase.start_ns + phase.duration_ns as i64;
        let start_ns = phases.iter().map(|phase| phase.start_ns).min().unwrap_or_default();
        let end_ns = phases.iter().map(end).max().unwrap_or_default();
        json!({
            "name": format!("step {}", phases[0].step), "cat": "step", "ph": "X",
            "pid": rank, "tid": STEPS,
            "ts": microseconds(start_ns), "dur": microseconds(end_ns - start_ns),
        })
    };
    phases.chunk_by(|left, right| left.step == right.step).map(of_step).collect()
}

fn of_phase(rank: usize, phase: &TracedPhase) -> Value {
    json!({
        "name": phase.phase.name(), "cat": "phase", "ph": "X", "pid": rank, "tid": PHASES,
        "ts": microseconds(phase.start_ns), "dur": microseconds(phase.duration_ns as i64),
        "args": { "step": phase.step },
    })
}

fn of_bucket(rank: usize, number: usize, bucket: &TracedBucket) -> [Value; 2] {
    let what = if bucket.is_gather { "all-gather" } else { "reduction" };
    let event = |kind: &str, ns: i64| {
        json!({
            "name": format!("{what} of bucket {}", bucket.bucket), "cat": "communication",
            "ph": kind, "id": format!("{rank}.{number}"), "pid": rank, "tid": COMMUNICATION,
            "ts": microseconds(ns), "args": { "bytes": bucket.bytes },
        })
    };
    [event("b", bucket.start_ns), event("e", bucket.start_ns + bucket.duration_ns as i64)]
}

fn microseconds(ns: i64) -> f64 {
    ns as f64 / 1e3
}
