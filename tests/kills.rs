//! Kills, stops, hangs and bad numbers: what is left, and how it goes on.

#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![cfg(feature = "mpi")]

mod support;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use checkpoint::Point;
use models::rng::{Purpose, Stream};
use serde_json::Value;
use support::{Finished, Folder, KINDS, Kind, Running, finish, launch, mpirun};

const STEPS: u64 = 24;

fn arguments<'a>(out: &'a str, extra: &[&'a str]) -> Vec<&'a str> {
    let mut all = vec!["train", "--steps", "24", "--threads", "1"];
    all.extend(["--checkpoint-every", "4steps", "--out", out]);
    all.extend(extra);
    all
}

/// Losses and fingerprint.
type End = (Vec<(u64, u64)>, Value);

fn end(folder: &Folder) -> End {
    (folder.losses(), folder.record()["fingerprint"].clone())
}

/// Of a run on two ranks to which nothing happens, of this kind's family and format; made once for
/// all tests.
fn undisturbed(kind: Kind) -> &'static End {
    static ENDS: [OnceLock<End>; KINDS] = [const { OnceLock::new() }; KINDS];
    ENDS[kind.plain().index()].get_or_init(|| {
        let folder = Folder::new();
        finish(mpirun(2, &arguments(&folder.text(), &kind.plain().flags()))).expect(0);
        end(&folder)
    })
}

/// One that ended after four steps, so that it goes on without them.
fn after_four_steps() -> Folder {
    let folder = Folder::new();
    let four = ["train", "--steps", "4", "--threads", "1", "--out", &folder.text()];
    finish(mpirun(2, &four)).expect(0);
    folder
}

/// Trains on until a fault kills a rank.
fn killed(ranks: usize, folder: &Folder, flags: &[&str], fault: &str) {
    let extra = [flags, &["--inject", fault]].concat();
    let killed = finish(mpirun(ranks, &arguments(&folder.text(), &extra)));
    assert_ne!(killed.code, 0, "{fault}: nobody died\n{}", killed.stderr);
}

/// A fault drawn from the seed: at a step, or inside a save.
fn draw(seed: u64, is_inside_a_save: bool) -> String {
    let stream = Stream::new(seed, Purpose::Fault);
    let rank = stream.below(0, 2);
    if !is_inside_a_save {
        return format!("kill@step={},rank={rank}", 1 + stream.below(2, STEPS));
    }
    let index = stream.below(3, Point::ALL.len() as u64) as usize;
    let (point, commit) = (Point::ALL[index], Point::VoteBeforeManifest as usize);
    // Saves follow steps 4, 8, 12, ...; the third is the first that makes one too many.
    let first = if point == Point::MidRetention { 3 } else { 1 };
    let save = 4 * (first + stream.below(2, 6 - first));
    let rank = if point as usize >= commit { 0 } else { rank }; // only rank 0 commits
    format!("kill@step={save},rank={rank},point={point}")
}

/// The launcher has started it, and it never comes to MPI: a node that hangs.
#[test]
fn a_peer_that_never_comes_is_lost() {
    let folder = Folder::new();
    let mut command = mpirun(1, &["train", "--deadline", "2s", "--out", &folder.text()]);
    command.args([":", "-np", "1", "sleep", "60"]);
    let start = Instant::now();
    let finished = finish(command).expect(5);
    assert!(finished.stderr.contains("a peer is missing"), "{}", finished.stderr);
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert!(!folder.path().exists(), "nothing was begun");
}

#[test]
fn kills_of_every_gpt_each_resume_to_the_same_bits() {
    kills_each_resume_to_the_same_bits(&Kind::all()[..KINDS / 2]);
}

#[test]
fn kills_of_every_llama_each_resume_to_the_same_bits() {
    kills_each_resume_to_the_same_bits(&Kind::all()[KINDS / 2..]);
}

/// Two kills of every kind: one at a step, one inside a save.
fn kills_each_resume_to_the_same_bits(kinds: &[Kind]) {
    for &kind in kinds {
        for (half, is_inside_a_save) in [(0, false), (1, true)] {
            let fault = draw((kind.index() + half * KINDS) as u64, is_inside_a_save);
            resumes_to_the_undisturbed_end(kind, &fault);
        }
    }
}

fn resumes_to_the_undisturbed_end(kind: Kind, fault: &str) {
    let (folder, flags) = (Folder::new(), kind.flags());
    killed(2, &folder, &flags, fault);
    finish(mpirun(2, &arguments(&folder.text(), &flags))).expect(0);
    assert_eq!(end(&folder), *undisturbed(kind), "{kind:?}, {fault}");
    let record = folder.record();
    assert_eq!(record["status"], "complete", "{kind:?}, {fault}");
    assert_eq!(record["attempts"].as_array().unwrap().len(), 2, "{kind:?}, {fault}");
}

#[test]
fn another_world_size_resumes_the_same_training() {
    for kind in Kind::corners() {
        let (folder, flags) = (Folder::new(), kind.flags());
        killed(4, &folder, &flags, "kill@step=13,rank=0");
        finish(mpirun(1, &arguments(&folder.text(), &flags))).expect(0);
        let attempts = folder.record()["attempts"].clone();
        assert_eq!((&attempts[0]["world"], &attempts[1]["world"]), (&4.into(), &1.into()));
        assert_eq!(attempts[1]["resumed_after_step"], 12, "{kind:?}");
        assert_eq!(folder.losses().len(), STEPS as usize, "{kind:?}");
        for (a, b) in folder.losses().iter().zip(&undisturbed(kind).0) {
            let (ours, theirs) = (f64::from_bits(a.1), f64::from_bits(b.1));
            let relative = (ours - theirs).abs() / theirs;
            assert!(relative <= kind.rounding(), "{kind:?}, step {}: {relative:e}", a.0);
        }
    }
}

#[test]
fn steps_made_again_are_counted_over_all_kills() {
    let folder = Folder::new();
    for step in ["7", "15"] {
        killed(2, &folder, &[], &format!("kill@step={step},rank=1"));
    }
    finish(mpirun(2, &arguments(&folder.text(), &[]))).expect(0);
    let record = folder.record();
    let resumed: Vec<_> = (0..3).map(|n| &record["attempts"][n]["resumed_after_step"]).collect();
    assert_eq!(resumed, [0, 4, 12]);
    let last: Vec<_> = (0..2).map(|n| record["attempts"][n]["last_step"].as_u64()).collect();
    let lost = last[0].unwrap() - 4 + last[1].unwrap() - 12;
    assert_eq!(record["goodput"]["lost_steps"], lost, "{record}");
    assert!(lost <= 4, "{lost}: kills came at most two steps after a save");
}

#[test]
fn weak_scaling_goes_on_with_the_next_sequence_at_another_world_size() {
    let folder = Folder::new();
    let out = folder.text();
    let train = |ranks, steps| {
        let weak = "batch.sequences_per_rank=8";
        let all = ["train", "--threads", "1", "--steps", steps, "--out", &out, "--set", weak];
        finish(mpirun(ranks, &all)).expect(0);
    };
    train(2, "4");
    assert_eq!(progress(&folder), [4, 64, 64 * 128]);
    train(1, "6");
    assert_eq!(progress(&folder), [6, 64 + 16, (64 + 16) * 128]);
}

/// Step, next sequence and tokens of the newest checkpoint.
fn progress(folder: &Folder) -> [u64; 3] {
    let listed = support::run(&["ckpt", "ls", "--json", &folder.text()]).expect(0).stdout;
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let name = listed[0]["name"].as_str().unwrap();
    let manifest = folder.path().join(format!("checkpoints/{name}/MANIFEST.json"));
    let manifest: serde_json::Value =
        serde_json::from_slice(&std::fs::read(manifest).unwrap()).unwrap();
    let state = &manifest["state"];
    ["step", "next_sequence", "tokens"].map(|key| state[key].as_u64().unwrap())
}

#[test]
fn a_request_to_stop_saves_and_exits_with_75() {
    let folder = Folder::new();
    let out = folder.text();
    let endless = ["train", "--workload", "smoke", "--threads", "1", "--out", &out];
    let long = ["--set", "schedule.steps=100000"];
    let mut child = Running::start(mpirun(2, &[&endless[..], &long[..]].concat()));
    request_stop_after(3, &folder);
    assert_eq!(child.wait(), Some(75));
    let record = folder.record();
    assert_eq!(record["status"], "stopped");
    assert_eq!(record["exit_code"], 75);
    let verified = support::run(&["ckpt", "verify", &out]).expect(0);
    assert!(verified.stdout.contains("ok"), "{}", verified.stdout);
}

/// Sends SIGTERM to every rank once there are so many steps.
fn request_stop_after(steps: usize, folder: &Folder) {
    let start = Instant::now();
    let lines = folder.path().join("steps/r000000.jsonl");
    while std::fs::read_to_string(&lines).unwrap_or_default().lines().count() < steps {
        assert!(start.elapsed() < Duration::from_secs(60), "no {steps} steps after a minute");
        std::thread::sleep(Duration::from_millis(20));
    }
    for pid in pids(folder) {
        Command::new("kill").args(["-TERM", &pid.to_string()]).status().unwrap();
    }
}

/// The removal of the first checkpoint, after the second, never ends, and the request comes in the
/// middle of it; a third save, which would wait for it, is far away.
#[test]
fn a_request_to_stop_waits_for_no_removal() {
    let folder = Folder::new();
    let out = folder.text();
    let saves = ["--checkpoint-every", "50steps", "--set", "checkpoint.keep=1"];
    let [stops, hangs] = ["stop", "hang"].map(|f| format!("{f}@step=100,point=mid-retention"));
    let faults = ["--inject", &stops, "--inject", &hangs, "--out", &out];
    support::run(&[&["train"], &saves[..], &faults].concat()).expect(75);
    assert_eq!(folder.record()["status"], "stopped");
    assert_eq!(checkpoints(&folder), 3, "nor removes anything");

    // Whoever resumes removes what is old, also without a save of its own.
    let once = (folder.steps(0).len() + 1).to_string();
    let resumes = ["--steps", &once, "--set", "checkpoint.at_end=false", "--out", &out];
    support::run(&[&["train"], &resumes[..], &saves[2..]].concat()).expect(0);
    assert_eq!(checkpoints(&folder), 1);
}

fn checkpoints(folder: &Folder) -> usize {
    let entries = std::fs::read_dir(folder.path().join("checkpoints")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("s00")).count()
}

fn pids(folder: &Folder) -> Vec<u64> {
    let record = folder.record();
    record["ranks"].as_array().unwrap().iter().map(|rank| rank["pid"].as_u64().unwrap()).collect()
}

#[test]
fn a_loss_that_is_not_finite_names_step_and_rank() {
    let folder = Folder::new();
    let fault = ["--inject", "nan@step=5,rank=1", "--log-format", "json"];
    let finished = finish(mpirun(2, &arguments(&folder.text(), &fault))).expect(4);
    assert!(finished.stderr.contains("step 5, rank 1: the loss"), "{}", finished.stderr);
    // Whole lines, though the ranks tell it at the same time.
    let events = finished.stderr.lines().filter(|line| line.contains("\"error\""));
    let events: Vec<Value> = events.map(|line| serde_json::from_str(line).unwrap()).collect();
    let tellers: Vec<_> = events.iter().map(|event| event["rank"].as_u64()).collect();
    assert!(tellers.contains(&Some(0)) || tellers.contains(&Some(1)), "{}", finished.stderr);
    assert!(events.iter().all(|event| event["caused_by_rank"] == 1), "{}", finished.stderr);
    let record = folder.record();
    assert_eq!(record["status"], "failed");
    assert_eq!(record["exit_code"], 4);
    assert_eq!(record["reason"]["rank"], 1);
    assert_eq!(record["reason"]["step"], 5);
}

#[test]
fn a_gradient_that_is_not_finite_names_the_tensor() {
    let wild = [
        "--set",
        "schedule.learning_rate=1e30",
        "--set",
        "schedule.warmup_steps=0",
        "--set",
        "optimizer.gradient_norm_max=0.0",
    ];
    // Alone, a rank does not look at its gradients before they are reduced, and is named the same.
    for ranks in [1, 2] {
        let folder = Folder::new();
        let finished = finish(mpirun(ranks, &arguments(&folder.text(), &wild))).expect(4);
        let named = ["rank 0: the gradient of ", ".weight", "not finite"];
        assert!(named.iter().all(|word| finished.stderr.contains(word)), "{}", finished.stderr);
        assert_eq!(folder.record()["reason"]["rank"], 0);
    }
}

/// What two ranks ended with, a line each. A launcher ends all ranks when one has ended badly, so
/// each waits for the other's code.
fn codes_of_both(arguments: &[&str], variables: &[(&str, &OsStr)]) -> (Finished, String) {
    let folder = tempfile::tempdir().unwrap();
    let codes = folder.path().join("codes");
    let both = r#"
        codes=$1; shift; "$@"; echo $? >>"$codes"
        for _ in $(seq 300); do [ "$(wc -l <"$codes")" = 2 ] && break; sleep 0.1; done"#;
    let mut command = launch(2, "sh");
    command.args(["-c", both, "sh"]).arg(&codes);
    command.arg(env!("CARGO_BIN_EXE_yardstick")).args(arguments);
    command.envs(variables.iter().copied());
    let finished = finish(command);
    (finished, std::fs::read_to_string(codes).unwrap_or_default())
}

/// What it ends with is what happened to it, not what happened to its last word.
#[test]
fn a_rank_that_cannot_leave_its_last_word_keeps_its_exit_code() {
    let folder = after_four_steps();
    let out = folder.text();
    std::fs::create_dir(folder.path().join("attempts/002.r000001.failed")).unwrap();
    let fault = ["--inject", "nan@step=5,rank=1"];
    let (failed, codes) = codes_of_both(&arguments(&out, &fault), &[]);
    assert_eq!(codes, "4\n4\n", "{}", failed.stderr);
    assert!(failed.stderr.contains("002.r000001.failed"), "{}", failed.stderr);
}

/// Rank 0 alone looks into the folder; the others learn from it how to end.
#[test]
fn every_rank_refuses_a_run_whose_checkpoints_are_gone() {
    let folder = after_four_steps();
    let out = folder.text();
    let checkpoints = folder.path().join("checkpoints");
    std::fs::remove_dir_all(&checkpoints).unwrap();
    let (refused, codes) = codes_of_both(&arguments(&out, &["--log-format", "json"]), &[]);
    let named = checkpoints.to_string_lossy();
    assert!(refused.stderr.contains(&*named), "{}", refused.stderr);
    assert_eq!(codes, "6\n6\n", "{}", refused.stderr);
    let culprits = refused.stderr.matches("\"caused_by_rank\":0,");
    assert_eq!(culprits.count(), 2, "{}", refused.stderr);
    assert!(!checkpoints.exists(), "nothing was begun");
}

/// An MPI whose end fails, or never comes, and whose exit handler never ends: a library that the
/// loader puts before it.
fn finalize_that(body: &str, folder: &Path) -> PathBuf {
    let (source, library) = (folder.join("finalize.c"), folder.join("finalize.so"));
    let text = "#include <stdlib.h>\n#include <unistd.h>\n\
                static void hang(void) { for (;;) pause(); }\n\
                int MPI_Finalize(void) { atexit(hang); BODY return 16; }\n";
    std::fs::write(&source, text.replace("BODY", body)).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).args([&library, &source]);
    assert!(compiler.status().unwrap().success());
    library
}

/// What the run came to was told and recorded before: its exit code stays, and each rank warns.
#[test]
fn a_run_that_is_over_keeps_its_exit_code_where_mpi_does_not_end() {
    let quick = ["--deadline", "2s", "--set", "checkpoint.deadline_s=2.0"];
    let stops = ["--inject", "stop@step=2,rank=1", "--log-format", "json"];
    for (body, extra, code, told) in [
        ("", &[][..], 0, "MPI could not end: "),
        ("hang();", &stops, 75, "MPI_Finalize does not end"),
    ] {
        let (folder, built) = (Folder::new(), tempfile::tempdir().unwrap());
        let library = finalize_that(body, built.path());
        let variables = [("LD_PRELOAD", library.as_os_str())];
        let extra = [&quick, extra].concat();
        let (finished, codes) = codes_of_both(&arguments(&folder.text(), &extra), &variables);
        assert_eq!(codes, format!("{code}\n{code}\n"), "{}", finished.stderr);
        assert_eq!(folder.record()["exit_code"], code);
        let warnings = finished.stderr.lines().filter(|line| line.contains("WARN"));
        let told: Vec<_> = warnings.filter(|line| line.contains(told)).collect();
        assert_eq!(told.len(), 2, "{}", finished.stderr);
        assert!(told.iter().all(|line| line.contains("ranks did not part in order")));
        assert!(told[0].starts_with('{') == (code == 75), "JSON where it was asked for");
    }
}

#[test]
fn a_rank_that_fails_alone_leaves_its_reason() {
    let folder = after_four_steps();
    let out = folder.text();
    let steps = folder.path().join("steps/r000001.jsonl");
    std::fs::remove_file(&steps).unwrap();
    std::fs::create_dir(&steps).unwrap(); // rank 1 cannot write its steps
    let failed = finish(mpirun(2, &arguments(&out, &[])));
    assert_ne!(failed.code, 0);
    let report = support::run(&["report", &out]).expect(0).stdout;
    let told = report.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(told.contains("r000001.jsonl"), "{report}");
    std::fs::remove_dir(&steps).unwrap();
    finish(mpirun(2, &arguments(&out, &[]))).expect(0);
    let attempts = folder.record()["attempts"].clone();
    assert_eq!(attempts[1]["status"], "failed", "{attempts}");
}

#[test]
fn a_hung_rank_ends_the_run_within_its_deadline() {
    let folder = Folder::new();
    let fault = ["--deadline", "3s", "--inject", "hang@step=5,rank=1"];
    let start = Instant::now();
    let finished = finish(mpirun(2, &arguments(&folder.text(), &fault))).expect(5);
    assert!(start.elapsed() < Duration::from_secs(30), "took {:?}", start.elapsed());
    assert!(finished.stderr.contains("not over after 3.0 s"), "{}", finished.stderr);
    let record = folder.record();
    assert_eq!(record["exit_code"], 5);
    finish(mpirun(2, &arguments(&folder.text(), &[]))).expect(0);
}
