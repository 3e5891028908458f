//! One rank that is slow or hangs, and what the others say about it while the run goes on.
#![cfg(feature = "mpi")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(clippy::print_stdout, reason = "the table of many trials")]

mod support;

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use support::{Finished, Folder};

/// Tests that measure do not run at the same time.
static MACHINE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The ranks that a run found slow, each with its kind.
fn named(record: &Value) -> Vec<(u64, String)> {
    let ranks = record["ranks"].as_array().unwrap().iter();
    let found = ranks.filter(|rank| !rank["straggler"].is_null()).map(|rank| {
        let kind = rank["straggler"]["kind"].as_str().unwrap();
        (rank["rank"].as_u64().unwrap(), kind.to_owned())
    });
    found.collect()
}

/// Runs with one slow rank, which all but one of them name, with its kind; none names another.
/// Three runs at most, or as many as the environment says (`make soak-stragglers`).
fn assert_named(kind: &str, percent: u32, flags: &[&str]) {
    let trials = std::env::var("YARDSTICK_SOAK_STRAGGLERS").ok();
    let trials = trials.map_or(3, |trials| trials.parse().unwrap());
    let mut right = 0;
    let mut missed = 0;
    while right + 1 < trials && missed <= 1 {
        let rank = right % 2;
        let folder = Folder::new();
        let slow = format!("slow-{kind}@rank={rank},percent={percent}");
        let flags = [&["--steps", "120", "--inject", &slow], flags].concat();
        let finished = folder.train_on(2, &flags);
        assert_eq!(finished.code, 0, "{finished:?}");
        let found = named(&folder.record());
        if found.is_empty() {
            missed += 1;
            continue;
        }
        assert_eq!(found, [(rank, kind.to_owned())], "{finished:?}");
        right += 1;
        let expected = format!("rank {rank} (");
        let is_told = |line: &str| line.contains(&expected) && line.contains(" is slow at ");
        assert!(finished.stderr.lines().any(is_told), "{finished:?}");
    }
    println!("slow-{kind} by {percent} %: named {right} times, missed {missed} times");
    assert!(missed <= 1, "slow-{kind}: named {right} times, missed {missed} times");
}

#[test]
fn a_slow_rank_is_named_while_the_run_goes_on() {
    let _machine = alone();
    for kind in ["compute", "data", "communication"] {
        assert_named(kind, 25, &[]);
    }
}

#[test]
fn a_rank_that_writes_slowly_is_named() {
    let _machine = alone();
    assert_named("checkpoint", 300, &["--checkpoint-every", "5steps"]);
}

#[test]
fn a_verdict_asks_for_a_checkpoint() {
    let _machine = alone();
    let folder = Folder::new();
    let slow = "slow-compute@rank=1,percent=60";
    let flags = ["--steps", "80", "--inject", slow, "--set", "checkpoint.on_verdict=true"];
    let finished = folder.train_on(2, &flags);
    assert_eq!(finished.code, 0, "{finished:?}");
    let record = folder.record();
    assert_eq!(record["checkpoints"]["triggers"]["health"], 1, "{:#}", record["checkpoints"]);
}

const THREE_RANKS: [&str; 6] =
    ["--set", "batch.micro_sequences=1", "--set", "batch.global_sequences=12", "--deadline", "6s"];

fn assert_names_rank_1(folder: &Folder, finished: &Finished, where_it_is: &str) {
    assert_eq!(finished.code, 5, "{finished:?}");
    let arrived = "arrived, waits for bucket 1 of 1";
    for expected in [where_it_is, arrived, "has not ended for 3.0 s"] {
        assert!(finished.stderr.contains(expected), "no {expected:?} in {finished:?}");
    }
    let reason = &folder.record()["reason"];
    assert_eq!((&reason["rank"], &reason["step"]), (&1.into(), &10.into()), "{reason:#}");
    assert!(reason["text"].as_str().unwrap().contains(where_it_is), "{reason:#}");
}

#[test]
fn a_hang_names_the_rank_that_did_not_arrive_and_those_that_did() {
    let _machine = alone();
    let folder = Folder::new();
    let flags = [&THREE_RANKS[..], &["--inject", "hang@step=10,rank=1"]].concat();
    let finished = folder.train_on(3, &flags);
    assert_names_rank_1(&folder, &finished, "): not arrived, in other; ranks 0 (");
}

#[test]
fn a_frozen_process_is_named_as_silent() {
    let _machine = alone();
    let folder = Folder::new();
    let flags = [&THREE_RANKS[..], &["--inject", "freeze@step=10,rank=1"]].concat();
    let finished = folder.train_on(3, &flags);
    assert_names_rank_1(&folder, &finished, "): silent: the process hangs as a whole");
}

#[test]
fn ranks_compare_what_they_reach_after_the_first_step() {
    let _machine = alone();
    let folder = Folder::new();
    let finished = folder.train_on(2, &["--steps", "3"]);
    assert_eq!(finished.code, 0, "{finished:?}");
    let nodes = &folder.record()["nodes"];
    assert_eq!(nodes.as_array().unwrap().len(), 1, "{nodes:#}");
    assert!(nodes[0]["identity"]["kernel.release"].is_string(), "{nodes:#}");
    for rank in folder.record()["ranks"].as_array().unwrap() {
        let sniffed = &rank["sniffed"];
        for rate in ["matmul_flops_per_second", "memory_bytes_per_second"] {
            assert!(sniffed[rate].as_f64().unwrap() > 1e7, "{rank:#}");
        }
    }
}
