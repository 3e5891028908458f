//! Training in one process: its loss, its record, its output, and resuming it.

use std::process::Stdio;

use serde_json::{Value, json};
use support::{Finished, Folder, LossBits, Running, expect_valid, finish, run, text, yardstick};

#[test]
fn smoke_learns_and_writes_a_record() {
    let folder = Folder::new();
    folder.train(&[&["--steps", "60"], &support::PROBE[..]].concat()).expect(0);
    let record = folder.record();
    assert_eq!(record["status"], "complete");
    assert_eq!(record["exit_code"], 0);
    assert_eq!(record["reason"], Value::Null);
    let last = record["steps"]["loss_last"].as_f64().unwrap();
    let floor = record["steps"]["entropy_floor"].as_f64().unwrap();
    assert!(last <= 0.7 * 256_f64.ln(), "{last}");
    assert!(floor > 0.0 && last > floor, "loss {last} below the entropy floor {floor}");
    assert_eq!(record["mfu_causal"], Value::Null, "a CPU has no published peak");
    let measured = record["mfu_measured"]["causal"].as_f64().unwrap();
    assert!(measured > 0.0, "{measured}");
    let report = run(&["report", &folder.text()]).expect(0).stdout;
    for part in ["tokens/s", "mfu_measured", "forward", "complete", "entropy floor"] {
        assert!(report.contains(part), "no {part:?} in\n{report}");
    }
}

/// Guards every test that reads a record.
#[test]
#[should_panic(expected = "/exit_code: \"0\" is not of type")]
fn a_record_with_a_wrong_type_is_not_of_the_schema() {
    let folder = Folder::new();
    folder.train(&["--steps", "2"]).expect(0);
    let mut record = folder.record();
    record["exit_code"] = json!("0");
    expect_valid(&record);
}

#[test]
fn phases_add_up_to_wall_time_in_every_step() {
    let folder = Folder::new();
    let flags = ["--steps", "12", "--checkpoint-every", "4steps", "--eval-every", "3"];
    folder.train(&flags).expect(0);
    for line in folder.steps(0) {
        let phases = line.0["phases_ns"].as_object().unwrap();
        assert_eq!(phases.len(), 8, "{phases:?}");
        let sum: u64 = phases.values().map(|ns| ns.as_u64().unwrap()).sum();
        assert_eq!(sum, line.0["wall_ns"].as_u64().unwrap(), "step {}", line.step());
    }
    let spent = |step: usize, phase: &str| folder.steps(0)[step - 1].0["phases_ns"][phase].clone();
    assert!(spent(3, "eval").as_u64() > Some(0), "step 3 evaluates");
    assert_eq!(spent(4, "eval"), 0);
    assert!(spent(5, "checkpoint").as_u64() > Some(0), "the save after step 4 is in step 5");
}

#[test]
fn a_shown_workload_is_the_same_workload() {
    let folder = Folder::new();
    let shown = run(&["workloads", "show", "smoke"]).expect(0).stdout;
    let file = folder.sibling("mine.toml");
    std::fs::write(&file, shown).unwrap();
    folder.train(&["--steps", "2", "--workload", &text(&file)]).expect(0);
    let listed: Value = serde_json::from_str(&run(&["workloads", "--json"]).stdout).unwrap();
    let smoke = listed.as_array().unwrap().iter().find(|row| row["name"] == "smoke").unwrap();
    assert_eq!(folder.record()["workload"]["id"], smoke["id"]);
    assert_eq!(folder.record()["workload"]["name"], "mine");
}

#[test]
fn a_run_resumes_after_the_steps_limit() {
    let whole = Folder::new();
    let parts = Folder::new();
    whole.train(&["--steps", "10"]).expect(0);
    parts.train(&["--steps", "4"]).expect(0);
    parts.train(&["--steps", "10"]).expect(0);
    assert_eq!(whole.result(), parts.result());
    assert_eq!(parts.record()["attempts"].as_array().unwrap().len(), 2);
    assert_eq!(parts.record()["attempts"][1]["resumed_after_step"], 4);
}

#[test]
fn the_leftovers_of_a_process_killed_at_its_start_are_ignored() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path()).unwrap();
    for leftover in ["lock", "identity.5f0c.tmp"] {
        std::fs::write(folder.path().join(leftover), "{").unwrap();
    }
    folder.train(&["--steps", "2", "--fresh"]).expect(0);
    folder.train(&["--steps", "2", "--fresh"]).expect(2);
}

#[test]
fn the_checkpoints_of_another_run_are_refused() {
    let one = Folder::new();
    let other = Folder::new();
    one.train(&["--steps", "2"]).expect(0);
    other.train(&["--steps", "2"]).expect(0);
    let checkpoints = |folder: &Folder| folder.path().join("checkpoints");
    std::fs::remove_dir_all(checkpoints(&one)).unwrap();
    std::fs::rename(checkpoints(&other), checkpoints(&one)).unwrap();
    one.train(&["--steps", "4"]).expect(6).expect_stderr(&["run: expected"]);
}

#[test]
fn a_target_loss_ends_the_run() {
    let folder = Folder::new();
    folder.train(&["--target-loss", "5.0"]).expect(0);
    let steps = folder.steps(0);
    let [.., before, last] = &steps[..] else { panic!("{steps:?}") };
    assert!(last.loss() <= 5.0 && before.loss() > 5.0);
    let record = folder.record();
    assert_eq!(record["status"], "complete");
    let target = &record["target_loss"];
    assert_eq!((&target["nats"], &target["step"]), (&json!(5.0), &json!(last.step())));
    let wall_ns: u64 = steps.iter().map(|line| line.0["wall_ns"].as_u64().unwrap()).sum();
    assert_eq!(target["seconds"].as_f64(), Some(wall_ns as f64 / 1e9));
}

/// The held-out loss is evaluated first, and reaches the target, in the step of the stop.
#[test]
fn a_target_that_is_reached_in_the_step_of_a_stop_completes_the_run() {
    for at_end in ["checkpoint.at_end=true", "checkpoint.at_end=false"] {
        let folder = Folder::new();
        folder.train(&["--steps", "2"]).expect(0);
        let keep = ["--set", "checkpoint.keep=1", "--set", at_end];
        let target = [&keep[..], &["--eval-every", "2", "--target-loss", "100"]].concat();
        let stop = ["--checkpoint-every", "2steps", "--inject", "stop@step=4,attempt=2"];
        folder.train(&[&target[..], &stop].concat()).expect(0);
        assert_eq!(folder.record()["status"], "complete");
        assert_eq!(folder.record()["target_loss"]["step"], 4);
        assert_eq!(folder.record()["checkpoints"]["count"], 1);
        assert_eq!(folder.checkpoint_count(), 1, "that of step 2 is removed: nothing resumes");
    }
}

/// Killed after the save of the step that reached the target, before the record.
#[test]
fn a_target_that_was_reached_before_a_kill_ends_the_resumed_run() {
    let folder = Folder::new();
    let target = ["--eval-every", "4", "--target-loss", "100"];
    let kill = ["--inject", "kill@step=4,failpoint=manifest-before-latest"];
    assert_eq!(folder.train(&[&target[..], &kill].concat()).code, -1);
    folder.train(&target).expect(0).expect_stderr(&["--target-loss 100: reached at step 4 before"]);
    let steps = || folder.losses().len();
    assert_eq!(steps(), 4, "no step was made");
    let record = folder.record();
    assert_eq!((&record["status"], &record["exit_code"]), (&json!("complete"), &json!(0)));
    assert_eq!(record["target_loss"]["step"], 4);

    // Without the target, or with another one, there is something left to do.
    folder.train(&["--steps", "5"]).expect(0);
    assert_eq!((steps(), &folder.record()["target_loss"]), (5, &Value::Null));
    folder.train(&["--eval-every", "4", "--target-loss", "0", "--steps", "8"]).expect(0);
    assert_eq!((steps(), &folder.record()["target_loss"]["step"]), (8, &Value::Null));
    folder.train(&target).expect(0).expect_stderr(&["already complete"]);
    assert_eq!(steps(), 8);
}

/// Judges a target by a held-out loss if the run evaluates, and else by the loss of a step, also
/// for one that an earlier start of the run has reached.
#[test]
fn a_run_is_complete_by_the_loss_that_its_target_is_of() {
    let folder = Folder::new();
    folder.train(&["--steps", "6", "--eval-every", "3"]).expect(0);
    let held_out = folder.record()["steps"]["evaluation_loss_last"].as_f64().unwrap();
    let smallest = folder.losses().into_iter().map(LossBits::loss).fold(f64::MAX, f64::min);
    assert!(held_out < smallest, "{held_out} is not below {smallest}");
    let target = ((held_out + smallest) / 2.0).to_string();
    let target = ["--target-loss", &target];
    let held_out = ["--steps", "7", "--eval-every", "3"];
    folder.train(&[&held_out[..], &target].concat()).expect(0).expect_stderr(&["already complete"]);
    folder.train(&[&["--steps", "7"], &target[..]].concat()).expect(0);
    assert_eq!(folder.losses().len(), 7, "no step had this loss");

    let not_evaluated = Folder::new();
    not_evaluated.train(&["--steps", "2"]).expect(0);
    not_evaluated.train(&["--steps", "4", "--eval-every", "4", "--target-loss", "100"]).expect(0);
    assert_eq!(not_evaluated.losses().len(), 4, "no held-out loss was known");
}

/// The lines on stderr, each of which must be a JSON object.
fn json_lines(finished: &Finished) -> Vec<Value> {
    let object =
        |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    finished.stderr.lines().map(object).collect()
}

#[test]
fn with_json_every_line_on_stderr_is_an_object_and_stdout_is_empty() {
    let folder = Folder::new();
    let flags = ["--steps", "3", "--log-format", "json"];
    let finished = folder.train(&flags).expect(0);
    assert_eq!(finished.stdout, "");
    let lines = json_lines(&finished);
    let steps = lines.iter().filter(|line| line["event"] == "step");
    let steps: Vec<_> = steps.map(|line| line["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, [1, 2, 3]);
    let saved = lines.iter().filter(|line| line["event"] == "checkpoint");
    assert_eq!(saved.map(|line| &line["step"]).collect::<Vec<_>>(), [3]);
    let repeated = json_lines(&folder.train(&flags).expect(0));
    // The committed step is also known if the last attempt saved no checkpoint.
    let file = folder.path().join("record.json");
    let mut record = folder.record();
    record["checkpoints"] = Value::Null;
    std::fs::write(file, record.to_string()).unwrap();
    let without_saves = json_lines(&folder.train(&flags).expect(0));
    for end in [lines, repeated, without_saves].map(|mut lines| lines.pop().unwrap()) {
        assert_eq!((&end["event"], &end["status"]), (&json!("end"), &json!("complete")));
        assert_eq!((&end["exit_code"], &end["committed_step"]), (&json!(0), &json!(3)));
        assert_eq!(end["folder"], folder.text());
        assert_eq!(end.get("reason"), Some(&Value::Null));
    }
}

#[test]
fn json_lines_describe_a_failure() {
    let folder = Folder::new();
    let saves = ["--checkpoint-every", "2steps", "--set", "checkpoint.background=false"];
    let fails = [&saves[..], &["--inject", "nan@step=3"]].concat();
    let finished = folder.train(&[&fails[..], &["--log-format", "json"]].concat()).expect(4);
    let lines = json_lines(&finished);
    let [.., end, error] = lines.as_slice() else { panic!("{lines:?}") };
    assert_eq!((&end["event"], &end["status"]), (&json!("end"), &json!("failed")));
    assert_eq!((&end["exit_code"], &end["committed_step"]), (&json!(4), &json!(2)));
    assert_eq!(end["reason"], folder.record()["reason"]);
    assert_eq!((&error["event"], &error["exit_code"]), (&json!("error"), &json!(4)));
    let origin = ["rank", "caused_by_rank", "step"].map(|key| error[key].as_u64());
    assert_eq!(origin, [Some(0), Some(0), Some(3)]);
    // An error before the rendezvous.
    let refused = run(&["train", "--log-format", "json", "--set", "model.layers=0"]).expect(2);
    let [error] = &json_lines(&refused)[..] else { panic!("{refused:?}") };
    assert_eq!((&error["event"], &error["exit_code"]), (&json!("error"), &json!(2)));
    assert_eq!(error.get("rank"), Some(&Value::Null));
    assert!(error["text"].as_str().unwrap().starts_with("model.layers = 0"), "{error}");
}

#[test]
fn a_complete_run_fails_if_its_record_cannot_be_written() {
    let folder = Folder::new();
    let record = folder.path().join("record.json");
    let steps = folder.path().join("steps");
    let obstruct = std::thread::spawn(move || {
        while !steps.join("r000000.jsonl").exists() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        std::fs::remove_file(&record).unwrap();
        std::fs::create_dir(&record).unwrap();
    });
    let slow = ["--inject", "slow@step=2", "--inject", "slow@step=2"]; // six seconds
    let flags = [&["--steps", "3", "--log-format", "json"], &slow[..]].concat();
    let finished = folder.train(&flags).expect(1);
    obstruct.join().unwrap();
    let lines = json_lines(&finished);
    let [.., end, error] = lines.as_slice() else { panic!("{lines:?}") };
    assert_eq!((&end["event"], &end["status"]), (&json!("end"), &json!("failed")));
    assert_eq!((&end["exit_code"], &end["committed_step"]), (&json!(1), &json!(3)));
    assert_eq!((&error["event"], &error["exit_code"]), (&json!("error"), &json!(1)));
    assert!(error["text"].as_str().unwrap().contains("record.json"), "{error}");
    assert_eq!(end["reason"]["text"], error["text"]);
    assert_eq!((&end["reason"]["rank"], &error["caused_by_rank"]), (&json!(0), &json!(0)));
}

#[test]
fn a_fault_in_a_completed_step_is_a_note() {
    let folder = Folder::new();
    folder.train(&["--steps", "2"]).expect(0);
    let faults = ["nan@step=2,attempt=2", "slow@step=3,attempt=2", "kill@step=3"];
    let faults: Vec<_> = faults.iter().flat_map(|fault| ["--inject", fault]).collect();
    let resumed = folder.train(&[&["--steps", "3"], &faults[..]].concat()).expect(0);
    let note = |why: &str| format!("--inject on rank 0: no effect, {why}");
    let notes = ["step 2 was completed before", "it is of attempt 1"].map(note);
    let stderr = resumed.expect_stderr(&[&notes[0], &notes[1]]).stderr;
    assert!(!stderr.contains("step 3 was completed"), "{stderr}");
}

/// Removing old checkpoints takes six seconds after the save of step 4, longer than what follows.
#[test]
fn slow_retention_delays_no_step_but_the_end() {
    let folder = Folder::new();
    let slow = "slow@step=4,failpoint=mid-retention,attempt=2";
    let saves = ["--steps", "8", "--checkpoint-every", "4steps", "--set", "checkpoint.keep=1"];
    folder.train(&["--steps", "2"]).expect(0);
    let faults = ["--inject", slow, "--inject", slow];
    folder.train(&[&saves[..], &faults].concat()).expect(0);
    let second = 1_000_000_000;
    for step in folder.steps(0) {
        let checkpoint_ns = step.0["phases_ns"]["checkpoint"].as_u64().unwrap();
        assert!(checkpoint_ns < 5 * second, "no step waits for a removal: {checkpoint_ns} ns");
    }
    assert_eq!(folder.checkpoint_count(), 1, "the end waits for the removal");
}

#[test]
fn a_damaged_checkpoint_is_skipped_with_a_warning() {
    let folder = Folder::new();
    folder.train(&["--steps", "8", "--checkpoint-every", "4steps"]).expect(0);
    let newest = folder.newest_checkpoint();
    let shard = folder.path().join(format!("checkpoints/{newest}/d00/r00000-000.safetensors"));
    let mut bytes = std::fs::read(&shard).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&shard, bytes).unwrap();
    run(&["ckpt", "verify", &folder.text()]).expect(6);
    folder.train(&["--steps", "10"]).expect(0).expect_stderr(&[&newest]);
    assert_eq!(folder.record()["attempts"][1]["resumed_after_step"], 4);
    assert_eq!(folder.losses().len(), 10);
}

#[test]
fn a_rejected_checkpoint_that_is_intact_again_counts() {
    let folder = Folder::new();
    folder.train(&["--steps", "8", "--checkpoint-every", "4steps"]).expect(0);
    let newest = folder.newest_checkpoint();
    let shard = folder.path().join(format!("checkpoints/{newest}/d00/r00000-000.safetensors"));
    let good = std::fs::read(&shard).unwrap();
    std::fs::write(&shard, vec![0; good.len()]).unwrap();
    folder.train(&["--steps", "10"]).expect(0).expect_stderr(&["(3 reads)"]);
    let text = folder.text();
    let verify = || run(&["ckpt", "verify", &text, "--checkpoint", &newest]);
    verify().expect(6).expect_stdout(&["(3 reads)"]);
    run(&["ckpt", "ls", &text]).expect(0).expect_stdout(&["rejected"]);
    std::fs::write(&shard, good).unwrap();
    verify().expect(0).expect_stdout(&["counts again", "ok, "]);
    let again = run(&["ckpt", "ls", &text]).expect(0);
    assert!(!again.stdout.contains("rejected"), "{}", again.stdout);
}

/// Closes the pipes as `2>&1 | head -1` does. Without the matmul probe there is a warning, with a
/// profile there is output on stdout.
#[test]
fn closed_pipes_do_not_end_a_run() {
    let folder = Folder::new();
    let out = folder.text();
    let no_probe = ["--set", "telemetry.matmul_probe=0s"];
    for (format, steps, extra) in
        [("text", "3", no_probe), ("json", "5", no_probe), ("text", "6", ["--profile-step", "6"])]
    {
        let train = ["train", "--out", &out, "--steps", steps, "--log-format", format];
        let mut command = yardstick(&[&train[..], &extra].concat());
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        command.stdin(Stdio::null()).stdout(writer.try_clone().unwrap()).stderr(writer);
        assert_eq!(Running::spawn(command).wait(), Some(0), "{format}, {extra:?}");
        let record = folder.record();
        assert_eq!((&record["status"], &record["exit_code"]), (&json!("complete"), &json!(0)));
        assert_eq!(record["steps"]["completed"].to_string(), steps);
        assert!(extra != no_probe || record["anomalies"] != json!([]), "there was no warning");
    }
}

#[test]
fn only_the_fused_engine_records_a_matmul_kernel() {
    let small = ["--steps", "1", "--set", "batch.sequence_tokens=16"];
    for (engine, is_named) in [("fused", true), ("candle", false)] {
        let folder = Folder::new();
        folder.train(&[&small[..], &["--engine", engine]].concat()).expect(0);
        let record = folder.record();
        let environment = &record["environment"];
        assert_eq!(environment["matmul_kernel"].is_string(), is_named, "{environment}");
        let of_rank = record["ranks"][0].get("matmul_kernel");
        assert_eq!(environment.get("matmul_kernel"), of_rank, "{engine}");
    }
}

/// Binds a single rank to one core, as Open MPI may do, so that the remaining cores are unused.
#[test]
fn cores_left_unused_by_the_launcher_are_an_anomaly() {
    let cores = launch::allowed_cores();
    let unused_cores = |threads: &[&str], is_launched: bool| {
        let folder = Folder::new();
        let out = folder.text();
        let program = yardstick(&[]);
        let mut command = std::process::Command::new("taskset");
        command.args(["-c", &cores[0].to_string()]).arg(program.get_program());
        command.args(["train", "--steps", "1", "--set", "collectives.backend=single"]);
        command.args(["--out", &out]).args(threads);
        if is_launched {
            command.envs([("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")]);
        }
        let stderr = finish(command).expect(0).stderr;
        let unused = folder.record()["ranks"][0]["unused_cores"].as_u64().unwrap();
        let anomalies = folder.record()["anomalies"].to_string();
        let is_anomaly = anomalies.contains("binding leaves cores unused");
        let warnings = stderr.matches("binding leaves cores unused").count();
        assert_eq!(warnings, usize::from(is_anomaly));
        assert_eq!(is_anomaly, unused > 0);
        unused
    };
    assert_eq!(unused_cores(&[], false), 0, "without a launcher, the user chose the binding");
    assert_eq!(unused_cores(&["--threads", "1"], true), 0, "one thread was requested");
    let unused = unused_cores(&[], true);
    // Hyper-threads of the bound core, and cores beyond a quota, do not count as unused.
    let quota = launch::CgroupLimits::of_this_process().cpu_cores;
    let all_count = quota.is_none() && !has_hyper_threads();
    assert!(!all_count || unused + 1 >= cores.len() as u64, "{unused} of {cores:?}");
}

fn has_hyper_threads() -> bool {
    let machine = launch::machine();
    machine.cpu_cores != machine.cpu_threads
}
