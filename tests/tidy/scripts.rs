//! Failures of the scripts that judge tests: they fail when they should.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};

fn script(name: &str, arguments: &[&str]) -> Output {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts");
    Command::new("bash").arg(scripts.join(name)).args(arguments).output().expect("bash runs")
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
    let output = script("summarize-tests.sh", &[&path(&log), &path(&skips)]);
    let text = String::from_utf8_lossy(&output.stdout);
    (output.status.code(), text.lines().last().unwrap_or("").to_owned())
}

const PASSED: &str = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured\n\
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

#[test]
fn a_group_returns_its_status_and_is_stopped_after_its_budget() {
    assert_eq!(script("budget.sh", &["group", "60", "true"]).status.code(), Some(0));
    assert_eq!(
        script("budget.sh", &["group", "60", "bash", "-c", "exit 3"]).status.code(),
        Some(3)
    );
    let late = script("budget.sh", &["group", "0.1", "sleep", "60"]);
    assert_eq!(late.status.code(), Some(124));
    assert!(String::from_utf8_lossy(&late.stdout).contains("FAILED"));
}
