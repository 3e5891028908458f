//! Agreement of the memory plan with the peak memory of a run.

use std::path::Path;
use std::process::Command;

use crate::alone;
use serde_json::Value;
#[cfg(feature = "mpi")]
use support::denied_ranks::{self, Denied};
use support::{Folder, Running, is_matrix, mpirun, resident_bytes, run, yardstick};

/// Large enough that every item of the plan exceeds the tolerance, and that a run takes seconds.
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
    /// The settings that distinguish it, for messages.
    chosen: Vec<&'static str>,
    settings: Vec<&'static str>,
    ranks: usize,
}

impl Case {
    /// Creates one of eight cases, in which each two of family, format, ranks, sharding,
    /// recomputation and size of micro-batches occur in all four combinations.
    fn new(number: usize) -> Self {
        let bit = |at: usize| number >> at & 1;
        let family = bit(0);
        let format = bit(1);
        let ranks = bit(2);
        let sharded = family ^ format;
        let recomputed = family ^ ranks;
        let small = family ^ format ^ ranks;
        let of = |choice: usize, [no, yes]: [&'static str; 2]| if choice == 0 { no } else { yes };
        let chosen = [
            of(family, ["smoke", "llama-smoke"]),
            of(format, ["precision.compute=f32", "precision.compute=bf16"]),
            of(ranks, ["batch.global_sequences=4", "batch.global_sequences=8"]),
            of(sharded, ["parallel.sharded=none", "parallel.sharded=optimizer"]),
            of(recomputed, [KEPT, RECOMPUTED]),
            of(small, ["batch.micro_sequences=4", "batch.micro_sequences=2"]),
            PROBES,
        ];
        let settings = SIZES.iter().chain(&chosen[1..]).flat_map(|&setting| ["--set", setting]);
        let settings = ["--workload", chosen[0]].into_iter().chain(settings).collect();
        Self { chosen: chosen.to_vec(), settings, ranks: ranks + 1 }
    }

    /// The default workload, which is so small that the overhead of processes and threads matters.
    fn small(ranks: usize, chosen: &'static str) -> Self {
        let settings = vec!["--set", chosen, "--set", NO_PROBE];
        Self { chosen: vec![chosen], settings, ranks }
    }

    /// Four ranks in two dimensions, between which MPI carries everything.
    fn two_by_two(sharded: &'static str) -> Self {
        let chosen = ["parallel.data=2", "parallel.shard=2", sharded];
        let batch = ["batch.micro_sequences=2", "batch.global_sequences=8", NO_PROBE];
        let settings = SIZES.iter().chain(&chosen).chain(&batch).flat_map(|&it| ["--set", it]);
        Self { chosen: chosen.to_vec(), settings: settings.collect(), ranks: 4 }
    }

    /// A model whose weights dominate, divided among all ranks.
    #[cfg(feature = "mpi")]
    fn divided(ranks: usize) -> Self {
        let settings = [
            "model.width=512",
            "model.heads=8",
            "model.feed_forward=2048",
            "model.layers=6",
            "model.vocabulary=4096",
            "model.context=64",
            "batch.sequence_tokens=64",
            "batch.micro_sequences=1",
            "batch.global_sequences=8",
            "collectives.bucket_bytes=4MiB",
            "parallel.sharded=weights",
            NO_PROBE,
        ];
        let settings = settings.into_iter().flat_map(|setting| ["--set", setting]).collect();
        Self { chosen: vec!["divided"], settings, ranks }
    }

    /// Plan of a rank.
    fn plan(&self, extra: &[&str]) -> Value {
        let ranks = self.ranks.to_string();
        let plan = ["plan", "--json", "--ranks", &ranks];
        let plan = run(&[&plan, &self.settings[..], extra].concat()).expect(0).stdout;
        serde_json::from_str(&plan).unwrap()
    }

    /// Planned bytes of all ranks.
    fn planned(&self, extra: &[&str]) -> u64 {
        self.plan(extra)["total_bytes"].as_u64().unwrap() * self.ranks as u64
    }

    /// Trains two steps and saves.
    fn run(&self) -> Measured {
        let is_single = self.ranks == 1;
        self.run_by(|args| if is_single { yardstick(args) } else { mpirun(self.ranks, args) })
    }

    /// Runs the case with another command. A run frees nothing before its end, so that the peak is
    /// found by sampling. `VmHWM` would count what ranks share once for each of them.
    fn run_by(&self, command: impl FnOnce(&[&str]) -> Command) -> Measured {
        let folder = Folder::new();
        let out = folder.text();
        let train = ["train", "--steps", "2", "--out", &out];
        let arguments = [&train, &self.settings[..]].concat();
        // One run at a time: on a busy machine the peak could be between two samples.
        let _machine = alone();
        let mut peak = 0;
        let mut polls = 0;
        let mut running = Running::start(command(&arguments));
        let code = running.poll_until_exit(|started| {
            polls += 1;
            if polls % 4 != 0 {
                return; // a sample slows the ranks
            }
            let ranks = if self.ranks == 1 { vec![started] } else { children(started) };
            let all = (ranks.len() == self.ranks).then(|| bytes_of_release(&ranks)).flatten();
            peak = peak.max(all.unwrap_or(0));
        });
        assert_eq!(code, Some(0));
        let record = folder.record();
        let ranks = record["ranks"].as_array().unwrap().iter();
        let planned = ranks.map(|rank| rank["planned_bytes"].as_u64().unwrap()).sum();
        Measured { planned, peak, chosen: self.chosen.clone() }
    }
}

/// Pages of the program's file in a release build, measured on one rank.
const RELEASE_PROGRAM_BYTES: u64 = 6684 << 10;

/// The memory that the ranks would have with a release build, which the plan assumes: other builds
/// have twice as many pages of the program.
fn bytes_of_release(ranks: &[u32]) -> Option<u64> {
    let resident = resident_bytes(ranks)?;
    let folder = Path::new(env!("CARGO_BIN_EXE_yardstick")).parent().unwrap();
    let is_release = folder.ends_with("release");
    let program = if is_release { resident.program } else { RELEASE_PROGRAM_BYTES };
    Some(resident.total - resident.program + program)
}

/// Bytes of all ranks of a run together.
struct Measured {
    /// Planned bytes, from the record.
    planned: u64,
    peak: u64,
    chosen: Vec<&'static str>,
}

impl Measured {
    /// A description of the error of the plan, if it is too large.
    fn error(&self) -> Option<String> {
        let Self { planned, peak, chosen } = self;
        let ratio = *planned as f64 / *peak as f64;
        let text = || format!("{ratio:.3}: {planned} planned, {peak} measured: {chosen:?}");
        ((ratio - 1.0).abs() >= 0.05).then(text)
    }
}

/// Memory of probes is measured where all ranks hold it at the same time for long enough.
const PROBES: &str = "telemetry.matmul_probe=250ms";
const NO_PROBE: &str = "telemetry.matmul_probe=0s";

const KEPT: &str = "run.recompute=selective";
const RECOMPUTED: &str = "run.recompute=full";

/// The child processes of a process.
fn children(process: u32) -> Vec<u32> {
    let path = format!("/proc/{process}/task/{process}/children");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().map(|id| id.parse().unwrap()).collect()
}

/// Each factor has both values; all cases in `make test-matrix`.
#[test]
fn the_plan_is_within_5_percent_of_the_peak() {
    let mut errors = Vec::new();
    let mut cases = Vec::from([1, 6, 7].map(Case::new));
    cases.extend([Case::small(4, "run.threads=1"), Case::two_by_two("parallel.sharded=weights")]);
    if is_matrix() {
        cases.extend([0, 2, 3, 4, 5].map(Case::new));
        cases.push(Case::small(1, "run.threads=8"));
        cases.push(Case::two_by_two("parallel.sharded=optimizer"));
    }
    for case in cases.iter().filter(|case| case.ranks == 1 || cfg!(feature = "mpi")) {
        let run = case.run();
        assert_eq!(run.planned, case.planned(&[]), "`plan` and record: {:?}", case.chosen);
        errors.extend(run.error());
    }
    assert!(errors.is_empty(), "{}", errors.join("\n"));
}

/// Weights, gradients and both moments fall as 1 / ranks, and the memory of the ranks with them.
#[cfg(feature = "mpi")]
#[test]
fn divided_state_is_a_share_of_each_rank() {
    let state = |ranks: usize| {
        let items = Case::divided(ranks).plan(&[])["plan"]["items"].clone();
        let bytes = |name: &str| {
            let item = items.as_array().unwrap().iter().find(|item| item["name"] == name).unwrap();
            item["bytes"].as_u64().unwrap()
        };
        ["weights", "gradients", "Adam first moment", "Adam second moment"].map(bytes)
    };
    let whole = state(1);
    for ranks in [1, 2, 4, 8] {
        for (whole, share) in whole.into_iter().zip(state(ranks)) {
            let padding = share * ranks as u64 - whole;
            assert!(padding < whole / 1000, "{ranks} ranks: {share} of {whole} bytes");
        }
    }
    for ranks in [2, 8] {
        let Measured { planned, peak, .. } = Case::divided(ranks).run();
        let ratio = planned as f64 / peak as f64;
        assert!((ratio - 1.0).abs() < 0.1, "{ranks} ranks: {planned} planned, {peak} measured");
    }
    let dominating: u64 = whole.iter().sum();
    assert!(dominating * 4 > Case::divided(1).planned(&[]) * 3);
}

/// Ranks hold an imported tensor only once. Here the largest is the embedding table, and a sharded
/// optimizer in bf16 has the smallest memory for everything else.
#[cfg(feature = "mpi")]
#[test]
fn the_plan_holds_with_imported_weights() {
    let settings = [
        "model.vocabulary=50304",
        "model.width=384",
        "model.layers=2",
        "model.context=64",
        "batch.sequence_tokens=64",
        "batch.micro_sequences=2",
        "batch.global_sequences=4",
        "precision.compute=bf16",
        "parallel.sharded=optimizer",
    ];
    let settings = settings.into_iter().flat_map(|setting| ["--set", setting]).collect();
    let case = Case { chosen: vec!["--init-from"], settings, ranks: 2 };
    let folder = Folder::new();
    let exported = support::text(&folder.sibling("exported"));
    folder.train(&[&["--steps", "1"], &case.settings[..]].concat()).expect(0);
    run(&["export", &folder.text(), "--out", &exported]).expect(0);
    let init_from = ["--init-from", &exported];
    let run = case.run_by(|arguments| mpirun(case.ranks, &[arguments, &init_from].concat()));
    assert_eq!(run.error(), None);
}

/// MPI carries gradients if a rank cannot create or map shared memory, which is known only when
/// ranks have started: the plan beforehand assumes that it can.
#[cfg(feature = "mpi")]
#[test]
fn the_plan_holds_without_shared_memory() {
    let mut errors = Vec::new();
    let mut denials = vec![(Denied::Creating(1), 4)];
    if is_matrix() {
        denials.push((Denied::Opening(1), 5));
    }
    for (denied, case) in denials {
        let case = Case::new(case);
        let run = case.run_by(|arguments| denied_ranks::two_ranks(Some(denied), arguments));
        let planned = case.planned(&[]);
        assert_ne!(run.planned, planned, "{denied:?}: {:?}", case.chosen);
        errors.extend(run.error().map(|error| format!("{denied:?}: {error}")));
    }
    assert!(errors.is_empty(), "{}", errors.join("\n"));
}

#[test]
fn a_plan_states_whether_it_is_an_estimate() {
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

/// Judges by the requested device, and not by this machine.
#[test]
fn a_plan_is_judged_by_the_memory_of_its_device() {
    let large = ["plan", "--workload", "llama3-8b", "--device", "cuda", "--ranks", "8"];
    let judged = |extra: &[&str]| {
        let text = run(&[&large[..], extra].concat());
        let json = run(&[&large[..], extra, &["--json"]].concat());
        assert_eq!(text.code, json.code, "{}", text.stdout);
        let json: Value = serde_json::from_str(&json.stdout).unwrap();
        (text.code, text.stdout, json["fits"].clone())
    };
    let (code, text, fits) = judged(&["--device-memory", "80GiB"]);
    assert_eq!((code, fits), (3, false.into()), "{text}");
    // Recomputation is chosen as needed, and is planned with the remedy.
    assert!(text.contains("recomputation: full"), "{text}");
    assert!(text.contains("it fits with parallel.sharded = optimizer ("), "{text}");
    let shard = ["--set", "parallel.sharded=optimizer", "--device-memory", "80GiB"];
    let (code, text, fits) = judged(&shard);
    assert_eq!((code, fits), (0, true.into()), "{text}");
    // Neither of both suffices alone.
    let (code, text, _) = judged(&[&shard[..], &["--set", "run.recompute=none"]].concat());
    assert!(code == 3 && text.contains("it fits with run.recompute = full ("), "{text}");
    let (code, text, fits) = judged(&["--device-memory", "192GiB"]);
    assert_eq!((code, fits), (0, true.into()), "{text}");
    assert!(text.ends_with("It fits.\n"), "{text}");
    if !Path::new("/dev/nvidiactl").exists() {
        let (code, text, fits) = judged(&[]);
        assert_eq!((code, fits), (0, Value::Null), "{text}");
        assert!(text.contains("device memory unknown") && !text.contains("It fits"), "{text}");
    }
}

/// The activations of one sequence of llama3-70b are larger, however much is shared.
#[test]
fn a_plan_names_no_remedy_that_does_not_help() {
    let large = ["plan", "--workload", "llama3-70b"];
    let small = ["--device", "cuda", "--device-memory", "8GiB"];
    let text = run(&[&large[..], &small].concat()).expect(3).stdout;
    assert!(text.contains("hint: it does not fit even with "), "{text}");
    assert!(text.contains("use a smaller model, or devices with more memory"), "{text}");
    run(&[&large[..], &["--expect-id", "0"]].concat()).expect(2);
    run(&["plan", "--device-memory", "80GiB"]).expect(2).expect_stderr(&["--device cuda"]);
    run(&["plan", "--device-memory", "80"]).expect(2);
    let unit = ["plan", "--device", "cuda", "--device-memory", "80 pounds"];
    run(&unit).expect(2).expect_stderr(&["a size such as 64MiB"]);
}

#[test]
fn recomputation_saves_memory() {
    for case in (0..8).map(Case::new) {
        let [kept, recomputed] = [KEPT, RECOMPUTED].map(|run| case.planned(&["--set", run]));
        assert!(recomputed < kept - (8 << 20), "{:?}: {kept}, {recomputed} bytes", case.chosen);
    }
}
