//! The memory plan tells the peak of a run.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use serde_json::Value;
use support::{Folder, Running, mpirun, resident_bytes, run, yardstick};

/// Large enough that no single item hides in the tolerance, and seconds long.
const SIZES: [&str; 7] = [
    "model.width=384",
    "model.heads=6",
    "model.feed_forward=1536",
    "model.layers=4",
    "model.vocabulary=4096",
    "model.context=256",
    "batch.sequence_tokens=256",
];

/// One of eight runs in which each two of family, format, ranks, sharding, recomputation and packed
/// weights occur in all four combinations.
struct Case {
    /// What sets it apart.
    chosen: [&'static str; 6],
    settings: Vec<&'static str>,
    ranks: usize,
}

impl Case {
    fn new(number: usize) -> Self {
        let bit = |at: usize| number >> at & 1;
        let (family, format, ranks) = (bit(0), bit(1), bit(2));
        let (sharded, recomputed) = (family ^ format, family ^ ranks);
        let packed = family ^ format ^ ranks;
        let of = |choice: usize, [no, yes]: [&'static str; 2]| if choice == 0 { no } else { yes };
        let chosen = [
            of(family, ["smoke", "llama-smoke"]),
            of(format, ["precision.compute=f32", "precision.compute=bf16"]),
            of(ranks, ["batch.global_sequences=4", "batch.global_sequences=8"]),
            of(sharded, ["run.shard_optimizer=false", "run.shard_optimizer=true"]),
            of(recomputed, [KEPT, RECOMPUTED]),
            of(packed, ["batch.micro_sequences=4", SMALL_MICRO_BATCHES]),
        ];
        let settings = SIZES.iter().chain(&chosen[1..]).flat_map(|&setting| ["--set", setting]);
        let settings = ["--workload", chosen[0]].into_iter().chain(settings).collect();
        Self { chosen, settings, ranks: ranks + 1 }
    }

    /// Bytes of all ranks.
    fn planned(&self, extra: &[&str]) -> u64 {
        let ranks = self.ranks.to_string();
        let plan = ["plan", "--json", "--ranks", &ranks];
        let plan = run(&[&plan, &self.settings[..], extra].concat()).expect(0).stdout;
        let plan = serde_json::from_str::<Value>(&plan).unwrap();
        plan["total_bytes"].as_u64().unwrap() * self.ranks as u64
    }

    /// Trains three steps and saves; the peak of all ranks together. A run gives nothing back
    /// before its end, so that looking now and then finds the peak.
    fn found(&self) -> u64 {
        let folder = Folder::new();
        let out = folder.text();
        let arguments = [&["train", "--steps", "3", "--out", &out], &self.settings[..]].concat();
        let is_alone = self.ranks == 1;
        let command = if is_alone { yardstick(&arguments) } else { mpirun(self.ranks, &arguments) };
        let (mut peak, mut looks, mut running) = (0, 0, Running::start(command));
        let code = running.watch(|started| {
            looks += 1;
            if looks % 4 != 0 {
                return; // looking costs the ranks time
            }
            let ranks = if is_alone { vec![started] } else { children(started) };
            let all = (ranks.len() == self.ranks).then(|| resident_bytes(&ranks)).flatten();
            peak = peak.max(all.unwrap_or(0));
        });
        assert_eq!(code, Some(0));
        peak
    }
}

const KEPT: &str = "run.recompute=false";
const RECOMPUTED: &str = "run.recompute=true";

/// Two a step, so small that weights stay packed between them.
const SMALL_MICRO_BATCHES: &str = "batch.micro_sequences=2";

/// The processes that one has started.
fn children(process: u32) -> Vec<u32> {
    let path = format!("/proc/{process}/task/{process}/children");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().map(|id| id.parse().unwrap()).collect()
}

#[test]
fn the_plan_is_within_a_twentieth_of_the_peak() {
    let mut wrong = Vec::new();
    for case in (0..8).map(Case::new).filter(|case| case.ranks == 1 || cfg!(feature = "mpi")) {
        let (planned, found) = (case.planned(&[]), case.found());
        let ratio = planned as f64 / found as f64;
        let told = format!("{ratio:.3}: {planned} planned, {found} found: {:?}", case.chosen);
        if (ratio - 1.0).abs() >= 0.05 {
            wrong.push(told);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn recomputation_saves_memory() {
    for case in (0..8).map(Case::new) {
        let [kept, again] = [KEPT, RECOMPUTED].map(|run| case.planned(&["--set", run]));
        assert!(again < kept - (8 << 20), "{:?}: {kept} and {again} bytes", case.chosen);
    }
}

#[test]
fn packed_weights_are_planned_where_small_micro_batches_read_them_again() {
    for case in (0..8).map(Case::new) {
        let [packed, unpacked] = ["run.pack_weights=true", "run.pack_weights=false"]
            .map(|run| case.planned(&["--set", run]));
        let is_kept = case.chosen.contains(&SMALL_MICRO_BATCHES);
        assert_eq!(packed > unpacked + (20 << 20), is_kept, "{:?}", case.chosen);
        assert_eq!(packed == unpacked, !is_kept, "{:?}", case.chosen);
    }
}
