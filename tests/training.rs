//! One process, as a newcomer runs it: what it reaches, what it leaves, how it is told.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::process::Stdio;

use serde_json::{Value, json};
use support::{Folder, Running, finish, run, yardstick};

fn train(folder: &Folder, extra: &[&str]) -> support::Finished {
    let out = folder.text();
    run(&[&["train", "--out", &out], extra].concat())
}

#[test]
fn smoke_learns_and_leaves_a_record() {
    let folder = Folder::new();
    train(&folder, &[]).expect(0);
    let record = folder.record();
    assert_eq!(record["status"], "complete");
    assert_eq!(record["exit_code"], 0);
    assert_eq!(record["reason"], Value::Null);
    let (last, floor) = (&record["steps"]["loss_last"], &record["steps"]["entropy_floor"]);
    let (last, floor) = (last.as_f64().unwrap(), floor.as_f64().unwrap());
    assert!(last <= 0.7 * 256_f64.ln(), "{last}");
    assert!(floor > 0.0 && last > floor, "nobody gets below the floor: {last} {floor}");
    assert_eq!(record["mfu_causal"], Value::Null, "a CPU has no published peak");
    let measured = record["mfu_measured"]["causal"].as_f64().unwrap();
    assert!(measured > 0.0, "{measured}");
    let report = run(&["report", &folder.text()]).expect(0).stdout;
    for word in ["tokens/s", "mfu_measured", "forward", "complete", "entropy floor"] {
        assert!(report.contains(word), "no {word:?} in\n{report}");
    }
}

#[test]
fn phases_add_up_to_wall_time_in_every_step() {
    let folder = Folder::new();
    train(&folder, &["--steps", "12", "--checkpoint-every", "4steps", "--eval-every", "3"])
        .expect(0);
    for line in folder.steps(0) {
        let phases = line.0["phases_ns"].as_object().unwrap();
        assert_eq!(phases.len(), 8, "{phases:?}");
        let sum: u64 = phases.values().map(|ns| ns.as_u64().unwrap()).sum();
        assert_eq!(sum, line.0["wall_ns"].as_u64().unwrap(), "step {}", line.step());
    }
    let spent = |step: usize, phase: &str| folder.steps(0)[step - 1].0["phases_ns"][phase].clone();
    assert!(spent(3, "eval").as_u64() > Some(0), "step 3 evaluates");
    assert_eq!(spent(4, "eval"), 0);
    assert!(spent(5, "checkpoint").as_u64() > Some(0), "the save after step 4 counts to step 5");
}

#[test]
fn a_workload_shown_is_the_workload() {
    let folder = Folder::new();
    let shown = run(&["workloads", "show", "smoke"]).expect(0).stdout;
    let file = folder.path().with_file_name("mine.toml");
    std::fs::write(&file, shown).unwrap();
    train(&folder, &["--steps", "2", "--workload", &file.to_string_lossy()]).expect(0);
    let listed: Value = serde_json::from_str(&run(&["workloads", "--json"]).stdout).unwrap();
    let smoke = listed.as_array().unwrap().iter().find(|row| row["name"] == "smoke").unwrap();
    assert_eq!(folder.record()["workload"]["id"], smoke["id"]);
    assert_eq!(folder.record()["workload"]["name"], "mine");
}

#[test]
fn a_run_goes_on_where_steps_stopped_it() {
    let (whole, parts) = (Folder::new(), Folder::new());
    train(&whole, &["--steps", "10"]).expect(0);
    train(&parts, &["--steps", "4"]).expect(0);
    train(&parts, &["--steps", "10"]).expect(0);
    assert_eq!(whole.losses(), parts.losses());
    assert_eq!(whole.record()["fingerprint"], parts.record()["fingerprint"]);
    assert_eq!(parts.record()["attempts"].as_array().unwrap().len(), 2);
    assert_eq!(parts.record()["attempts"][1]["resumed_after_step"], 4);
}

#[test]
fn a_start_that_was_killed_before_it_said_whose_folder_it_is_does_no_harm() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path()).unwrap();
    for left in ["lock", "identity.5f0c.tmp"] {
        std::fs::write(folder.path().join(left), "{").unwrap();
    }
    train(&folder, &["--steps", "2", "--fresh"]).expect(0);
    train(&folder, &["--steps", "2", "--fresh"]).expect(2);
}

#[test]
fn two_runs_of_one_workload_do_not_take_each_others_checkpoints() {
    let (one, other) = (Folder::new(), Folder::new());
    train(&one, &["--steps", "2"]).expect(0);
    train(&other, &["--steps", "2"]).expect(0);
    let checkpoints = |folder: &Folder| folder.path().join("checkpoints");
    std::fs::remove_dir_all(checkpoints(&one)).unwrap();
    std::fs::rename(checkpoints(&other), checkpoints(&one)).unwrap();
    let refused = train(&one, &["--steps", "4"]).expect(6);
    assert!(refused.stderr.contains("run: expected"), "{}", refused.stderr);
}

#[test]
fn smaller_micro_batches_give_the_same_losses_to_rounding() {
    let (large, small) = (Folder::new(), Folder::new());
    train(&large, &["--steps", "10", "--set", "batch.micro_sequences=16"]).expect(0);
    train(&small, &["--steps", "10", "--set", "batch.micro_sequences=2"]).expect(0);
    for (a, b) in large.steps(0).iter().zip(small.steps(0)) {
        let relative = (a.loss() - b.loss()).abs() / a.loss();
        assert!(relative <= 1e-5, "step {}: {relative:e}", a.step());
    }
}

#[test]
fn a_target_loss_ends_the_run() {
    let folder = Folder::new();
    train(&folder, &["--target-loss", "5.0"]).expect(0);
    let steps = folder.steps(0);
    let (last, before) = (&steps[steps.len() - 1], &steps[steps.len() - 2]);
    assert!(last.loss() <= 5.0 && before.loss() > 5.0);
    assert_eq!(folder.record()["status"], "complete");
}

/// Every line on stderr.
fn objects(finished: &support::Finished) -> Vec<Value> {
    let object =
        |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    finished.stderr.lines().map(object).collect()
}

#[test]
fn json_lines_are_for_machines_and_stdout_stays_empty() {
    let folder = Folder::new();
    let arguments = ["--steps", "3", "--log-format", "json"];
    let finished = train(&folder, &arguments).expect(0);
    assert_eq!(finished.stdout, "");
    let lines = objects(&finished);
    let steps: Vec<_> = lines.iter().filter_map(|line| line["step"].as_u64()).collect();
    assert_eq!(steps, [1, 2, 3]);
    let again = objects(&train(&folder, &arguments).expect(0));
    // Resumed for nothing: the last attempt saved no step.
    let file = folder.path().join("record.json");
    let mut record = folder.record();
    record["checkpoints"] = Value::Null;
    std::fs::write(file, record.to_string()).unwrap();
    let once_more = objects(&train(&folder, &arguments).expect(0));
    for end in [lines, again, once_more].map(|mut lines| lines.pop().unwrap()) {
        assert_eq!((&end["event"], &end["status"]), (&json!("end"), &json!("complete")));
        assert_eq!((&end["exit_code"], &end["committed_step"]), (&json!(0), &json!(3)));
        assert_eq!(end["folder"], folder.text());
        assert_eq!(end.get("reason"), Some(&Value::Null));
    }
}

#[test]
fn json_lines_tell_programs_how_a_run_failed() {
    let folder = Folder::new();
    let fails = ["--inject", "nan@step=3", "--checkpoint-every", "2steps"];
    let finished = train(&folder, &[&fails[..], &["--log-format", "json"]].concat()).expect(4);
    let lines = objects(&finished);
    let [.., end, error] = lines.as_slice() else { panic!("{lines:?}") };
    assert_eq!((&end["event"], &end["status"]), (&json!("end"), &json!("failed")));
    assert_eq!((&end["exit_code"], &end["committed_step"]), (&json!(4), &json!(2)));
    assert_eq!(end["reason"], folder.record()["reason"]);
    assert_eq!((&error["event"], &error["exit_code"]), (&json!("error"), &json!(4)));
    let place = ["rank", "caused_by_rank", "step"].map(|key| error[key].as_u64());
    assert_eq!(place, [Some(0), Some(0), Some(3)]);
    // Refused before there is a run.
    let refused = run(&["train", "--log-format", "json", "--set", "model.layers=0"]).expect(2);
    let [error] = &objects(&refused)[..] else { panic!("{refused:?}") };
    assert_eq!((&error["event"], &error["exit_code"]), (&json!("error"), &json!(2)));
    assert_eq!(error.get("rank"), Some(&Value::Null));
    assert!(error["text"].as_str().unwrap().starts_with("model.layers = 0"), "{error}");
}

/// Training was fine, its record was not.
#[test]
fn a_record_that_cannot_be_written_fails_the_run() {
    let folder = Folder::new();
    let (record, steps) = (folder.path().join("record.json"), folder.path().join("steps"));
    let obstacle = std::thread::spawn(move || {
        while !steps.join("r000000.jsonl").exists() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        std::fs::remove_file(&record).unwrap();
        std::fs::create_dir(&record).unwrap();
    });
    let slow = ["--steps", "3", "--inject", "slow@step=2", "--log-format", "json"];
    let finished = train(&folder, &slow).expect(1);
    obstacle.join().unwrap();
    let lines = objects(&finished);
    let [.., end, error] = lines.as_slice() else { panic!("{lines:?}") };
    assert_eq!((&end["event"], &end["status"]), (&json!("end"), &json!("failed")));
    assert_eq!((&end["exit_code"], &end["committed_step"]), (&json!(1), &json!(3)));
    assert_eq!((&error["event"], &error["exit_code"]), (&json!("error"), &json!(1)));
    assert!(error["text"].as_str().unwrap().contains("record.json"), "{error}");
    assert_eq!(end["reason"]["text"], error["text"]);
    assert_eq!((&end["reason"]["rank"], &error["caused_by_rank"]), (&json!(0), &json!(0)));
}

#[test]
fn a_fault_in_a_step_that_was_done_before_is_noted() {
    let folder = Folder::new();
    train(&folder, &["--steps", "2"]).expect(0);
    let faults = ["--inject", "nan@step=2", "--inject", "slow@step=3"];
    let said = train(&folder, &[&["--steps", "3"], &faults[..]].concat()).expect(0).stderr;
    assert!(said.contains("step 2 was done before: no fault of rank 0 in it"), "{said}");
    assert!(!said.contains("step 3 was done"), "{said}");
}

/// Removing what is old takes three seconds, after the save of step 4 and after the last one.
#[test]
fn slow_tidying_holds_up_the_next_save_and_the_end_and_no_step_before_them() {
    let folder = Folder::new();
    let slow = |step| format!("slow@step={step},point=mid-retention");
    let (fourth, last) = (slow(4), slow(8));
    let saves = ["--steps", "8", "--checkpoint-every", "2steps", "--set", "checkpoint.keep=1"];
    train(&folder, &[&saves[..], &["--inject", &fourth, "--inject", &last]].concat()).expect(0);
    let saved = |step: usize| folder.steps(0)[step].0["phases_ns"]["checkpoint"].as_u64().unwrap();
    let second = 1_000_000_000;
    assert!(saved(4) < 2 * second, "step 5 waits for no removal: {} ns", saved(4));
    assert!(saved(6) > second, "the save after step 6 waits: {} ns", saved(6));
    let left = std::fs::read_dir(folder.path().join("checkpoints")).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    let checkpoints: Vec<_> =
        left.iter().filter(|name| name.to_string_lossy().starts_with("s00")).collect();
    assert_eq!(checkpoints.len(), 1, "the end waits for the removal: {left:?}");
}

#[test]
fn a_damaged_checkpoint_is_passed_over_loudly() {
    let folder = Folder::new();
    train(&folder, &["--steps", "8", "--checkpoint-every", "4steps"]).expect(0);
    let listed = run(&["ckpt", "ls", "--json", &folder.text()]).expect(0).stdout;
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let newest = listed[0]["name"].as_str().unwrap();
    let shard = folder.path().join(format!("checkpoints/{newest}/d00/r00000-000.safetensors"));
    let mut bytes = std::fs::read(&shard).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&shard, bytes).unwrap();
    run(&["ckpt", "verify", &folder.text()]).expect(6);
    let resumed = train(&folder, &["--steps", "10"]).expect(0);
    assert!(resumed.stderr.contains(newest), "{}", resumed.stderr);
    assert_eq!(folder.record()["attempts"][1]["resumed_after_step"], 4);
    assert_eq!(folder.losses().len(), 10);
}

/// As with `2>&1 | head -1`: who reads along may leave, and the run is none the worse for it.
#[test]
fn a_reader_that_leaves_ends_no_run() {
    let folder = Folder::new();
    let out = folder.text();
    for (format, steps) in [("text", "3"), ("json", "5")] {
        let words = ["train", "--out", &out, "--steps", steps, "--log-format", format];
        let mut command = yardstick(&[&words[..], &["--profile-step", steps]].concat());
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        command.stdin(Stdio::null()).stdout(writer.try_clone().unwrap()).stderr(writer);
        assert_eq!(Running::spawn(command).wait(), Some(0), "{format}");
        let record = folder.record();
        assert_eq!((&record["status"], &record["exit_code"]), (&json!("complete"), &json!(0)));
        assert_eq!(record["steps"]["completed"].to_string(), steps);
        assert_ne!(record["anomalies"], json!([]), "nothing was to be told");
    }
}

#[test]
fn only_our_engine_has_a_matmul_kernel_of_ours() {
    let small = ["--steps", "1", "--set", "batch.sequence_tokens=16"];
    for (engine, is_named) in [("fused", true), ("candle", false)] {
        let folder = Folder::new();
        train(&folder, &[&small[..], &["--engine", engine]].concat()).expect(0);
        let record = folder.record();
        let (of_run, of_rank) = (&record["environment"], &record["ranks"][0]);
        assert_eq!(of_run["matmul_kernel"].is_string(), is_named, "{of_run}");
        assert_eq!(of_run.get("matmul_kernel"), of_rank.get("matmul_kernel"), "{engine}");
    }
}

/// A launcher that binds one rank to one core leaves the others to nobody, as Open MPI does.
#[test]
fn cores_that_a_launcher_leaves_unused_are_told() {
    let cores = launch::threads::allowed_cores();
    let bound = |threads: &[&str], launched: bool| {
        let folder = Folder::new();
        let (out, program) = (folder.text(), yardstick(&[]));
        let mut command = std::process::Command::new("taskset");
        command.args(["-c", &cores[0].to_string()]).arg(program.get_program());
        command.args(["train", "--steps", "1", "--set", "collectives.backend=single"]);
        command.args(["--out", &out]).args(threads);
        if launched {
            command.envs([("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")]);
        }
        let told = finish(command).expect(0).stderr;
        let unused = folder.record()["ranks"][0]["unused_cores"].as_u64().unwrap();
        let anomalies = folder.record()["anomalies"].to_string();
        let is_told = anomalies.contains("binding leaves cores unused");
        assert_eq!(told.matches("binding leaves cores unused").count(), usize::from(is_told));
        assert_eq!(is_told, unused > 0);
        unused
    };
    assert_eq!(bound(&[], false), 0, "somebody chose it");
    assert_eq!(bound(&["--threads", "1"], true), 0, "no more were wanted");
    let unused = bound(&[], true);
    // Siblings of the bound one, and cores beyond a quota, are not missed.
    let quota = launch::cgroup::Limits::of_this_process().cpu_cores;
    let all_are_free = quota.is_none() && !has_siblings();
    assert!(!all_are_free || unused + 1 >= cores.len() as u64, "{unused} of {cores:?}");
}

fn has_siblings() -> bool {
    let machine = launch::Environment::read();
    machine.cpu_cores != machine.cpu_threads
}
