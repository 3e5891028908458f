//! Failures of the scripts that judge tests: they fail when they should.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};

fn script(name: &str, arguments: &[&str]) -> Command {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts");
    let mut bash = Command::new("bash");
    bash.arg(scripts.join(name)).args(arguments);
    bash
}

/// Exit status and last line of `summarize-tests.sh` for a log and a list of skips.
fn summary(log: &str, skips: &str) -> (Option<i32>, String) {
    let file = |text: &str| {
        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.write_all(text.as_bytes()).expect("it can be written");
        file
    };
    let log = file(log);
    let skips = file(skips);
    let path = |file: &tempfile::NamedTempFile| file.path().display().to_string();
    let mut bash = script("summarize-tests.sh", &[&path(&log), &path(&skips)]);
    let output = bash.output().expect("bash runs");
    let text = String::from_utf8_lossy(&output.stdout);
    (output.status.code(), text.lines().last().unwrap_or("").to_owned())
}

const PASSED: &str = "test a ... ok <1.2s>\n\
                      test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured\n\
                      test result: ok. 4 passed; 0 failed; 0 ignored; 0 measured\n";

#[test]
fn results_of_all_test_binaries_are_added_up() {
    let line = "7 passed, 0 failed, 1 skipped".to_owned();
    assert_eq!(summary(PASSED, ""), (Some(0), line));
}

#[test]
fn failures_and_unlisted_skips_fail_and_listed_skips_do_not() {
    let failed = format!("{PASSED}test result: FAILED. 1 passed; 2 failed; 0 ignored; x\n");
    assert_eq!(summary(&failed, ""), (Some(1), "8 passed, 2 failed, 1 skipped".to_owned()));
    for skipped in ["test a::slow ... ignored\n", "test a::slow ... ignored, needs a GPU\n"] {
        let log = format!("{PASSED}{skipped}");
        assert_eq!(summary(&log, "").0, Some(1), "not listed");
        assert_eq!(summary(&log, "test = \"b::slow\"\n").0, Some(1), "another is listed");
        assert_eq!(summary(&log, "test = \"a::slow\"\n").0, Some(0), "listed");
    }
}

#[test]
fn a_log_without_tests_fails() {
    assert_eq!(summary("", ""), (Some(1), "0 passed, 0 failed, 0 skipped".to_owned()));
}

/// Runs a script of groups in a folder with times, and with stamps.
fn group(folder: &Path, name: &str, arguments: &[&str]) -> Output {
    let times = folder.join("times.toml");
    std::fs::write(&times, "[test]\ngroup = 0.1\ntest-mpich = 9\n").expect("it can be written");
    let mut bash = script(name, arguments);
    bash.env("TIMES", times).env("STAMPS", folder.join("stamps.toml")).env("BUDGET_FACTOR", "1");
    bash.output().expect("bash runs")
}

#[test]
fn a_group_returns_its_status_and_is_stopped_after_its_budget() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run = |arguments: &[&str]| group(folder.path(), "budget.sh", arguments);
    assert_eq!(run(&["test-mpich", "true"]).status.code(), Some(0));
    assert_eq!(run(&["test-mpich", "bash", "-c", "exit 3"]).status.code(), Some(3));
    assert_eq!(run(&["unknown", "true"]).status.code(), Some(2));
    let late = run(&["group", "sleep", "60"]);
    assert_eq!(late.status.code(), Some(124));
    assert!(String::from_utf8_lossy(&late.stdout).contains("FAILED"));
}

#[test]
fn a_group_is_run_unless_its_stamp_is_that_of_its_inputs() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let stamps = folder.path().join("stamps.toml");
    let status = folder.path().join("status");
    let run = |code: &str| {
        std::fs::write(&status, format!("exit {code}")).expect("it can be written");
        let command = ["test-mpich", "bash", &status.display().to_string()];
        let output = group(folder.path(), "stamp.sh", &command);
        let is_stamped = String::from_utf8_lossy(&output.stdout) == "== test-mpich: stamped\n";
        (output.status.code(), is_stamped)
    };
    assert_eq!(run("3"), (Some(3), false), "no stamps");
    assert_eq!(run("0"), (Some(0), false), "it was not green");
    assert_eq!(run("3"), (Some(0), true));
    let text = std::fs::read_to_string(&stamps).expect("a green run wrote it");
    let stale = format!("test-mpich = \"{}\"", "0".repeat(64));
    for damaged in ["", "test-mpich = \n\u{0}[[", &stale] {
        std::fs::write(&stamps, format!("{damaged}\n")).expect("it can be written");
        assert_eq!(run("3"), (Some(3), false), "{damaged}");
        assert_eq!(run("0"), (Some(0), false), "{damaged}");
        assert_eq!(std::fs::read_to_string(&stamps).expect("it is there"), text, "{damaged}");
    }
}

const LOG: &str = "\
== test-unit: at most 15 s
     Running unittests src/lib.rs (target/testing/deps/trainer-0a1b2c)
test a::quick ... ok <0.001s>
test a::slow - should panic ... ok <12.500s>
test a::never ... ignored, why
== test-unit: 14 s of 15 s, status 0
== test-mpich: stamped
== test-doc: at most 10 s
== test-doc: FAILED, stopped after its budget of 10 s
";

#[test]
fn times_of_groups_and_tests_are_listed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let log = folder.path().join("log");
    std::fs::write(&log, LOG).expect("it can be written");
    let mut bash = script("test-times.sh", &[&log.display().to_string()]);
    let table = folder.path().join("times.tsv");
    let output = bash.env("TABLE", &table).output().expect("bash runs");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    for line in ["test-unit: 14 s of 15 s", "test-mpich: stamped", "test-doc: 10 s, stopped"] {
        assert!(printed.lines().any(|found| found == line), "{line}: {printed}");
    }
    let expected = "seconds\tgroup/binary\ttest\n12.500\ttest-unit/trainer\ta::slow\n\
                    0.001\ttest-unit/trainer\ta::quick\n";
    assert_eq!(std::fs::read_to_string(&table).expect("a table"), expected);
}
