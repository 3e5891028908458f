//! `scripts/gpu-check.sh` fails when a step fails, continues after it, and reports it all in JSON.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Stand-in for a program: its name, and the lines of a shell script.
type Stub<'a> = (&'a str, &'a str);

/// Knows its version, and a machine without NCCL.
const YARDSTICK: Stub<'static> = (
    "yardstick",
    "[ \"$1\" = --version ] && echo yardstick 0 && exit\n\
     [ \"$1\" = devices ] && echo '{\"cuda\": {\"versions\": {\"nccl\": null}}}'",
);
const PASSES: &str = "echo 'test result: ok. 4 passed; 0 failed'";
const FAILS: &str = "echo 'test result: FAILED. 3 passed; 1 failed'; exit 101";
const KERNELS_PASS: &str = "echo 'test a::flash_with_heads_of_64 ... ok'\n\
                            echo 'test a::flash_with_heads_of_128 ... ok'\n\
                            echo 'test result: ok. 2 passed; 0 failed'";

pub(crate) fn write_program(path: &Path, lines: &str) {
    fs::write(path, format!("#!/bin/sh\n{lines}\n")).expect("it can be written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("it is ours");
}

/// Outcome of a check.
#[derive(Debug)]
struct Checked {
    status: Option<i32>,
    json: serde_json::Value,
    stdout: String,
    /// Files in the folder for results, and in the archive there.
    files: Vec<String>,
    archive: String,
}

impl Checked {
    /// Results of the steps, in order.
    fn results(&self) -> Vec<&str> {
        let steps = self.json["steps"].as_array().expect("the steps");
        steps.iter().map(|step| step["result"].as_str().expect("a text")).collect()
    }

    fn figure(&self, step: usize) -> &str {
        self.json["steps"][step]["figure"].as_str().expect("a text")
    }
}

/// A check of some steps with further flags.
fn check(stubs: &[Stub<'_>], steps: &str, flags: &[&str]) -> Checked {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, lines) in stubs {
        write_program(&folder.path().join(name), lines);
    }
    let out = folder.path().join("out");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/gpu-check.sh");
    let mut bash = Command::new("bash");
    bash.arg(script).args(["--only", steps]).args(flags).arg("--out").arg(&out);
    bash.arg(folder.path()).env("PATH", path_with(folder.path()));
    let output = bash.output().expect("bash runs");
    let json = fs::read_to_string(out.join("gpu-check.json")).unwrap_or_default();
    let mut list = Command::new("tar");
    list.args(["--list", "--file"]).arg(out.join("gpu-check-logs.tar.gz"));
    Checked {
        status: output.status.code(),
        json: serde_json::from_str(&json).unwrap_or_default(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        files: names_in(&out),
        archive: String::from_utf8_lossy(&list.output().expect("tar runs").stdout).into_owned(),
    }
}

/// Returns a search path on which programs of a folder precede those of the machine.
fn path_with(folder: &Path) -> String {
    format!("{}:{}", folder.display(), std::env::var("PATH").expect("it is set"))
}

/// Names in a folder, sorted; none if there is no such folder.
fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let mut names: Vec<String> = entries.map(|entry| name(entry.expect("an entry"))).collect();
    names.sort();
    names
}

fn with_tests<'a>(kernels: &'a str, engine: &'a str) -> [Stub<'a>; 5] {
    [
        YARDSTICK,
        ("yardstick_models", kernels),
        ("cuda_engine", engine),
        ("cuda_nccl_backend", PASSES),
        ("cuda_timing", "exit 1"),
    ]
}

/// Checks the programs, with another yardstick, which also knows its version.
fn with_yardstick(lines: &str) -> Checked {
    let lines = format!("[ \"$1\" = --version ] && exit 0\n{lines}");
    let mut stubs = with_tests(KERNELS_PASS, PASSES);
    stubs[0].1 = &lines;
    check(&stubs, "tokens-per-second", &[])
}

#[test]
fn what_passes_is_told_with_its_figure() {
    let checked = check(&with_tests(KERNELS_PASS, PASSES), "kernel-tests,engine-tests", &[]);
    assert_eq!(checked.status, Some(0), "{checked:?}");
    assert_eq!(checked.results(), ["pass", "pass"]);
    assert_eq!([checked.figure(0), checked.figure(1)], ["2 passed", "4 passed"]);
    assert!(checked.json["throughput"].is_null());
}

#[test]
fn a_check_leaves_two_files() {
    let checked = check(&with_tests(KERNELS_PASS, PASSES), "engine-tests", &[]);
    assert_eq!(checked.files, ["gpu-check-logs.tar.gz", "gpu-check.json"]);
    assert!(checked.archive.contains("engine-tests.log"), "{}", checked.archive);
}

#[test]
fn a_failure_fails_the_check_and_does_not_stop_it() {
    let checked = check(&with_tests(FAILS, PASSES), "kernel-tests,engine-tests", &[]);
    assert_eq!(checked.status, Some(1));
    assert_eq!(checked.results(), ["fail", "pass"]);
    let steps = "devices,smoke-f32,kernel-timing";
    let checked = check(&with_tests(KERNELS_PASS, PASSES), steps, &[]);
    assert_eq!(checked.status, Some(1));
    assert_eq!(checked.results(), ["fail"; 3], "programs that do nothing: {checked:?}");
    let checked = check(&with_tests("exit 124", PASSES), "kernel-tests", &[]);
    assert!(checked.figure(0).starts_with("over its time limit"), "{checked:?}");
}

#[test]
fn tests_that_did_not_run_are_a_failure() {
    let nothing = "echo 'test result: ok. 0 passed; 0 failed; 30 filtered out'";
    let checked = check(&with_tests(PASSES, nothing), "kernel-tests,engine-tests", &[]);
    assert_eq!(checked.results(), ["fail", "fail"], "{checked:?}");
    assert!(checked.figure(0).contains("flash_with_heads_of_64"), "{checked:?}");
    assert_eq!(checked.figure(1), "no test ran");
}

#[test]
fn what_was_skipped_or_not_run_is_not_taken_for_shown() {
    let stubs = with_tests(KERNELS_PASS, PASSES);
    let checked = check(&stubs, "engine-tests,nccl-two-ranks", &[]);
    assert_eq!(checked.status, Some(0), "{checked:?}");
    assert_eq!(checked.results(), ["pass", "skip"]);
    assert!(checked.stdout.contains("not shown: nccl-two-ranks: no NCCL"), "{}", checked.stdout);
    assert!(checked.stdout.contains("not run: devices nvml kernel-tests "), "{}", checked.stdout);
    assert_eq!(checked.json["not_run"][0], "devices");
    let flags = ["--require", "engine-tests", "--require", "nccl-two-ranks"];
    let checked = check(&stubs, "engine-tests,nccl-two-ranks", &flags);
    assert_eq!(checked.status, Some(1), "{checked:?}");
    assert_eq!(checked.results(), ["pass", "fail"]);
    assert_eq!(checked.figure(1), "required, but skipped: no NCCL on this machine");
}

#[test]
fn a_step_that_is_not_to_run_cannot_be_asked_for() {
    let stubs = with_tests(KERNELS_PASS, PASSES);
    assert_eq!(check(&stubs, "engine-tests,no-such-step", &[]).status, Some(2));
    assert_eq!(check(&stubs, "engine-tests", &["--require", "devices"]).status, Some(2));
    assert_eq!(check(&stubs, "kernel-timing", &["--quick"]).status, Some(2));
}

#[test]
fn a_check_without_a_program_fails() {
    assert_eq!(check(&[YARDSTICK], "devices", &[]).status, Some(3));
}

#[test]
fn only_too_little_memory_means_a_smaller_micro_batch() {
    let says = |text: &str| with_yardstick(&format!("echo \"error: {text}\" >&2; exit 3"));
    let checked = says("the device's memory does not suffice: expected 9 GiB");
    assert!(checked.figure(0).starts_with("micro-batch 8: exit code 3: "), "{checked:?}");
    let checked = says("no CUDA driver");
    assert_eq!(checked.figure(0), "micro-batch 64: exit code 3: error: no CUDA driver");
}

#[test]
fn memcheck_does_not_count_errors_of_calls() {
    let sanitizer = "case \"$*\" in *'--report-api-errors no'*) echo 'test result: ok. 1 passed;'\n\
                     ;; *) exit 9 ;; esac";
    let mut stubs = with_tests(KERNELS_PASS, PASSES).to_vec();
    stubs.push(("compute-sanitizer", sanitizer));
    let checked = check(&stubs, "memcheck-engine,memcheck-attention", &[]);
    assert_eq!(checked.results(), ["pass", "pass"], "{checked:?}");
}
