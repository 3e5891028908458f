//! Log lines of `--log-format json`: every line on stderr has its time, its subject, and its rank,
//! host and step.

use serde_json::Value;
use support::{Folder, finish, free_port, yardstick};

/// All lines, each of which must be an object with these.
#[track_caller]
fn lines(stderr: &str) -> Vec<Value> {
    let line = |text: &str| {
        let line: Value = serde_json::from_str(text).unwrap_or_else(|_| panic!("no JSON: {text}"));
        for name in ["rank", "host", "step"] {
            assert!(line.get(name).is_some(), "no {name}: {text}");
        }
        let time = line["timestamp"].as_str().unwrap_or_default();
        assert!(chrono::DateTime::parse_from_rfc3339(time).is_ok(), "{text}");
        assert!(name(&line).is_some_and(|name| !name.is_empty()), "{text}");
        assert!(line["host"].as_str().is_some_and(|host| !host.is_empty()), "{text}");
        line
    };
    stderr.lines().map(line).collect()
}

/// Returns the name of an event.
fn name(line: &Value) -> Option<&str> {
    line["event"].as_str()
}

/// Returns the URL of a collector where nothing listens, which the log warns of.
fn nowhere() -> String {
    format!("http://127.0.0.1:{}", free_port())
}

const FLAGS: [&str; 6] = ["train", "--steps", "6", "--log-format", "json", "--otlp"];

/// Starts a run whose libraries log much, and whose exporter fails before the first step is done.
#[cfg(feature = "mpi")]
#[test]
fn events_steps_and_the_log_of_both_ranks_have_their_origin() {
    let folder = Folder::new();
    let (out, url) = (folder.text(), nowhere());
    let save = ["--checkpoint-every", "3steps"];
    let mut command = support::mpirun(2, &[&FLAGS[..], &[&url, "--out", &out], &save].concat());
    command.env("RUST_LOG", "warn,reqwest=debug,hyper_util=debug");
    let lines = lines(&finish(command).expect(0).stderr);
    for rank in [0, 1] {
        let warns = |line: &&Value| line["level"] == "WARN" && line["rank"] == rank;
        let found: Vec<_> = lines.iter().filter(warns).collect();
        let [warning] = found[..] else { panic!("{found:?}") };
        let message = warning["fields"]["message"].as_str().unwrap();
        assert!(message.starts_with("telemetry.otlp: "), "{warning}");
        let others = |line: &&Value| line["level"] == "DEBUG" && line["rank"] == rank;
        assert!(lines.iter().any(|line| others(&line)), "rank {rank}");
    }
    let host = &folder.record()["ranks"][0]["host"];
    assert!(lines.iter().all(|line| &line["host"] == host), "{host}");
    let steps: Vec<_> = lines.iter().filter(|line| line.get("loss").is_some()).collect();
    let numbers: Vec<_> = steps.iter().filter_map(|line| line["step"].as_u64()).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6]);
    let named = |wanted: &str| lines.iter().find(|line| name(line) == Some(wanted)).unwrap();
    assert_eq!(named("start")["step"], Value::Null);
    assert_eq!(named("checkpoint")["step"], 3);
    assert_eq!(named("end")["step"], Value::Null);
    assert!(named("first_step")["first_step_seconds"].is_number());
    assert_eq!(named("first_step")["step"], 1);
}

#[test]
fn an_error_has_the_step_in_which_it_happened() {
    let folder = Folder::new();
    let (out, url) = (folder.text(), nowhere());
    let nan = ["--inject", "nan@step=4,rank=0"];
    let mut command = yardstick(&[&FLAGS[..], &[&url, "--out", &out], &nan].concat());
    command.env("OTEL_BSP_SCHEDULE_DELAY", "20"); // the warning comes between the steps
    let lines = lines(&finish(command).expect(4).stderr);
    let error = lines.iter().find(|line| name(line) == Some("error")).unwrap();
    assert_eq!((error["step"].as_u64(), error["rank"].as_u64()), (Some(4), Some(0)));
    let warning = lines.iter().find(|line| line["level"] == "WARN").unwrap();
    // On a busy machine the collector is found missing only when the last step is over.
    let step = warning["step"].as_u64();
    assert!(step.is_none_or(|step| (1..=4).contains(&step)), "{warning}");
    assert_eq!(warning["rank"], 0, "{warning}");
}

/// Fails before there is a run, by a configuration that cannot be used.
#[test]
fn an_error_before_the_run_has_a_host_and_neither_rank_nor_step() {
    let wrong = ["train", "--log-format", "json", "--set", "batch.micro_sequences=0"];
    let lines = lines(&finish(yardstick(&wrong)).expect(2).stderr);
    let [error] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!((name(error), &error["rank"]), (Some("error"), &Value::Null));
    assert_eq!(error["step"], Value::Null);
}

/// Arguments that are none, and what commands log that are no training.
#[test]
fn lines_of_other_commands_are_objects_too() {
    let wrong = finish(yardstick(&["train", "--log-format", "json", "--no-such-flag"])).expect(2);
    let [error] = &lines(&wrong.stderr)[..] else { panic!("{}", wrong.stderr) };
    assert!(error["text"].as_str().unwrap().contains("--no-such-flag"), "{error}");
    let doctor = ["doctor", "--log-format=json", "--workload", "none"];
    let [error] = &lines(&finish(yardstick(&doctor)).expect(2).stderr)[..] else { panic!() };
    assert_eq!((name(error), &error["exit_code"]), (Some("error"), &Value::from(2)));
    let folder = Folder::new();
    let report = folder.sibling("file/report");
    std::fs::write(folder.sibling("file"), "").unwrap();
    let doctor = ["doctor", "--log-format", "json", "--report", &support::text(&report)];
    let said = lines(&finish(yardstick(&doctor)).stderr);
    assert!(said.iter().any(|line| name(line) == Some("doctor")), "{said:?}");
}

/// The format of ranks is that of their launcher.
#[cfg(feature = "mpi")]
#[test]
fn a_launcher_logs_as_its_ranks_do() {
    let folder = Folder::new();
    let train = ["train", "--steps", "1", "--log-format", "json", "--out", &folder.text()];
    let said = finish(support::supervise(&[], &train)).expect(0).stderr;
    let said = lines(&said);
    let launch: Vec<_> = said.iter().filter(|line| name(line) == Some("launch")).collect();
    assert!(launch.len() > 1 && said.iter().any(|line| name(line) == Some("step")), "{said:?}");
}

/// Ends a run where nobody expects it.
#[test]
fn a_target_loss_is_logged_with_what_sets_it_and_as_the_cause_of_the_end() {
    let run = |variable: &str, flags: &[&str]| {
        let folder = Folder::new();
        let mut command = yardstick(&["train", "--steps", "2", "--out", &folder.text()]);
        command.args(flags).env("TARGET_LOSS", variable);
        finish(command)
    };
    for (flags, origin) in
        [(&[][..], "TARGET_LOSS of the environment"), (&["--target-loss", "10"], "--target-loss")]
    {
        let reached = run("10\n", flags).expect(0);
        let target = "the loss of a step is at most 10";
        let start = format!("{origin}: the run stops when {target}\n");
        reached.expect_stderr(&[&start, &format!("complete, as {target} ({origin}); see")]);
    }
    run("ten", &[])
        .expect(2)
        .expect_stderr(&["\"ten\": expected a number, here or as TARGET_LOSS"]);
    for empty in ["", " \n"] {
        let unset = run(empty, &[]).expect(0);
        assert!(!unset.stderr.contains("TARGET_LOSS"), "{}", unset.stderr);
    }
    run("", &["--target-loss", ""]).expect(2).expect_stderr(&["\"\": expected a number"]);
    let far = run("0.1", &[]).expect(0);
    assert!(!far.stderr.contains("complete, as"), "{}", far.stderr);
}
