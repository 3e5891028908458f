//! Slow ranks that a run names in virtual time, and ranks that hang.

use serde_json::Value;
use support::{Finished, Folder, StepLine};

use super::TINY;

/// Trains two ranks in virtual time with a slow part; `slow` are fields of the clock.
fn train(folder: &Folder, steps: &str, slow: &str, flags: &[&str]) -> Finished {
    let clock = format!("clock@seed=1,{slow}");
    let flags = [&TINY[..], &["--steps", steps, "--inject", &clock], flags].concat();
    folder.train_on(2, &flags).expect(0)
}

/// The ranks that a run found slow, each with its verdict.
fn named(folder: &Folder) -> Vec<(u64, Value)> {
    let record = folder.record();
    let ranks = record["ranks"].as_array().unwrap().iter();
    let found = ranks.filter(|rank| !rank["straggler"].is_null());
    found.map(|rank| (rank["rank"].as_u64().unwrap(), rank["straggler"].clone())).collect()
}

/// Fails unless rank 1 alone was named, with this kind and about so slow, and in a warning.
fn assert_named(folder: &Folder, finished: &Finished, kind: &str, share: f64) -> Value {
    let [(1, straggler)] = &named(folder)[..] else { panic!("{finished:?}") };
    assert_eq!(straggler["kind"], kind, "{straggler:#}");
    let slower = straggler["slower_share"].as_f64().unwrap();
    assert!((slower - share).abs() < 0.01, "{straggler:#}");
    let warning = format!("is slow at {kind}: ");
    let names_it = |line: &str| line.contains("rank 1 (") && line.contains(&warning);
    assert!(finished.stderr.lines().any(names_it), "{finished:?}");
    straggler.clone()
}

#[test]
fn a_slow_rank_is_named_while_the_run_goes_on() {
    for kind in ["compute", "data", "communication"] {
        let folder = Folder::new();
        let slow = format!("rank=1,percent=25,part={kind}");
        let finished = train(&folder, "400", &slow, &[]);
        assert_named(&folder, &finished, kind, 0.25);
    }
}

#[test]
fn a_rank_that_becomes_slower_is_named() {
    let folder = Folder::new();
    let finished = train(&folder, "1000", "rank=1,percent=10,step=301", &[]);
    let straggler = assert_named(&folder, &finished, "compute", 0.1);
    assert!(straggler["since_step"].as_u64().unwrap() >= 301, "{straggler:#}");
}

#[test]
fn ranks_alike_are_not_named() {
    let folder = Folder::new();
    train(&folder, "1000", "rank=1,percent=0", &[]);
    assert_eq!(named(&folder), []);
}

#[test]
fn a_rank_that_writes_slowly_is_named() {
    let folder = Folder::new();
    let slow = "rank=1,percent=50,part=checkpoint";
    let saves = ["--checkpoint-every", "1steps", "--set", "checkpoint.background=false"];
    let finished = train(&folder, "40", slow, &saves);
    assert_named(&folder, &finished, "checkpoint", 0.5);
}

#[test]
fn a_verdict_asks_for_a_checkpoint() {
    let folder = Folder::new();
    let on_verdict = ["--set", "checkpoint.on_verdict=true"];
    train(&folder, "400", "rank=1,percent=50", &on_verdict);
    let checkpoints = &folder.record()["checkpoints"];
    assert_eq!(checkpoints["triggers"]["health"], 1, "{checkpoints:#}");
}

/// Every sink has the same times, which are those of the seed.
#[test]
fn virtual_times_add_up_and_are_those_of_the_seed() {
    let times_of = |seed: &str| {
        let folder = Folder::new();
        train(&folder, "30", &format!("rank=1,percent=20,seed={seed}"), &[]);
        let record = folder.record();
        let injected = record["attempts"][0]["injected"][0].as_str().unwrap();
        assert!(injected.starts_with("clock@"), "{record:#}");
        assert_eq!(record["goodput"], Value::Null);
        let [first, second] = [0, 1].map(|rank| folder.steps(rank));
        for line in first.iter().chain(&second) {
            let phases = line.0["phases_ns"].as_object().unwrap().values();
            let sum: u64 = phases.map(|ns| ns.as_u64().unwrap()).sum();
            assert_eq!(line.0["wall_ns"], sum, "{line:?}");
        }
        let walls = |steps: &[StepLine]| -> Vec<u64> {
            steps.iter().map(|line| line.0["wall_ns"].as_u64().unwrap()).collect()
        };
        let of_first = walls(&first);
        assert_eq!(of_first, walls(&second));
        let seconds = 1e-9 * of_first.iter().sum::<u64>() as f64 / of_first.len() as f64;
        let tokens = first[0].0["tokens"].as_f64().unwrap();
        let rate = record["tokens_per_second"]["step"]["total"].as_f64().unwrap();
        assert!((rate * seconds / tokens - 1.0).abs() < 0.01, "{rate}, {seconds}");
        of_first
    };
    let first = times_of("7");
    assert_eq!(first, times_of("7"));
    assert_ne!(first, times_of("8"));
}

const THREE_RANKS: [&str; 6] =
    ["--set", "batch.micro_sequences=1", "--set", "batch.global_sequences=12", "--deadline", "6s"];

fn assert_names_rank_1(fault: &str, where_it_is: &str) {
    let folder = Folder::new();
    let inject = format!("{fault}@step=10,rank=1");
    let flags = [&TINY[..], &THREE_RANKS, &["--inject", &inject]].concat();
    let finished = folder.train_on(3, &flags).expect(5);
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
    assert_names_rank_1("hang", "): not arrived, in other; ranks 0 (");
}

#[test]
fn a_frozen_process_is_named_as_silent() {
    assert_names_rank_1("freeze", "): silent: the process hangs as a whole");
}

#[test]
fn ranks_compare_what_they_reach_after_the_first_step() {
    let folder = Folder::new();
    let probe = ["--set", "telemetry.matmul_probe=250ms", "--steps", "3"];
    folder.train_on(2, &[&TINY[..], &probe].concat()).expect(0);
    let record = folder.record();
    let nodes = &record["nodes"];
    assert_eq!(nodes.as_array().unwrap().len(), 1, "{nodes:#}");
    assert!(nodes[0]["identity"]["kernel.release"].is_string(), "{nodes:#}");
    for rank in record["ranks"].as_array().unwrap() {
        let sniffed = &rank["sniffed"];
        for rate in ["matmul_flops_per_second", "memory_bytes_per_second"] {
            assert!(sniffed[rate].as_f64().unwrap() > 1e7, "{rank:#}");
        }
    }
}
