//! Rank that is slow or hangs, and the reports of the other ranks during the run.
#![allow(clippy::print_stdout, reason = "the table of many trials")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::alone;
use rustix::thread::{CpuSet, sched_setaffinity};
use serde_json::Value;
use support::{Finished, Folder};

/// The ranks that a run found slow, each with its kind.
fn named(record: &Value) -> Vec<(u64, String)> {
    let ranks = record["ranks"].as_array().unwrap().iter();
    let found = ranks.filter(|rank| !rank["straggler"].is_null()).map(|rank| {
        let kind = rank["straggler"]["kind"].as_str().unwrap();
        (rank["rank"].as_u64().unwrap(), kind.to_owned())
    });
    found.collect()
}

/// Slowdown of a rank that must be named on a machine with other load. Other processes
/// take the cores from the rank that never sleeps: beside two other busy processes on two cores it
/// computes at half of the speed, and the one that sleeps at nearly full speed.
const ON_A_BUSY_MACHINE_PERCENT: u64 = 300;

/// Blocks of single steps show as much, with a rule for so few.
const SHORT: [&str; 8] = [
    "--steps",
    "40",
    "--set",
    "telemetry.matmul_probe=0s",
    "--set",
    "telemetry.straggler_block_steps=1",
    "--set",
    "telemetry.straggler_false_per_1000h=1000",
];

/// Many short steps.
const LONG: [&str; 10] = [
    "--set",
    "telemetry.matmul_probe=0s",
    "--set",
    "schedule.steps=1000",
    "--set",
    "batch.global_sequences=2",
    "--set",
    "batch.micro_sequences=1",
    "--threads",
    "1",
];

/// First slow step of a long run.
const FROM: u64 = 300;

/// Runs with one slow rank, which name it with its kind; none names another. In a soak, all runs
/// are of the first strength, and one of them may miss it. Elsewhere two runs must find it: other
/// users may hide any slowdown from one run, so the next one has the next strength. `run` trains in
/// a folder with a rank that is slowed down by a strength in percent.
fn assert_all_named(
    what: &str,
    kind: &str,
    strengths: &[u64],
    run: impl Fn(&Folder, u64, u64) -> Finished,
) {
    let trials = soak_trials();
    let enough = trials.map_or(2, |trials| trials - 1);
    let mut right = 0;
    let mut missed = 0;
    while right < enough {
        let rank = right % 2;
        let strength = strengths[trials.map_or(missed, |_| 0)];
        let folder = Folder::new();
        let finished = run(&folder, rank, strength);
        assert_eq!(finished.code, 0, "{finished:?}");
        let found = named(&folder.record());
        if found.is_empty() {
            missed += 1;
            let most = trials.map_or(strengths.len(), |_| 2);
            assert!(missed < most, "{what}: named {right} times, missed {missed} times");
            continue;
        }
        assert_eq!(found, [(rank, kind.to_owned())], "{finished:?}");
        right += 1;
        println!("{what}: named with {strength} %");
        let expected = format!("rank {rank} (");
        let names_it = |line: &str| line.contains(&expected) && line.contains(" is slow at ");
        assert!(finished.stderr.lines().any(names_it), "{finished:?}");
    }
    println!("{what}: named {right} times, missed {missed} times");
}

/// Same with an injected slowdown of `strengths` percent.
fn assert_named(kind: &str, strengths: &[u64], from: &str, flags: &[&str]) {
    assert_all_named(&format!("slow-{kind}"), kind, strengths, |folder, rank, percent| {
        let slow = format!("slow-{kind}@rank={rank},percent={percent}{from}");
        folder.train_on(2, &[&["--inject", &slow], flags].concat())
    });
}

#[test]
fn a_rank_that_becomes_slower_is_named() {
    let _machine = alone();
    assert_named("compute", &[10, 20, 40, 80], &format!(",step={FROM}"), &LONG);
}

/// Takes a share of a core, as another process would.
struct Load {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    fn on(core: usize, percent: u64) -> Self {
        let busy = Duration::from_micros(percent * 100);
        let idle = Duration::from_millis(10) - busy;
        let end = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&end);
        let work = move || {
            let mut cores = CpuSet::new();
            cores.set(core);
            sched_setaffinity(None, &cores).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                let start = Instant::now();
                while start.elapsed() < busy {
                    std::hint::spin_loop();
                }
                std::thread::sleep(idle);
            }
        };
        Self { end, thread: Some(std::thread::spawn(work)) }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

/// Trains while another process takes a share of the core of a rank, from some step on.
fn train_beside_load(folder: &Folder, rank: u64, percent: u64) -> Finished {
    let path = folder.path();
    let add_load = move || {
        let deadline = Instant::now() + Duration::from_secs(60);
        while last_step(&path) < FROM {
            assert!(Instant::now() < deadline, "no step {FROM}");
            std::thread::sleep(Duration::from_millis(20));
        }
        let core = support::record(&path)["ranks"][rank as usize]["cores"][0].as_u64();
        Load::on(core.expect("bound ranks") as usize, percent)
    };
    let load = std::thread::spawn(add_load);
    let finished = folder.train_on(2, &LONG);
    drop(load.join().unwrap());
    finished
}

/// Number of steps that rank 0 has written.
fn last_step(run: &Path) -> u64 {
    let text = std::fs::read_to_string(run.join("steps/r000000.jsonl")).unwrap_or_default();
    text.lines().count() as u64
}

#[test]
#[ignore = "long, and only right where nothing else runs: `make soak-stragglers`"]
fn a_rank_beside_another_process_is_named() {
    let _machine = alone();
    assert_all_named("a process beside it", "compute", &[30, 50, 70, 90], train_beside_load);
}

/// Returns the number of runs in the environment, for a machine without other users:
/// `make soak-stragglers`.
fn soak_trials() -> Option<u64> {
    Some(std::env::var("YARDSTICK_SOAK_STRAGGLERS").ok()?.parse().unwrap())
}

#[test]
fn a_slow_rank_is_named_while_the_run_goes_on() {
    let _machine = alone();
    for kind in ["compute", "data", "communication"] {
        match soak_trials() {
            Some(_) => assert_named(kind, &[25], "", &["--steps", "200"]),
            None => assert_named(kind, &[ON_A_BUSY_MACHINE_PERCENT; 4], "", &SHORT),
        }
    }
}

#[test]
fn a_rank_that_writes_slowly_is_named() {
    let _machine = alone();
    // Saves alone are judged: a neighbour on one core shows in steps. Times of writing differ by
    // factors on a busy machine.
    let saves = ["--steps", "40", "--checkpoint-every", "1steps"];
    let only_saves = ["telemetry.straggler_block_steps=0", "checkpoint.background=false"];
    let only_saves = only_saves.map(|setting| ["--set", setting]);
    let flags = [&saves[..], only_saves.as_flattened()].concat();
    assert_named("checkpoint", &[1000; 4], "", &flags);
}

#[test]
fn a_verdict_asks_for_a_checkpoint() {
    let _machine = alone();
    let folder = Folder::new();
    let slow = format!("slow-compute@rank=1,percent={ON_A_BUSY_MACHINE_PERCENT}");
    let flags = ["--inject", &slow, "--set", "checkpoint.on_verdict=true"];
    let finished = folder.train_on(2, &[&["--steps", "80"], &SHORT[2..], &flags].concat());
    assert_eq!(finished.code, 0, "{finished:?}");
    let checkpoints = &folder.record()["checkpoints"];
    // One for each verdict: on a busy machine a rank may be found slow, well, and slow again.
    assert!(checkpoints["triggers"]["health"].as_u64() >= Some(1), "{checkpoints:#}");
}

const THREE_RANKS: [&str; 6] =
    ["--set", "batch.micro_sequences=1", "--set", "batch.global_sequences=12", "--deadline", "12s"];

fn assert_names_rank_1(folder: &Folder, finished: &Finished, where_it_is: &str) {
    assert_eq!(finished.code, 5, "{finished:?}");
    let arrived = "arrived, waits for bucket 1 of 1";
    for expected in [where_it_is, arrived, "has not ended for 6.0 s"] {
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
