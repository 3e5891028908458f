//! Existence of what `scripts/gpu-check.sh` uses: tests, and texts of yardstick. A machine with a
//! GPU would be the first to notice.

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

/// The words of an array of a script.
fn array(script: &str, name: &str) -> Vec<String> {
    let print = format!(". \"$1\"; printf '%s\\n' \"${{{name}[@]}}\"");
    let mut bash = Command::new("bash");
    bash.args(["-euc", &print, "bash"]).arg(top().join("scripts").join(script));
    let output = bash.output().expect("bash runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

/// Names of the tests of the workspace that a plain `cargo test` does not run.
fn tests_on_request() -> Vec<String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]).current_dir(top());
    let output = cargo.output().expect("cargo runs");
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    let targets = packages.iter().flat_map(|package| package["targets"].as_array().expect("some"));
    let on_request = targets.filter(|it| it["kind"][0] == "test" && it["test"] == false);
    on_request.map(|target| target["name"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn every_test_that_needs_a_device_is_packed_or_says_why_not() {
    let programs = array("gpu-programs.sh", "PROGRAMS");
    let mut left_out = tests_on_request();
    left_out.retain(|name| !programs.contains(name));
    left_out.sort_unstable();
    assert_eq!(left_out, NOT_FOR_A_GPU);
}

#[test]
fn every_test_that_a_step_names_exists() {
    let attention = text("models/src/ops/cuda_tests/attention.rs");
    for test in array("gpu-steps.sh", "TENSOR_TESTS") {
        assert!(attention.contains(&format!("fn {test}()")), "{test}");
        let (kind, _) = test.split_once("_with_").expect("a kind of attention");
        let sanitized = format!("sanitize_attention racecheck {kind}\n");
        assert!(text("scripts/gpu-plan.txt").contains(&sanitized), "{test}: no sanitizer");
    }
    let steps = text("scripts/gpu-steps.sh");
    assert!(steps.contains("cuda_tests::attention::$2_with"));
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

/// A profile sums kernels by their names.
#[test]
fn every_kernel_that_a_profile_sums_exists() {
    let find =
        "find models/src/ops -name '*.cu' -exec sed -n 's/^EXPORT_KERNEL.*(\\(.*\\)).*/\\1/p' {} +";
    let compare = "import re, sys; sys.path.insert(0, 'bench'); from ncu_kernels import OURS\n\
                   names = sys.stdin.read().split()\n\
                   found = lambda pattern: any(re.match(pattern, name) for name in names)\n\
                   lacking = [pattern for pattern in OURS.values() if not found(pattern)]\n\
                   sys.exit(f'no kernel is one of {lacking}' if lacking else 0)";
    let mut bash = Command::new("bash");
    bash.args(["-c", &format!("{find} | python3 -B -c \"$0\""), compare]).current_dir(top());
    let output = bash.output().expect("bash runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
