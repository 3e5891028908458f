//! Same workload, same world: same bits. Other world: same to rounding.

#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![cfg(feature = "mpi")]

mod support;

use support::{Folder, KINDS, finish, mpirun};

/// Trains 20 steps on some ranks with one compute thread each.
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
    for kind in KINDS {
        let (first, second) = (train(2, kind.flags), train(2, kind.flags));
        assert_eq!(first.losses().len(), 20, "{kind:?}");
        assert_eq!(first.losses(), second.losses(), "{kind:?}");
        assert_eq!(first.record()["fingerprint"], second.record()["fingerprint"], "{kind:?}");
        assert!(first.record()["fingerprint"]["weights"].is_string(), "{kind:?}");
    }
}

#[test]
fn the_record_names_the_mpi_library() {
    let first = train(2, &[]);
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
    for kind in KINDS {
        let several = [kind.flags, &["--set", SEVERAL_BUCKETS]].concat();
        let on = train(2, &several);
        let off = train(2, &[&several[..], &["--set", "collectives.overlap=false"]].concat());
        assert_eq!(on.losses(), off.losses(), "{kind:?}");
        assert_eq!(on.record()["fingerprint"], off.record()["fingerprint"], "{kind:?}");
    }
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
    for kind in KINDS {
        let one = train(1, kind.flags);
        for ranks in [2, 4] {
            let other = train(ranks, kind.flags);
            assert_eq!(other.record()["ranks"].as_array().unwrap().len(), ranks);
            assert_eq!(other.steps(0).len(), 20);
            for (a, b) in one.steps(0).iter().zip(other.steps(0)) {
                let relative = (a.loss() - b.loss()).abs() / a.loss();
                let step = a.step();
                assert!(relative <= kind.rounding, "{kind:?} {step} {ranks}: {relative:e}");
            }
        }
    }
}

#[test]
fn the_candle_engine_trains_to_the_same_losses() {
    for workload in ["smoke", "llama-smoke"] {
        let flags = ["--workload", workload];
        let candle = train(2, &[&flags[..], &["--engine", "candle"]].concat());
        for (a, b) in train(2, &flags).steps(0).iter().zip(candle.steps(0)) {
            let relative = (a.loss() - b.loss()).abs() / a.loss();
            assert!(relative <= 1e-4, "{workload}, step {}: {relative:e}", a.step());
        }
    }
}
