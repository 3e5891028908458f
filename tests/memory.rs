//! The memory plan tells the peak of a run.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[cfg(feature = "mpi")]
#[path = "support/refuse.rs"]
mod refuse;
#[cfg(feature = "mpi")]
#[path = "support/refused.rs"]
mod refused;
mod support;

use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

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

/// A run.
struct Case {
    /// What sets it apart.
    chosen: Vec<&'static str>,
    settings: Vec<&'static str>,
    ranks: usize,
}

impl Case {
    /// One of eight in which each two of family, format, ranks, sharding, recomputation and packed
    /// weights occur in all four combinations.
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
        Self { chosen: chosen.to_vec(), settings, ranks: ranks + 1 }
    }

    /// The default workload, so small that processes and threads themselves show.
    fn small(ranks: usize, chosen: &'static str) -> Self {
        Self { chosen: vec![chosen], settings: vec!["--set", chosen], ranks }
    }

    /// Bytes of all ranks.
    fn planned(&self, extra: &[&str]) -> u64 {
        let ranks = self.ranks.to_string();
        let plan = ["plan", "--json", "--ranks", &ranks];
        let plan = run(&[&plan, &self.settings[..], extra].concat()).expect(0).stdout;
        let plan = serde_json::from_str::<Value>(&plan).unwrap();
        plan["total_bytes"].as_u64().unwrap() * self.ranks as u64
    }

    /// Trains three steps and saves.
    fn run(&self) -> Measured {
        self.run_by(
            |words| if self.ranks == 1 { yardstick(words) } else { mpirun(self.ranks, words) },
        )
    }

    /// The same with a command of its own. A run gives nothing back before its end, so that looking
    /// now and then finds the peak.
    fn run_by(&self, command: impl FnOnce(&[&str]) -> Command) -> Measured {
        let folder = Folder::new();
        let out = folder.text();
        let arguments = [&["train", "--steps", "3", "--out", &out], &self.settings[..]].concat();
        // One run at a time: on a machine that is too busy the peak passes between two looks.
        static ALONE: Mutex<()> = Mutex::new(());
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut peak, mut looks) = (0, 0);
        let mut running = Running::start(command(&arguments));
        let code = running.watch(|started| {
            looks += 1;
            if looks % 4 != 0 {
                return; // looking costs the ranks time
            }
            let ranks = if self.ranks == 1 { vec![started] } else { children(started) };
            let all = (ranks.len() == self.ranks).then(|| as_released(&ranks)).flatten();
            peak = peak.max(all.unwrap_or(0));
        });
        assert_eq!(code, Some(0));
        let record = folder.record();
        let ranks = record["ranks"].as_array().unwrap().iter();
        let planned = ranks.map(|rank| rank["planned_bytes"].as_u64().unwrap()).sum();
        Measured { planned, peak, chosen: self.chosen.clone() }
    }
}

/// Pages of the program's file, as measured of one rank of the released one.
const RELEASED_PROGRAM_BYTES: u64 = 6684 << 10;

/// The memory of ranks whose program is the released one, which the plan is of: where it is not
/// optimised there are twice as many pages of it.
fn as_released(ranks: &[u32]) -> Option<u64> {
    let [all, program] = resident_bytes(ranks)?;
    let folder = Path::new(env!("CARGO_BIN_EXE_yardstick")).parent().unwrap();
    let released = if folder.ends_with("release") { program } else { RELEASED_PROGRAM_BYTES };
    Some(all - program + released)
}

/// A run: bytes of all ranks together.
struct Measured {
    /// By the record.
    planned: u64,
    peak: u64,
    chosen: Vec<&'static str>,
}

impl Measured {
    /// What is wrong with the plan, if anything is.
    fn mistake(&self) -> Option<String> {
        let Self { planned, peak, chosen } = self;
        let ratio = *planned as f64 / *peak as f64;
        let told = || format!("{ratio:.3}: {planned} planned, {peak} found: {chosen:?}");
        ((ratio - 1.0).abs() >= 0.05).then(told)
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
    let small = [Case::small(1, "run.threads=8"), Case::small(4, "run.threads=1")];
    let cases = (0..8).map(Case::new).chain(small);
    for case in cases.filter(|case| case.ranks == 1 || cfg!(feature = "mpi")) {
        let run = case.run();
        assert_eq!(run.planned, case.planned(&[]), "known beforehand: {:?}", case.chosen);
        wrong.extend(run.mistake());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Ranks read weights from a folder without holding tensors twice. The largest is the table here,
/// and a sharded optimizer in bf16 leaves least else to hide it.
#[cfg(feature = "mpi")]
#[test]
fn so_it_is_with_weights_from_a_folder() {
    let settings = [
        "model.vocabulary=50304",
        "model.width=384",
        "model.layers=2",
        "model.context=64",
        "batch.sequence_tokens=64",
        "batch.micro_sequences=2",
        "batch.global_sequences=4",
        "precision.compute=bf16",
        "run.shard_optimizer=true",
    ];
    let settings = settings.into_iter().flat_map(|setting| ["--set", setting]).collect();
    let case = Case { chosen: vec!["--init-from"], settings, ranks: 2 };
    let (folder, exported) = (Folder::new(), Folder::new());
    let (out, exported) = (folder.text(), exported.text());
    run(&[&["train", "--steps", "1", "--out", &out], &case.settings[..]].concat()).expect(0);
    run(&["export", &out, "--out", &exported]).expect(0);
    let run =
        case.run_by(|words| mpirun(case.ranks, &[words, &["--init-from", &exported]].concat()));
    assert_eq!(run.mistake(), None);
}

/// Not a test by itself: what a rank of the test below does before it becomes `yardstick`.
#[cfg(feature = "mpi")]
#[test]
fn rank_of_a_job() {
    refused::become_yardstick();
}

/// Slots carry gradients where a rank may not make memory, which is planned as if it could: small
/// beside the gradients. MPI does where it may not find any.
#[cfg(feature = "mpi")]
#[test]
fn so_is_the_plan_of_ranks_that_may_not_share_memory() {
    let mut wrong = Vec::new();
    for (refused, is_known) in [("1\nmaking", true), ("1\nopening", false)] {
        for case in [4, 5].map(Case::new) {
            let run = case.run_by(|words| refused::two_ranks(refused, words));
            let beforehand = case.planned(&[]);
            assert_eq!(run.planned == beforehand, is_known, "{refused:?}: {:?}", case.chosen);
            wrong.extend(run.mistake().map(|told| format!("{refused:?}: {told}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_plan_says_where_it_is_an_estimate() {
    for (engine, tolerance) in [("fused", Value::Null), ("candle", 0.2.into())] {
        let engine = format!("run.engine={engine}");
        let plan = ["plan", "--set", &engine];
        let text = run(&plan).expect(0).stdout;
        assert_eq!(text.contains("estimate"), tolerance.is_number(), "{text}");
        assert_eq!(text.contains("within 20 % of what it allocates"), tolerance.is_number());
        let json = run(&[&plan[..], &["--json"]].concat()).expect(0).stdout;
        let json: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json.get("activation_tolerance"), Some(&tolerance));
    }
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
