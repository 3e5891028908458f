//! Same workload, same world: same bits. Other world: same to rounding.

#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![cfg(feature = "mpi")]

mod support;

use support::{Folder, finish, mpirun};

/// Trains 20 steps of smoke on some ranks with one compute thread each.
fn train(ranks: usize, extra: &[&str]) -> Folder {
    let folder = Folder::new();
    let out = folder.text();
    let mut arguments = vec!["train", "--steps", "20", "--threads", "1", "--out", &out];
    arguments.extend(extra);
    finish(mpirun(ranks, &arguments)).expect(0);
    folder
}

/// Small buckets, so that smoke has several.
const SEVERAL_BUCKETS: &str = "collectives.bucket_bytes=262144";

#[test]
fn two_runs_on_two_ranks_are_bit_identical() {
    let (first, second) = (train(2, &[]), train(2, &[]));
    assert_eq!(first.losses().len(), 20);
    assert_eq!(first.losses(), second.losses());
    assert_eq!(first.record()["fingerprint"], second.record()["fingerprint"]);
    assert!(first.record()["fingerprint"]["weights"].is_string());
    let library = first.record()["environment"]["mpi_library"].as_str().unwrap().to_owned();
    let expected = std::env::var("YARDSTICK_MPI_LIBRARY").unwrap_or_else(|_| "MPI".into());
    assert!(library.contains(&expected), "{library}: expected {expected}");
}

#[test]
fn another_seed_gives_other_losses() {
    let (first, second) = (train(2, &[]), train(2, &["--set", "schedule.seed=1"]));
    assert_ne!(first.losses(), second.losses());
    assert_ne!(first.record()["fingerprint"], second.record()["fingerprint"]);
}

#[test]
fn overlap_on_and_off_are_bit_identical() {
    let on = train(2, &["--set", SEVERAL_BUCKETS]);
    let off = train(2, &["--set", SEVERAL_BUCKETS, "--set", "collectives.overlap=false"]);
    assert_eq!(on.losses(), off.losses());
    assert_eq!(on.record()["fingerprint"], off.record()["fingerprint"]);
}

#[test]
fn the_first_bucket_starts_before_backward_ends() {
    let on = train(2, &["--set", SEVERAL_BUCKETS]);
    let leads = |folder: &Folder, rank| -> Vec<u64> {
        let lines = folder.steps(rank);
        lines.iter().map(|line| line.0["first_bucket_lead_ns"].as_u64().unwrap()).collect()
    };
    for rank in 0..2 {
        // Not in every step: on a busy machine the communication thread may wait for a core.
        let leads = leads(&on, rank);
        assert!(leads.iter().any(|&lead| lead > 0), "rank {rank}: {leads:?}");
    }
    let off = train(2, &["--set", SEVERAL_BUCKETS, "--set", "collectives.overlap=false"]);
    assert!(leads(&off, 0).iter().all(|&lead| lead == 0), "without overlap nothing starts early");
    let hidden = |folder: &Folder| folder.record()["collectives"]["hidden_share"].as_f64().unwrap();
    assert_eq!(hidden(&off), 0.0);
    assert!(hidden(&on) > 0.0);
}

#[test]
fn one_two_and_four_ranks_agree_at_one_global_batch() {
    let one = train(1, &[]);
    for ranks in [2, 4] {
        let other = train(ranks, &[]);
        assert_eq!(other.record()["ranks"].as_array().unwrap().len(), ranks);
        for (a, b) in one.steps(0).iter().zip(other.steps(0)) {
            let relative = (a.loss() - b.loss()).abs() / a.loss();
            assert!(relative <= 1e-5, "step {}, {ranks} ranks: {relative:e}", a.step());
        }
    }
}

#[test]
fn the_candle_engine_trains_to_the_same_losses() {
    let (fused, candle) = (train(2, &[]), train(2, &["--engine", "candle"]));
    for (a, b) in fused.steps(0).iter().zip(candle.steps(0)) {
        let relative = (a.loss() - b.loss()).abs() / a.loss();
        assert!(relative <= 1e-4, "step {}: {relative:e}", a.step());
    }
}
