//! Training of the jobs, and its launch.

/// Name of the run's folder in the results volume.
pub(crate) const RUN: &str = "run";

/// A run of some seconds, with a save after every fifth of its steps.
pub(crate) const TRAIN: [&str; 15] = [
    "train",
    "--workload",
    "smoke",
    "--out",
    "/results/run",
    "--steps",
    "40",
    "--threads",
    "1",
    "--checkpoint-every",
    "5steps",
    "--deadline",
    "5s",
    "--set",
    "telemetry.matmul_probe=0s",
];

/// First process of a worker pod.
pub(crate) const WORKER: [&str; 2] = ["yardstick", "worker"];

/// Flags of a launch that loses a host or a rank, for which it waits not so long.
pub(crate) const IMPATIENT: [&str; 2] = ["--patience-percent", "40"];

/// First process of the launcher pod: one rank on each of two workers.
pub(crate) fn launch<'a>(flags: &[&'a str], train: &[&'a str]) -> Vec<&'a str> {
    let launch = ["yardstick", "launch", "--nodes", "2", "--ranks-per-node", "1"];
    [&launch, flags, &["--"], &TRAIN, train].concat()
}
