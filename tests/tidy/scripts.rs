//! Failures of the scripts that judge tests and benchmarks: they fail when they should.

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

#[test]
fn setup_refuses_an_unknown_level() {
    let output = script("setup.sh", &["everything"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).contains("everything"));
}

#[test]
fn targets_install_what_they_need_before_anything_else() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (target, level) in [
        ("build", "build"),
        ("demo", "build"),
        ("bench", "build"),
        ("test", "test"),
        ("lint", "lint"),
    ] {
        let mut make = Command::new("make");
        make.args(["--dry-run", "--no-print-directory", target]).current_dir(&top);
        let output = make.env_remove("MAKEFLAGS").output().expect("make runs");
        let text = String::from_utf8_lossy(&output.stdout);
        let first = text.lines().next().unwrap_or("");
        assert_eq!(first, format!("scripts/setup.sh {level}"), "{target}");
    }
}

/// Exit status and output of a function of scripts/bench.sh, with measurements 3, 10, 4 and 1.
fn judged(call: &str) -> (Option<i32>, String) {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/bench.sh");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let keep = "for figure in 3 10 4 1; do add name \"$figure\"; done";
    let mut command = Command::new("bash");
    command.args(["-euc", &format!(". \"$1\"; folder=$2; {keep}; {call}"), "bash"]);
    let output = command.arg(scripts).arg(folder.path()).output().expect("bash runs");
    (output.status.code(), String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[test]
fn a_benchmark_is_judged_by_its_figure_before_rounding() {
    let shown = "bench: 1.10 (goal 1.1)".to_owned();
    assert_eq!(judged("at_least bench 1.1004 1.1"), (Some(0), shown.clone()));
    assert_eq!(judged("at_least bench 1.0996 1.1"), (Some(1), shown));
    for (seconds, code) in [("0.9", 0), ("1.1", 1), ("0", 1)] {
        let line = format!("bench: {seconds} (goal 1)");
        assert_eq!(judged(&format!("at_most bench {seconds} 1")), (Some(code), line));
    }
    for (call, answer) in [("median_of name", "3.5"), ("min_of name", "1"), ("ratio 1 3", "0.3333")]
    {
        assert_eq!(judged(call), (Some(0), answer.to_owned()), "{call}");
    }
    assert_eq!(judged("quietly /dev/null false"), (Some(1), String::new()));
    for nothing in ["inf", "nan", "''"] {
        assert_eq!(judged(&format!("at_least bench {nothing} 1.1")).0, Some(1), "{nothing}");
        assert_eq!(judged(&format!("ratio 1 {nothing}")).0, Some(1), "{nothing}");
    }
}
