//! Every CUDA kernel compiles with NVIDIA's own compiler for every architecture, without spills and
//! within its budget of registers and shared memory. Needs no GPU.
//!
//! A process can open one NVRTC only. So a test starts this executable again with one NVRTC, to run
//! the test `gate_of_one_nvrtc`.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "helpers of tests that print")]

mod budgets;
mod compiler;
mod gate;
mod ptxas;
mod sass;
mod sources;

use std::path::PathBuf;
use std::process::Command;

/// Set in a process of this executable that compiles.
const GATE: &str = "YARDSTICK_TEST_NVRTC_GATE";

/// Body of a process with one NVRTC; not a test by itself.
#[test]
fn gate_of_one_nvrtc() {
    if std::env::var_os(GATE).is_some() {
        compiler::says_what_is_wrong();
        compiler::is_asked_once();
        compiler::complains_of_a_missing_fence();
        gate::run();
    }
}

#[test]
fn every_kernel_is_within_its_budget_with_nvrtc_12() {
    compile_with("cuda_nvrtc", "12.");
}

#[test]
fn every_kernel_is_within_its_budget_with_nvrtc_13() {
    compile_with("cu13", "13.");
}

/// Compiles everything with the NVRTC of a wheel, which is of this version.
#[track_caller]
fn compile_with(component: &str, version: &str) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "gate_of_one_nvrtc", "--nocapture"]);
    command.env(GATE, "1").env("YARDSTICK_CUDA_PATH", wheel_folder(component).join("lib"));
    let cache = tempfile::tempdir().unwrap();
    command.env("YARDSTICK_CACHE_DIR", cache.path());
    let output = command.output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    // Indented, so that it is not read as the result of this process.
    out.lines().for_each(|line| println!("    {line}"));
    assert!(output.status.success(), "{err}");
    assert!(out.contains(&format!("NVRTC {version}")), "another version than {version}");
    assert!(out.contains("1 passed"), "the gate did not run");
}

/// A wheel's folder in the virtual environment that `scripts/setup.sh test` makes.
#[track_caller]
pub(crate) fn wheel_folder(component: &str) -> PathBuf {
    let libraries = sources::top().join(".venv-nvrtc/lib");
    let pythons = std::fs::read_dir(&libraries).into_iter().flatten().flatten();
    let folder = pythons
        .map(|python| python.path().join("site-packages/nvidia").join(component))
        .find(|folder| folder.is_dir());
    folder.unwrap_or_else(|| {
        panic!("no nvidia/{component} in {}: run scripts/setup.sh test", libraries.display())
    })
}
