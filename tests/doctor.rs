//! `yardstick doctor` as a user runs it, with faults that are planted.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::process::Command;
use std::sync::LazyLock;

use jsonschema::Validator;
use serde_json::Value;
use support::{Finished, Folder, finish, run, text, yardstick};

static VALIDATOR: LazyLock<Validator> = LazyLock::new(|| {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/doctor.schema.json");
    let schema: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    jsonschema::validator_for(&schema).unwrap()
});

/// What was printed as JSON, as the schema says.
#[track_caller]
fn report(finished: &Finished) -> Value {
    let report: Value = serde_json::from_str(&finished.stdout).expect(&finished.stdout);
    let wrong: Vec<_> = VALIDATOR.iter_errors(&report).map(|error| error.to_string()).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    report
}

#[track_caller]
fn check<'a>(report: &'a Value, name: &str) -> &'a Value {
    let checks = report["checks"].as_array().unwrap();
    let found = checks.iter().find(|check| check["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {report:#}"))
}

/// The worst result of a check: its status, and what was found.
#[track_caller]
fn worst<'a>(report: &'a Value, name: &str) -> (&'a str, &'a str) {
    let result = &check(report, name)["results"][0];
    (result["status"].as_str().unwrap(), result["found"].as_str().unwrap())
}

#[test]
fn a_healthy_machine_passes_with_a_table_and_with_json() {
    let folder = Folder::new();
    let out = folder.text();
    let table = run(&["doctor", "--workload", "smoke", "--out", &out]).expect(0);
    table.expect_stdout(&["check ", "memory ", "tier_shared ", "1 rank of 1 node"]);
    let report =
        report(&run(&["doctor", "--workload", "smoke", "--out", &out, "--json"]).expect(0));
    assert_eq!(check(&report, "memory")["status"], "pass", "{report:#}");
    assert!(worst(&report, "tier_shared").1.contains("GiB/s written"), "{report:#}");
    assert_eq!(check(&report, "clock")["status"], "skip");
    assert!(!std::path::Path::new(&out).exists(), "nothing is left");
}

#[test]
fn what_is_required_has_to_be_there() {
    let plain = report(&run(&["doctor", "--json"]).expect(0));
    assert_eq!(worst(&plain, "gdr").0, "skip");
    let required = report(&run(&["doctor", "--json", "--require", "gdr,shm"]).expect(3));
    assert_eq!(worst(&required, "gdr").0, "fail");
    assert_eq!(worst(&required, "shm").0, "pass");
    let unknown = run(&["doctor", "--require", "shm,grd"]).expect(2);
    unknown.expect_stderr(&["--require grd: expected one of: shm, memlock,"]);
}

#[test]
fn a_limit_of_this_process_fails() {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 200; exec \"$@\"", "sh"]);
    command.arg(env!("CARGO_BIN_EXE_yardstick")).args(["doctor", "--json"]);
    let report = report(&finish(command).expect(3));
    assert_eq!(worst(&report, "open_files"), ("fail", "200"));
}

#[test]
fn a_tier_that_cannot_be_written_fails() {
    let folder = Folder::new();
    std::fs::create_dir_all(folder.path()).unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let mut command = yardstick(&["doctor", "--json"]);
    command.env("LOCAL_CHECKPOINT_DIR", text(&file.join("below")));
    let report = report(&finish(command).expect(3));
    let (status, found) = worst(&report, "tier_nvme");
    assert_eq!(status, "fail");
    assert!(found.contains("Not a directory"), "{found}");
}

#[test]
fn a_gpu_that_is_missing_fails() {
    let mut command = yardstick(&["doctor", "--json", "--device", "cuda"]);
    command.env("YARDSTICK_CUDA_PATH", "/nowhere").env("CUDA_VISIBLE_DEVICES", "");
    let report = report(&finish(command).expect(3));
    assert_eq!(worst(&report, "gpus").0, "fail", "{report:#}");
}
