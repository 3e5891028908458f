//! Gates that fail closed: results that are missing, damaged, injected or of another machine never
//! pass.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use support::{Finished, Folder, finish, run, text, yardstick};

/// Short steps: none of these tests judges their times.
const SHORT_STEPS: [&str; 6] = [
    "--set",
    "telemetry.matmul_probe=0s",
    "--set",
    "batch.global_sequences=2",
    "--set",
    "batch.micro_sequences=2",
];

/// Trains a run of 50 steps, which other runs can be compared with.
fn train(folder: &Folder, name: &str, flags: &[&str]) -> String {
    train_for("50", folder, name, flags)
}

fn train_for(steps: &str, folder: &Folder, name: &str, flags: &[&str]) -> String {
    let out = text(&folder.sibling(name));
    let common = ["train", "--steps", steps, "--out", &out];
    run(&[&common[..], &SHORT_STEPS, flags].concat()).expect(0);
    out
}

fn json(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished:?}"))
}

fn record_of(run: &str) -> PathBuf {
    Path::new(run).join("record.json")
}

/// Two threads against one were "worse, tokens/s +163.9 %", by 3.8 % more planned memory.
#[test]
fn planned_memory_is_a_difference_and_the_headline_says_what_decides() {
    let folder = Folder::new();
    let one = train(&folder, "one", &["--threads", "1"]);
    let two = train(&folder, "two", &["--threads", "2"]);
    let compared = json(&run(&["compare", "--json", &one, &two]));
    assert_eq!(compared["decided_by"], "tokens_per_second", "{compared:#}");
    let metrics = compared["metrics"].as_array().unwrap();
    assert!(metrics.iter().all(|metric| metric["name"] != "memory"), "{compared:#}");
    let differences = compared["differences"].to_string();
    assert!(differences.contains("planned_bytes of a rank"), "{differences}");
    let headline = compared["headline"].as_str().unwrap();
    assert!(
        headline.contains(": tokens/s ") && headline.contains("deviation assumed"),
        "{headline}"
    );
    let page = run(&["compare", &one, &two]).stdout;
    let first = page.lines().next().unwrap();
    assert!(first.starts_with("smoke (") && first.contains(": tokens/s "), "{page}");
}

#[test]
fn a_machine_that_lost_threads_has_no_first_night() {
    let folder = Folder::new();
    let store = text(&folder.sibling("store"));
    train(&folder, "before", &["--threads", "2", "--records", &store]);
    let after = train(&folder, "after", &["--threads", "1", "--records", &store]);
    for flags in
        [&["compare", &store, &after][..], &["compare", "--allow-no-baseline", &store, &after]]
    {
        run(flags).expect(12).expect_stderr(&[
            "has changed: ",
            "had 2 threads per rank, has 1: SMT, cpuset, quota?",
            "hint: ",
        ]);
    }
    let again = train(&folder, "again", &["--threads", "1", "--records", &store]);
    run(&["compare", &store, &again]).expect(12).expect_stderr(&["has changed: "]);
    run(&["baseline", "promote", "--only", "1x1-threads", "--newest", "1", &store]).expect(0);
    run(&["compare", &store, &after]).expect_stdout(&[": tokens/s "]);
    let other = text(&folder.sibling("other-store"));
    run(&["baseline", "add", &other, &after]).expect(0);
    let first = ["compare", "--allow-no-baseline", &other, &after];
    run(&first).expect(0).expect_stdout(&["no baseline"]);
    run(&["compare", &other, &after]).expect(12).expect_stderr(&["--allow-no-baseline"]);
    let short = train_for("12", &folder, "short", &[]);
    run(&["compare", "--allow-no-baseline", &other, &short])
        .expect(12)
        .expect_stderr(&["at least 20 measured steps"]);
}

#[test]
fn a_run_with_a_fault_is_compared_only_if_asked_and_is_no_baseline() {
    let folder = Folder::new();
    let store = text(&folder.sibling("store"));
    let calm = train(&folder, "calm", &[]);
    let fault = "slow-compute@rank=0,percent=20";
    let drill = train(&folder, "drill", &["--inject", fault, "--records", &store]);
    let record = support::record(Path::new(&drill));
    assert_eq!(record["attempts"][0]["injected"], Value::from(vec![fault]));
    for sides in [[&calm, &drill], [&drill, &calm]] {
        let compared = run(&["compare", sides[0], sides[1]]).expect(12);
        compared.expect_stderr(&["found --inject slow-compute", "hint: --allow-injected"]);
    }
    let compared = run(&["compare", "--allow-injected", "--json", &calm, &drill]);
    assert!([0, 10, 11].contains(&compared.code), "{compared:?}");
    run(&["baseline", "add", &store, &drill]).expect(2).expect_stderr(&["without faults"]);
    let shown = run(&["baseline", "show", "--json", &store]).expect(0);
    assert_eq!(json(&shown), Value::Array(vec![]), "a record, and no baseline");
    run(&["report", &drill]).expect(0).expect_stdout(&["faults were injected"]);
}

#[test]
fn a_run_that_ended_at_its_target_loss_or_early_is_not_compared() {
    let folder = Folder::new();
    let whole = train(&folder, "whole", &[]);
    let target = train(&folder, "target", &["--target-loss", "100"]);
    let compared = run(&["compare", &whole, &target]).expect(12);
    compared.expect_stderr(&["its target loss ended at step"]);
    let short = train_for("20", &folder, "short", &[]);
    run(&["compare", &short, &whole])
        .expect(12)
        .expect_stderr(&["at least 20 measured steps, found 18"]);
}

#[test]
fn damaged_inputs_are_not_comparable() {
    let folder = Folder::new();
    let store = text(&folder.sibling("store"));
    let one = train(&folder, "one", &["--records", &store]);
    let two = train(&folder, "two", &["--records", &store]);
    run(&["baseline", "promote", &store, "--newest", "2"]).expect(0);
    assert_ne!(run(&["compare", &store, &one]).code, 12);

    let record = record_of(&two);
    let good = fs::read(&record).unwrap();
    let edited =
        String::from_utf8(good.clone()).unwrap().replacen("\"world\": 1", "\"world\": 2", 1);
    for damaged in [&good[..good.len() / 2], &[], b"{}", b"\0\0\0\0", edited.as_bytes()] {
        fs::write(&record, damaged).unwrap();
        for sides in [[&one, &two], [&two, &one]] {
            run(&["compare", sides[0], sides[1]]).expect(12).expect_stderr(&["record.json"]);
        }
        run(&["baseline", "add", &store, &two]).expect(2).expect_stderr(&["record.json"]);
        run(&["k8s", "collect", &two]).expect(3);
        run(&["report", &two]).expect(2).expect_stderr(&["record.json"]);
    }
    fs::remove_file(&record).unwrap();
    run(&["compare", &one, &two]).expect(12).expect_stderr(&["record.json"]);
    run(&["k8s", "collect", &two]).expect(2);
    let all = Path::new(&two).parent().unwrap().to_str().unwrap();
    run(&["k8s", "collect", all]).expect(3).expect_stdout(&["two: not readable: "]);
    let list = format!("{two},{one}");
    run(&["compare", &list, &one]).expect(12);
    fs::write(&record, &good).unwrap();
    run(&["compare", &one, &one]).expect(12).expect_stderr(&["found one on both sides"]);
    run(&["compare", "", &one]).expect(2).expect_stderr(&["is a variable not set?"]);

    // Of the store: a record, and the list of those that are the baseline.
    let kept = files_below(Path::new(&store));
    let is_read = |path: &&PathBuf| path.extension().is_some_and(|found| found == "json");
    for path in kept.iter().filter(is_read) {
        let good = fs::read(path).unwrap();
        for damaged in [&good[..good.len() / 2], &[], b"{}", b"{\"records\": []}"] {
            fs::write(path, damaged).unwrap();
            run(&["compare", &store, &one]).expect(12);
            run(&["compare", "--allow-no-baseline", &store, &one]).expect(12);
            run(&["baseline", "show", &store]).expect(2);
        }
        fs::remove_file(path).unwrap();
        run(&["compare", "--allow-no-baseline", &store, &one]).expect(12);
        fs::write(path, good).unwrap();
    }
    for name in ["LISTED", "BASELINES"] {
        let path = kept.iter().find(|path| path.ends_with(name)).unwrap();
        let before = run(&["compare", "--json", &store, &one]);
        fs::remove_file(path).unwrap();
        let after = run(&["compare", "--json", &store, &one]);
        assert!(after.code == 12 || after.stdout == before.stdout, "{name}: {after:?}");
        fs::write(path, "").unwrap();
    }
}

#[test]
fn gates_are_named_once_and_one_that_is_zero_has_not_changed() {
    let folder = Folder::new();
    let (one, two) = (train(&folder, "one", &[]), train(&folder, "two", &[]));
    let of_eval = run(&["compare", "--json", "--gate", "eval", "--allow-noisy", &one, &two]);
    assert_eq!(json(&of_eval)["decided_by"], "eval", "{of_eval:?}");
    run(&["compare", "--gate", "eval", "--gate", "eval", &one, &two]).expect(2);
    run(&["compare", "--gate", "speed", &one, &two])
        .expect(2)
        .expect_stderr(&["expected one of tokens_per_second, "]);
    run(&["compare", "--gate", "comm_rate", &one, &two])
        .expect(12)
        .expect_stderr(&["expected a value of comm_rate"]);
    let kept = ["compare", "--keep", &one, "--run", "true", "--", "true"];
    run(&kept).expect(2).expect_stderr(&["--keep", "expected an empty folder"]);
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files_below(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

#[test]
fn a_bundle_gives_its_verdict_again_to_the_byte() {
    let folder = Folder::new();
    let (one, two) = (train(&folder, "one", &[]), train(&folder, "two", &[]));
    let bundle = text(&folder.sibling("bundle"));
    let gates = ["--gate", "tokens_per_second=5%", "--gate", "step_ms=5%"];
    let flags = [&["compare", "--bundle", &bundle], &gates[..], &[&one, &two]].concat();
    let compared = run(&flags);
    assert!([0, 10, 11].contains(&compared.code), "{compared:?}");
    fs::remove_dir_all(&one).unwrap(); // it needs nothing else
    let verified = run(&["verify", &bundle]).expect(0);
    let code = format!("exit code {}", compared.code);
    verified.expect_stdout(&["verified, ", ": tokens/s ", &code]);
    run(&["compare", &one, &two]).expect(12);
    run(&["compare", "--bundle", &bundle, &two, &two]).expect(2).expect_stderr(&["empty folder"]);

    let files = files_below(Path::new(&bundle));
    assert!(files.iter().any(|path| path.ends_with("new/001/steps/r000000.jsonl")), "{files:?}");
    for path in &files {
        let good = fs::read(path).unwrap();
        fs::remove_file(path).unwrap();
        run(&["verify", &bundle]).expect(12).expect_stderr(&["not verified: "]);
        for damaged in [&good[..good.len() - 2], &[&good[..], b" "].concat()] {
            fs::write(path, damaged).unwrap();
            let is_manifest = path.ends_with("manifest.json") && damaged.len() > good.len();
            run(&["verify", &bundle]).expect(if is_manifest { 0 } else { 12 });
        }
        fs::write(path, good).unwrap();
    }
    let added = Path::new(&bundle).join("base/note.txt");
    fs::write(&added, "x").unwrap();
    run(&["verify", &bundle]).expect(12).expect_stderr(&["base/note.txt: is not in the manifest"]);
    fs::remove_file(added).unwrap();
    run(&["verify", &bundle]).expect(0);
    forge(Path::new(&bundle));
    run(&["verify", &bundle]).expect(12).expect_stderr(&["is not what its records give"]);
}

/// Runs of the bundle are in a temporary folder.
#[test]
fn a_bundle_of_runs_in_turn_has_their_steps() {
    let folder = Folder::new();
    let bundle = text(&folder.sibling("bundle"));
    let program = env!("CARGO_BIN_EXE_yardstick");
    let train = format!("{program} train --steps 24 {}", SHORT_STEPS.join(" "));
    let flags = ["compare", "--rounds", "3", "--bundle", &bundle, "--run", &train, "--", &train];
    let compared = run(&flags);
    assert!([0, 10, 11].contains(&compared.code), "{compared:?}");
    let files = files_below(Path::new(&bundle));
    let steps = files.iter().filter(|path| path.ends_with("steps/r000000.jsonl")).count();
    assert_eq!(steps, 6, "{files:?}");
    run(&["verify", &bundle]).expect(0);
}

/// Another verdict, with a manifest that fits.
fn forge(bundle: &Path) {
    let verdict = bundle.join("verdict.json");
    let text =
        fs::read_to_string(&verdict).unwrap().replacen("\"exit_code\": 1", "\"exit_code\": 0", 1);
    let text = text.replacen("\"headline\": \"", "\"headline\": \"surely ", 1);
    fs::write(&verdict, &text).unwrap();
    let manifest = bundle.join("manifest.json");
    let mut listed: Value = serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
    let digest = blake3::hash(text.as_bytes()).to_hex().to_string();
    listed["files"]["verdict.json"] = serde_json::json!({ "bytes": text.len(), "blake3": digest });
    fs::write(&manifest, listed.to_string()).unwrap();
}

#[test]
fn a_run_without_a_process_is_dead() {
    let folder = Folder::new();
    let out = folder.text();
    let saves = ["--checkpoint-every", "2steps", "--set", "checkpoint.background=false"];
    let flags = [&["train", "--steps", "50", "--out", &out][..], &saves].concat();
    let killed = finish(yardstick(&[&flags[..], &["--inject", "kill@step=9,rank=0"]].concat()));
    assert_ne!(killed.code, 0);
    assert_eq!(folder.record()["status"], "running");
    let report = run(&["report", &out]).expect(0);
    report.expect_stdout(&[" dead", "the run was killed: no process holds its folder"]);
    assert_eq!(json(&run(&["report", "--json", &out]).expect(0))["state"], "dead");
    run(&["ckpt", "ls", &out]).expect(0).expect_stderr(&["the run is dead"]);
    run(&["compare", &out, &out]).expect(12).expect_stderr(&["found running"]);
}

/// Resembles a container whose first process does not wait for other processes.
#[test]
fn a_run_whose_process_nobody_has_asked_for_is_dead() {
    let folder = Folder::new();
    let out = folder.text();
    let flags = ["train", "--steps", "50", "--inject", "kill@step=9,rank=0", "--out", &out];
    let mut command = yardstick(&flags);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let process = Path::new("/proc").join(child.id().to_string());
    let has_ended = || {
        let is_zombie = fs::read_to_string(process.join("stat")).unwrap().contains(") Z ");
        is_zombie && fs::read_dir(process.join("task")).unwrap().count() == 1 // no thread is left
    };
    while !has_ended() {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(json(&run(&["report", "--json", &out]).expect(0))["state"], "dead");
    assert!(!child.wait().unwrap().success());
}

#[test]
fn a_bench_says_that_faults_were_injected() {
    let folder = Folder::new();
    let flags = ["bench", "--repeats", "1", "--steps", "5", "--out", &folder.text()];
    let fault = "slow-compute@rank=0,percent=50";
    let finished = run(&[&flags[..], &["--inject", fault, "--json"]].concat()).expect(0);
    let warnings = json(&finished)["warnings"].to_string();
    assert!(warnings.contains("faults were injected") && warnings.contains(fault), "{warnings}");
}

#[test]
fn a_report_says_that_steps_had_not_settled() {
    let folder = Folder::new();
    let out = train_for("10", &folder, "short", &[]);
    run(&["report", &out]).expect(0).expect_stdout(&["not steady", "step times had not settled"]);
    run(&["report", &out, &out]).expect(0).expect_stdout(&["complete, not steady"]);
}
