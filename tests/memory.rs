//! The memory plan tells the peak of a run.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use serde_json::Value;
use support::{Folder, Running, peak_bytes, run, yardstick};

/// Large enough that no single item hides in the tolerance, and seconds long.
const SIZES: [&str; 8] = [
    "model.width=384",
    "model.heads=6",
    "model.feed_forward=1536",
    "model.layers=4",
    "model.vocabulary=4096",
    "model.context=256",
    "batch.sequence_tokens=256",
    "batch.micro_sequences=4",
];

fn settings<'a>(precision: &'a str, recompute: &'a str) -> Vec<&'a str> {
    let all = SIZES.into_iter().chain(["batch.global_sequences=4", precision, recompute]);
    all.flat_map(|setting| ["--set", setting]).collect()
}

fn planned_bytes(settings: &[&str]) -> u64 {
    let plan = run(&[&["plan", "--json"], settings].concat()).expect(0).stdout;
    serde_json::from_str::<Value>(&plan).unwrap()["total_bytes"].as_u64().unwrap()
}

/// Trains three steps and saves; returns the peak and the losses.
fn train(settings: &[&str]) -> (u64, Vec<(u64, u64)>) {
    let folder = Folder::new();
    let out = folder.text();
    let arguments = [&["train", "--steps", "3", "--out", &out], settings].concat();
    let mut peak = 0;
    let mut running = Running::start(yardstick(&arguments));
    let code = running.watch(|process| peak = peak.max(peak_bytes(process).unwrap_or(0)));
    assert_eq!(code, Some(0));
    (peak, folder.losses())
}

#[test]
fn the_plan_is_within_a_twentieth_of_the_peak_and_recomputation_changes_no_loss() {
    for precision in ["precision.compute=f32", "precision.compute=bf16"] {
        let [kept, again] = ["run.recompute=false", "run.recompute=true"].map(|recompute| {
            let settings = settings(precision, recompute);
            let planned = planned_bytes(&settings);
            let (peak, losses) = train(&settings);
            let ratio = planned as f64 / peak as f64;
            assert!((ratio - 1.0).abs() < 0.05, "{settings:?}: {planned} planned, {peak} found");
            (planned, losses)
        });
        assert_eq!(kept.1, again.1, "{precision}: losses");
        assert!(again.0 < kept.0 - (20 << 20), "{precision}: {} and {} bytes", kept.0, again.0);
    }
}
