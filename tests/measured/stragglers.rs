//! Slow ranks in real time, many times: `make soak-stragglers`, on a machine without other users.
//! `tests/verdicts` has the same in virtual time.
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

/// Many short steps.
const LONG: &[&str] = [
    ["--set", "telemetry.matmul_probe=0s"],
    ["--set", "schedule.steps=1000"],
    ["--set", "batch.global_sequences=2"],
    ["--set", "batch.micro_sequences=1"],
    ["--threads", "1"],
]
.as_flattened();

/// First slow step of a long run.
const FROM: u64 = 300;

/// Number of runs of each kind in which another rank is slow; one of them may miss it.
fn trials() -> u64 {
    std::env::var("YARDSTICK_SOAK_STRAGGLERS").map_or(20, |text| text.parse().unwrap())
}

/// Fails unless runs with one slow rank name it with its kind, and none names another. `run` trains
/// in a folder with that slow rank.
fn assert_all_named(what: &str, kind: &str, run: impl Fn(&Folder, u64) -> Finished) {
    let _machine = alone();
    let mut missed = 0;
    for trial in 0..trials() {
        let rank = trial % 2;
        let folder = Folder::new();
        let finished = run(&folder, rank).expect(0);
        let found = named(&folder.record());
        if found.is_empty() {
            missed += 1;
            continue;
        }
        assert_eq!(found, [(rank, kind.to_owned())], "{finished:?}");
    }
    println!("{what}: missed {missed} of {}", trials());
    assert!(missed < 2, "{what}: missed {missed} times");
}

/// Same with an injected slowdown.
fn assert_named(kind: &str, percent: u64, from: &str, flags: &[&str]) {
    assert_all_named(&format!("slow-{kind}"), kind, |folder, rank| {
        let slow = format!("slow-{kind}@rank={rank},percent={percent}{from}");
        folder.train_on(2, &[&["--inject", &slow], flags].concat())
    });
}

#[test]
#[ignore = "real time: `make soak-stragglers`"]
fn a_slow_rank_is_named_while_the_run_goes_on() {
    for kind in ["compute", "data", "communication"] {
        assert_named(kind, 25, "", &["--steps", "200"]);
    }
}

#[test]
#[ignore = "real time: `make soak-stragglers`"]
fn a_rank_that_becomes_slower_is_named() {
    assert_named("compute", 10, &format!(",step={FROM}"), LONG);
}

#[test]
#[ignore = "real time: `make soak-stragglers`"]
fn a_rank_that_writes_slowly_is_named() {
    let only_saves = ["telemetry.straggler_block_steps=0", "checkpoint.background=false"];
    let only_saves = only_saves.map(|setting| ["--set", setting]);
    let saves = ["--steps", "40", "--checkpoint-every", "1steps"];
    assert_named("checkpoint", 1000, "", &[&saves[..], only_saves.as_flattened()].concat());
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
    let finished = folder.train_on(2, LONG);
    drop(load.join().unwrap());
    finished
}

/// Number of steps that rank 0 has written.
fn last_step(run: &Path) -> u64 {
    let text = std::fs::read_to_string(run.join("steps/r000000.jsonl")).unwrap_or_default();
    text.lines().count() as u64
}

#[test]
#[ignore = "real time: `make soak-stragglers`"]
fn a_rank_beside_another_process_is_named() {
    assert_all_named("a process beside it", "compute", |folder, rank| {
        train_beside_load(folder, rank, 30)
    });
}
