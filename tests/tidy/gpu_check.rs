//! `scripts/gpu-check.sh` fails when a step fails, goes on after it, and tells everything in JSON.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// What stands in for a program: its name, and the lines of a shell script.
type Stub<'a> = (&'a str, &'a str);

const YARDSTICK: Stub<'static> = ("yardstick", "[ \"$1\" = --version ] && echo yardstick 0");
const PASSES: &str = "echo 'test result: ok. 4 passed; 0 failed'";
const FAILS: &str = "echo 'test result: FAILED. 3 passed; 1 failed'; exit 101";

/// Exit status and JSON of a check of some steps.
fn check(stubs: &[Stub<'_>], steps: &str) -> (Option<i32>, serde_json::Value) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, lines) in stubs {
        let path = folder.path().join(name);
        fs::write(&path, format!("#!/bin/sh\n{lines}\n")).expect("it can be written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
    }
    let out = folder.path().join("out");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/gpu-check.sh");
    let mut bash = Command::new("bash");
    bash.arg(script).args(["--only", steps, "--out"]).arg(&out).arg(folder.path());
    let output = bash.output().expect("bash runs");
    let json = fs::read_to_string(out.join("gpu-check.json")).unwrap_or_default();
    (output.status.code(), serde_json::from_str(&json).unwrap_or_default())
}

fn with_tests<'a>(update: &'a str, engine: &'a str) -> [Stub<'a>; 4] {
    [YARDSTICK, ("cuda_step", update), ("cuda_engine", engine), ("cuda_timing", "exit 1")]
}

#[test]
fn what_passes_is_told_with_its_figure() {
    let (status, json) = check(&with_tests(PASSES, PASSES), "update-tests,engine-tests");
    assert_eq!(status, Some(0), "{json}");
    for (index, name) in ["update-tests", "engine-tests"].into_iter().enumerate() {
        let step = &json["steps"][index];
        assert_eq!([&step["name"], &step["result"], &step["figure"]], [name, "pass", "4 passed"]);
    }
    assert!(json["throughput"].is_null());
}

#[test]
fn a_failure_fails_the_check_and_does_not_stop_it() {
    let (status, json) = check(&with_tests(FAILS, PASSES), "update-tests,engine-tests");
    assert_eq!(status, Some(1));
    let results = ["fail", "pass"].map(|result| serde_json::json!(result));
    assert_eq!([0, 1].map(|step| json["steps"][step]["result"].clone()), results);
    let (status, json) = check(&with_tests(PASSES, PASSES), "devices,smoke-f32,kernel-timing");
    assert_eq!(status, Some(1));
    for step in 0..3 {
        assert_eq!(json["steps"][step]["result"], "fail", "a program that does nothing: {json}");
    }
}

#[test]
fn a_check_of_nothing_or_without_a_program_fails() {
    assert_eq!(check(&with_tests(PASSES, PASSES), "no-such-step").0, Some(1));
    assert_eq!(check(&[YARDSTICK], "devices").0, Some(3));
}
