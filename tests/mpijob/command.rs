//! Commands that set up what tests need, and must succeed.

use std::process::Command;

/// Runs a command to its end.
#[track_caller]
pub(crate) fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
}
