//! `bench/gpu_vs_torch.py` in a folder as `scripts/gpu-check.sh --pack` makes it: the real binary
//! trains a tiny model on the CPU, and a stand-in for PyTorch reports at once how long it took.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::gpu_check::write_program;

/// A second a step: far slower than ours.
const TORCH: &str = "print('{\"seconds\": 20.0}')\n";

/// Outcome of a benchmark.
#[derive(Debug)]
struct Finished {
    status: Option<i32>,
    stdout: String,
    stderr: String,
}

/// A benchmark of one row with a program of these lines.
fn benchmark(yardstick: &str, flags: &[&str]) -> Finished {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/gpu_vs_torch.py");
    fs::copy(script, folder.path().join("gpu_vs_torch.py")).expect("it is there");
    fs::write(folder.path().join("torch_gpt.py"), TORCH).expect("it can be written");
    fs::create_dir(folder.path().join("lib")).expect("it can be created");
    write_program(&folder.path().join("yardstick"), yardstick);
    let mut python = Command::new("python3");
    python.arg(folder.path().join("gpu_vs_torch.py"));
    python.args(["--tiny", "--device", "cpu", "--row", "124M"]).args(flags);
    // It would print each line at once in any case.
    python.env_remove("PYTHONUNBUFFERED");
    let output = python.output().expect("python3 runs");
    Finished {
        status: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Runs a benchmark with the micro-batches given, in one round.
fn one_round(yardstick: &str) -> Finished {
    benchmark(yardstick, &["--rounds", "1", "--torch-micro", "4", "--our-micro", "4"])
}

/// Returns the script of a program that knows its version and trains as the lines say.
fn trains(lines: &str) -> String {
    format!("[ \"$1\" = --version ] && echo yardstick 0 && exit\n{lines}")
}

#[test]
fn the_binary_gets_the_libraries_beside_it_and_each_round_is_told() {
    let real = env!("CARGO_BIN_EXE_yardstick");
    let starts = format!(
        "case $LD_LIBRARY_PATH in \"$(dirname \"$0\")/lib\"*) exec {real} \"$@\" ;; esac\n\
         echo 'error while loading shared libraries' >&2; exit 127"
    );
    let found = one_round(&starts);
    assert_eq!(found.status, Some(0), "{found:?}");
    for line in ["PyTorch   round 1: ", "yardstick round 1: ", "gpu_vs_torch: "] {
        assert!(found.stdout.lines().any(|printed| printed.starts_with(line)), "{found:?}");
    }
}

#[test]
fn a_binary_that_does_not_start_is_told() {
    let found = one_round("echo 'error while loading shared libraries' >&2; exit 127");
    assert_eq!(found.status, Some(1), "{found:?}");
    assert!(found.stderr.contains("yardstick does not start: "), "{found:?}");
    assert!(found.stderr.contains("--version ended with 127"), "{found:?}");
    assert!(found.stderr.contains("error while loading shared libraries"), "{found:?}");
}

#[test]
fn rounds_that_are_done_survive_a_kill() {
    let found = one_round(&trains("kill -9 $PPID"));
    assert_eq!(found.status, None, "{found:?}");
    assert!(found.stdout.contains("PyTorch   round 1: "), "{found:?}");
}

#[test]
fn only_too_little_memory_means_a_smaller_micro_batch() {
    let says = |text: &str| trains(&format!("echo \"error: {text}\" >&2; exit 3"));
    let search = ["--rounds", "1", "--torch-micro", "4"];
    let found = benchmark(&says("the device's memory does not suffice: 9 GiB"), &search);
    assert!(found.stdout.contains("yardstick micro-batch 2: does not fit"), "{found:?}");
    let found = benchmark(&says("no CUDA driver"), &search);
    assert_eq!(found.status, Some(1), "{found:?}");
    assert!(!found.stdout.contains("does not fit"), "{found:?}");
    assert!(found.stderr.contains("no CUDA driver"), "{found:?}");
}
