//! Judgements of runs: slow ranks, comparisons, golden losses, wrong bits, gates, published
//! figures, the gap of a step, nights of a job, and the page of the report.

#[cfg(feature = "mpi")]
mod compare;
#[cfg(feature = "mpi")]
mod corruption;
#[cfg(feature = "mpi")]
mod fingerprint;
mod gap;
#[cfg(feature = "mpi")]
mod gates;
mod k8s_collect;
mod published;
#[cfg(feature = "mpi")]
mod report_html;
#[cfg(feature = "mpi")]
mod stragglers;

/// The smallest model, without the matmul probe: steps take a millisecond, and virtual ones 100.
#[cfg(feature = "mpi")]
const TINY: [&str; 24] = [
    "--set",
    "model.width=32",
    "--set",
    "model.heads=1",
    "--set",
    "model.feed_forward=32",
    "--set",
    "model.layers=1",
    "--set",
    "model.vocabulary=64",
    "--set",
    "model.context=16",
    "--set",
    "batch.sequence_tokens=16",
    "--set",
    "batch.micro_sequences=1",
    "--set",
    "batch.global_sequences=2",
    "--set",
    "schedule.steps=1000",
    "--set",
    "telemetry.matmul_probe=0s",
    "--set",
    "telemetry.hardware_interval=0s",
];
