//! `yardstick ckpt`: the checkpoints of a run on all of its tiers.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::fs;

use serde_json::Value;
use support::{Finished, Folder, run};

/// A run of one rank with a tier of its node and a shared one.
struct Run {
    folder: Folder,
}

impl Run {
    fn new() -> Self {
        let run = Self { folder: Folder::new() };
        run.train("8");
        run
    }

    fn train(&self, steps: &str) {
        let [nvme, shared] = ["nvme", "shared"].map(|tier| {
            let path = self.folder.sibling(tier);
            format!("checkpoint.{tier}.path={}", path.display())
        });
        let set = ["--set", &nvme, "--set", &shared];
        let steps = ["--steps", steps, "--threads", "1", "--checkpoint-every", "4steps"];
        self.folder.train(&[&steps[..], &set].concat()).expect(0);
    }

    fn ckpt(&self, command: &str, flags: &[&str]) -> Finished {
        run(&[&["ckpt", command, &self.folder.text()], flags].concat())
    }

    fn listed(&self) -> Vec<Value> {
        let listed = self.ckpt("ls", &["--json"]).expect(0).stdout;
        serde_json::from_str(&listed).unwrap()
    }

    /// Names of the checkpoints, newest first.
    fn names(&self) -> Vec<String> {
        self.listed().iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect()
    }
}

/// Tiers of a checkpoint in a listing that have it committed.
fn durable_on(row: &Value) -> Vec<&str> {
    let tiers = row["tiers"].as_array().unwrap().iter();
    let durable = tiers.filter(|copy| copy["state"] == "committed");
    durable.map(|copy| copy["tier"].as_str().unwrap()).collect()
}

#[test]
fn all_tiers_are_listed_and_verified() {
    let run = Run::new();
    let listed = run.listed();
    assert_eq!(listed[0]["step"], 8);
    assert_eq!(durable_on(&listed[0]), ["nvme", "shared"]);
    assert!(listed[0]["age_seconds"].as_u64().unwrap() < 3600);
    run.ckpt("ls", &[]).expect(0).expect_stdout(&["durable on", "nvme, shared"]);
    run.ckpt("ls", &["--tier", "object"]).expect(2).expect_stderr(&["nvme, shared"]);
    run.ckpt("verify", &[]).expect(0).expect_stdout(&["on nvme: ok", "on shared: ok"]);
    fs::remove_dir_all(run.folder.sibling("nvme")).unwrap();
    let alone = run.ckpt("ls", &[]).expect(0).expect_stderr(&["tier nvme: no checkpoint"]);
    assert!(!alone.stdout.contains("nvme"), "{}", alone.stdout);
    fs::remove_dir_all(run.folder.sibling("shared")).unwrap();
    run.ckpt("ls", &[]).expect(6).expect_stderr(&["no tier has a checkpoint"]);
}

#[test]
fn a_pinned_checkpoint_stays_on_every_tier() {
    let run = Run::new();
    let pinned = run.names().pop().unwrap();
    run.ckpt("pin", &[&pinned]).expect(0);
    run.ckpt("pin", &["s000000009-a0001-00000000"]).expect(6);
    run.train("20");
    let listed = run.listed();
    let found = listed.iter().find(|row| row["name"] == *pinned).unwrap();
    assert_eq!(found["pinned"], true);
    assert_eq!(listed.len(), 3, "two newest and the pinned one: {listed:?}");
    run.ckpt("ls", &[]).expect(0).expect_stdout(&["  pinned"]);
    run.ckpt("unpin", &[&pinned]).expect(0);
    run.train("24");
    assert!(!run.names().contains(&pinned));
}
