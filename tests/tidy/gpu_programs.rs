//! Existence of all that `scripts/gpu-check.sh` uses: programs, tests, and texts of yardstick.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Targets that need a CUDA device and are not for a GPU: the first sets up devices of its own, and
/// runs the binary where cargo built it; the second counts what the program itself does, on any
/// device. The last needs a cluster instead.
const NOT_FOR_A_GPU: [&str; 3] = ["cuda", "cuda_allocations", "kubernetes"];

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn text(path: &str) -> String {
    fs::read_to_string(top().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The words of an array of gpu-programs.sh or of another script.
fn array(script: &str, name: &str) -> Vec<String> {
    let print = format!(". \"$1\"; printf '%s\\n' \"${{{name}[@]}}\"");
    let mut bash = Command::new("bash");
    bash.args(["-euc", &print, "bash"]).arg(top().join("scripts").join(script));
    let output = bash.output().expect("bash runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

/// A target of the workspace.
#[derive(Debug, PartialEq)]
struct Target {
    name: String,
    /// The flag that builds it.
    flag: String,
    /// Set if a plain `cargo test` runs it.
    is_tested: bool,
}

fn targets() -> Vec<Target> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]).current_dir(top());
    let output = cargo.output().expect("cargo runs");
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    let targets = packages.iter().flat_map(|package| package["targets"].as_array().expect("some"));
    targets
        .map(|target| Target {
            name: target["name"].as_str().expect("a name").to_owned(),
            flag: format!("--{}", target["kind"][0].as_str().expect("a kind")),
            is_tested: target["test"].as_bool().expect("whether it is tested"),
        })
        .collect()
}

/// Names of the targets that cargo builds by flags, as in `--bin yardstick --lib`; of all libraries
/// for `--lib`.
fn built(flags: &[String], targets: &[Target]) -> Vec<String> {
    let mut names = Vec::new();
    let mut flags = flags.iter();
    while let Some(flag) = flags.next() {
        let wanted = (flag != "--lib").then(|| flags.next().expect("a name after the flag"));
        let found = targets.iter().filter(|target| {
            target.flag == *flag && wanted.is_none_or(|wanted| *wanted == target.name)
        });
        let before = names.len();
        names.extend(found.map(|target| target.name.clone()));
        assert!(names.len() > before, "the workspace has no target {flag} {wanted:?}");
    }
    names
}

#[test]
fn every_program_is_a_target_that_is_built() {
    let targets = targets();
    let mut built_names = built(&array("gpu-programs.sh", "BUILD_TARGETS"), &targets);
    built_names.extend(built(&array("gpu-programs.sh", "TEST_TARGETS"), &targets));
    for program in array("gpu-programs.sh", "PROGRAMS") {
        assert!(built_names.contains(&program), "{program} is not built: {built_names:?}");
    }
}

#[test]
fn every_test_that_needs_a_device_is_packed_or_says_why_not() {
    let programs = array("gpu-programs.sh", "PROGRAMS");
    let targets = targets();
    let on_devices = targets.iter().filter(|target| target.flag == "--test" && !target.is_tested);
    let mut left_out = Vec::new();
    for Target { name, .. } in on_devices {
        if !programs.contains(name) {
            left_out.push(name.as_str());
        }
    }
    left_out.sort_unstable();
    assert_eq!(left_out, NOT_FOR_A_GPU);
}

#[test]
fn every_test_that_a_step_names_exists() {
    let attention = text("models/src/ops/cuda_tests/attention.rs");
    for test in array("gpu-steps.sh", "FLASH_TESTS") {
        assert!(attention.contains(&format!("fn {test}()")), "{test}");
        assert!(test.starts_with("flash_with"), "{test} is not checked by the sanitizer");
    }
    let steps = text("scripts/gpu-steps.sh");
    assert!(steps.contains("cuda_tests::attention::flash_with"));
    assert!(steps.contains("losses_and_every_gradient"));
    assert!(text("models/tests/cuda_engine.rs").contains("fn losses_and_every_gradient"));
}

/// Texts that distinguish too little memory from other reasons for exit code 3.
#[test]
fn both_scripts_know_what_yardstick_says_without_memory() {
    let sources = text("trainer/src/plan/mod.rs") + &text("device/src/cuda/error.rs");
    let benchmark = text("bench/gpu_vs_torch.py");
    for said in array("gpu-runs.sh", "NO_MEMORY") {
        assert!(sources.contains(&said), "yardstick does not say: {said}");
        assert!(benchmark.contains(&format!("\"{said}\"")), "gpu_vs_torch.py lacks: {said}");
    }
}
