//! `yardstick devices` on machines that are planted in folders: without a driver, with a broken
//! one, with an old one, and with one device.
//!
//! The libraries here are built by cc from a few lines of C, and compute nothing.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use support::{Finished, finish, yardstick};

/// Runs a command with libraries from this folder only.
#[track_caller]
fn only_with(folder: &Path, arguments: &[&str]) -> Finished {
    let mut command = yardstick(arguments);
    command.env("YARDSTICK_CUDA_PATH", folder);
    finish(command)
}

/// Returns the CUDA part of `yardstick devices --json`.
#[track_caller]
fn cuda_with(folder: &Path) -> Value {
    let stdout = only_with(folder, &["devices", "--json"]).expect(0).stdout;
    let mut found: Value = serde_json::from_str(&stdout).unwrap();
    found["cuda"].take()
}

/// Returns the reason why CUDA cannot be used.
#[track_caller]
fn unusable_with(folder: &Path) -> String {
    let cuda = cuda_with(folder);
    assert_eq!(cuda["devices"], serde_json::json!([]));
    cuda["unusable"].as_str().expect("it cannot be used").to_owned()
}

/// Builds a library; a function without text of its own does nothing and returns 0.
fn build(file: &Path, functions: &[&str], text: &str) {
    let others = functions.iter().filter(|name| !text.contains(&format!("int {name}(")));
    let others: String = others.map(|name| format!("int {name}(void) {{ return 0; }}\n")).collect();
    let source = file.with_extension("c");
    fs::write(&source, text.to_owned() + &others).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"]).arg(file).arg(source);
    cc.arg(format!("-Wl,-soname,{}", file.file_name().unwrap().to_str().unwrap()));
    assert!(cc.status().unwrap().success());
}

/// The tables of the libraries' functions.
const DRIVER_TABLE: &str = include_str!("../../device/src/cuda/driver.rs");
const NVRTC_TABLE: &str = include_str!("../../device/src/cuda/nvrtc.rs");
const CUBLASLT_TABLE: &str = include_str!("../../device/src/cuda/cublaslt.rs");

/// Every function of a table: those whose names have an upper case letter.
fn functions(table: &'static str) -> Vec<&'static str> {
    let lines = table.lines().filter_map(|line| line.trim().strip_prefix("fn "));
    let names = lines.filter_map(|line| Some(line.split_once('(')?.0));
    let names: Vec<_> = names.filter(|name| name.contains(char::is_uppercase)).collect();
    assert!(names.len() > 9, "{names:?}");
    names
}

/// Puts a folder in front of those of the dynamic loader, which may need them for MPI.
fn search_first(command: &mut Command, folder: &Path) {
    let others = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let folders = std::iter::once(folder.to_owned()).chain(std::env::split_paths(&others));
    command.env("LD_LIBRARY_PATH", std::env::join_paths(folders).unwrap());
}

/// A driver for CUDA 12.4 with one device.
const ONE_DEVICE: &str = r#"
#include <string.h>
int cuDriverGetVersion(int *version) { *version = 12040; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char *name, int length, int device) {
    strncpy(name, "Planted GPU", length);
    return 0;
}
int cuDeviceTotalMem_v2(unsigned long *bytes, int device) { *bytes = 3ul << 30; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 75 ? 8 : attribute == 76 ? 9 : attribute == 16 ? 142 : -1;
    return 0;
}
int cuDeviceGetPCIBusId(char *id, int length, int device) {
    strncpy(id, "0000:3B:00.0", length);
    return 0;
}
"#;

const NVRTC: &str = "int nvrtcVersion(int *a, int *b) { *a = 12; *b = 4; return 0; }
int nvrtcGetNumSupportedArchs(int *count) { *count = 1; return 0; }
int nvrtcGetSupportedArchs(int *list) { *list = 89; return 0; }
";
const CUBLASLT: &str = "unsigned long cublasLtGetVersion(void) { return 120402; }\n";

/// A folder with a driver that cannot be loaded, so that none of this machine's is looked for.
fn without_driver() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("libcuda.so.1"), "").unwrap();
    folder
}

#[test]
fn without_a_driver_the_processor_is_listed_with_a_reason() {
    let folder = without_driver();
    let text = only_with(folder.path(), &["devices"]).expect(0).stdout;
    let processor = text.lines().find(|line| line.trim_start().starts_with("cpu ")).unwrap();
    assert!(processor.contains("matmul by"), "{text}");
    assert!(text.contains("CUDA cannot be used: no CUDA driver"), "{text}");
    let reason = unusable_with(folder.path());
    let driver = folder.path().join("libcuda.so.1").display().to_string();
    assert!(reason.contains(&format!("{driver} cannot be loaded")), "{reason}");
    assert!(reason.contains("file too short"), "{reason}");
}

#[test]
fn a_run_on_a_device_that_is_missing_ends_with_3() {
    let folder = without_driver();
    let out = folder.path().join("run").display().to_string();
    let refused = only_with(folder.path(), &["train", "--device", "cuda", "--out", &out]);
    refused.expect(3).expect_stderr(&["no CUDA driver", "YARDSTICK_CUDA_PATH"]);
}

#[test]
fn a_driver_without_a_function_is_told_with_its_version() {
    let folder = tempfile::tempdir().unwrap();
    let driver = folder.path().join("libcuda.so.1");
    let listed = functions(DRIVER_TABLE);
    let functions: Vec<_> = listed.into_iter().filter(|name| *name != "cuMemHostAlloc").collect();
    build(&driver, &functions, ONE_DEVICE);
    let reason = unusable_with(folder.path());
    for part in ["cuMemHostAlloc", "version 12.4", &driver.display().to_string()] {
        assert!(reason.contains(part), "{part}: {reason}");
    }
}

/// The old driver lacks functions as well, but its user cannot act on that.
#[test]
fn an_old_driver_is_told_with_the_version_that_is_needed() {
    let folder = tempfile::tempdir().unwrap();
    let text = "int cuDriverGetVersion(int *version) { *version = 11080; return 0; }\n";
    build(&folder.path().join("libcuda.so.1"), &["cuInit"], text);
    let reason = unusable_with(folder.path());
    assert!(reason.contains("CUDA 12.0 or newer, found one for CUDA 11.8"), "{reason}");
}

#[test]
fn a_driver_without_devices_is_told_as_such() {
    let folder = tempfile::tempdir().unwrap();
    let initialization = "int cuInit(unsigned flags) { return 100; }\n"; // NO_DEVICE
    let count = "int cuDeviceGetCount(int *count) { *count = 0; return 0; }\n";
    for text in [initialization, count] {
        let version = "int cuDriverGetVersion(int *version) { *version = 13000; return 0; }\n";
        build(
            &folder.path().join("libcuda.so.1"),
            &functions(DRIVER_TABLE),
            &format!("{text}{version}"),
        );
        let reason = unusable_with(folder.path());
        assert!(reason.contains("sees no device"), "{reason}");
    }
}

/// Creates a machine with everything that a run on one device needs.
fn complete_machine() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    build(&path("libcuda.so.1"), &functions(DRIVER_TABLE), ONE_DEVICE);
    build(&path("libnvrtc.so.12"), &functions(NVRTC_TABLE), NVRTC);
    build(&path("libcublasLt.so.12"), &functions(CUBLASLT_TABLE), CUBLASLT);
    folder
}

#[test]
fn published_peaks_are_listed() {
    let text = finish(yardstick(&["devices", "--peaks"])).expect(0).stdout;
    let row = text.lines().find(|line| line.contains("H100 80GB HBM3")).expect("it is listed");
    assert!(row.split_whitespace().rev().take(4).eq(["67.0", "1979.0", "989.5", "80"]), "{text}");
    let json = finish(yardstick(&["devices", "--peaks", "--json"])).expect(0).stdout;
    let peaks: Value = serde_json::from_str(&json).unwrap();
    let peak = peaks.as_array().unwrap().iter().find(|it| it["name"] == "NVIDIA A10").unwrap();
    assert_eq!((&peak["bf16_teraflops"], &peak["fp8_teraflops"]), (&125.0.into(), &Value::Null));
}

/// A container without one of the driver's device files, for one.
#[test]
fn a_driver_that_does_not_start_ends_a_run_with_3() {
    let unknown = "{ return 999; }\n";
    let meaning = "int cuGetErrorString(int e, char **s) { *s = \"unknown error\"; return 0; }\n";
    for (function, doing) in [
        ("cuInit", "initializing the CUDA driver failed"),
        ("cuDevicePrimaryCtxRetain", "opening the device failed"),
    ] {
        let folder = complete_machine();
        let driver = folder.path().join("libcuda.so.1");
        fs::remove_file(&driver).unwrap();
        let text = format!("{ONE_DEVICE}{meaning}int {function}(void) {unknown}");
        build(&driver, &functions(DRIVER_TABLE), &text);
        let out = folder.path().join("run").display().to_string();
        let refused = only_with(folder.path(), &["train", "--device", "cuda", "--out", &out]);
        let refused = refused.expect(3).expect_stderr(&[doing, "check `nvidia-smi`"]);
        assert!(!refused.stderr.contains("panicked"), "{}", refused.stderr);
    }
}

#[test]
fn devices_and_libraries_are_listed() {
    let folder = complete_machine();
    let cuda = cuda_with(folder.path());
    assert_eq!(cuda["unusable"], Value::Null);
    assert_eq!(
        cuda["devices"],
        serde_json::json!([{
            "ordinal": 0,
            "name": "Planted GPU",
            "memory_bytes": 3_u64 << 30,
            "compute_capability": { "major": 8, "minor": 9 },
            "multiprocessors": 142,
            "pci_bus_id": "0000:3b:00.0",
        }])
    );
    let versions = ["cuda_driver", "nvrtc", "cublaslt"].map(|name| &cuda["versions"][name]);
    assert_eq!(versions, ["12.4", "12.4", "12.4.2"]);
    let nvrtc = folder.path().join("libnvrtc.so.12").display().to_string();
    assert_eq!(cuda["libraries"][1]["path"], nvrtc);

    let text = only_with(folder.path(), &["devices"]).expect(0).stdout;
    let device = text.lines().find(|line| line.contains("cuda:0")).unwrap();
    let columns: Vec<_> = device.split_whitespace().collect();
    let expected =
        ["cuda:0", "Planted", "GPU", "3.0", "8.9", "0000:3b:00.0", "142", "multiprocessors"];
    assert_eq!(columns, expected);
    assert!(!text.contains("cannot be used"), "{text}");
    assert!(text.contains("Not needed by every run: NCCL is missing"), "{text}");
}

#[test]
fn what_the_dynamic_loader_finds_needs_no_variable() {
    let folder = complete_machine();
    symlink("libcuda.so.1", folder.path().join("libcuda.so")).unwrap();
    let mut command = yardstick(&["devices", "--json"]);
    command.env_remove("YARDSTICK_CUDA_PATH");
    search_first(&mut command, folder.path());
    let found: Value = serde_json::from_str(&finish(command).expect(0).stdout).unwrap();
    let driver = &found["cuda"]["libraries"][0];
    assert_eq!(driver["path"], folder.path().join("libcuda.so.1").display().to_string());
}

/// A toolkit beside wheels: the folders of the variable decide, whatever names the dynamic loader
/// finds first.
#[test]
fn folders_of_the_variable_come_before_what_the_dynamic_loader_finds() {
    let [chosen, other] = [complete_machine(), complete_machine()];
    symlink("libnvrtc.so.12", other.path().join("libnvrtc.so")).unwrap();
    let mut command = yardstick(&["devices", "--json"]);
    command.env("YARDSTICK_CUDA_PATH", chosen.path());
    search_first(&mut command, other.path());
    let found: Value = serde_json::from_str(&finish(command).expect(0).stdout).unwrap();
    assert_eq!(found["cuda"]["unusable"], Value::Null);
    for library in found["cuda"]["libraries"].as_array().unwrap() {
        let path = library["path"].as_str().map(Path::new);
        assert!(path.is_none_or(|path| path.parent() == Some(chosen.path())), "{library}");
    }
}

/// Wheels have no driver.
#[test]
fn folders_without_a_driver_leave_the_driver_to_the_dynamic_loader() {
    let [wheels, machine] = [complete_machine(), complete_machine()];
    fs::remove_file(wheels.path().join("libcuda.so.1")).unwrap();
    let mut command = yardstick(&["devices", "--json"]);
    command.env("YARDSTICK_CUDA_PATH", wheels.path());
    search_first(&mut command, machine.path());
    let found: Value = serde_json::from_str(&finish(command).expect(0).stdout).unwrap();
    assert_eq!(found["cuda"]["unusable"], Value::Null);
    let path = |library: usize| found["cuda"]["libraries"][library]["path"].clone();
    let file = |folder: &tempfile::TempDir, name| folder.path().join(name).display().to_string();
    assert_eq!(path(0), file(&machine, "libcuda.so.1"));
    assert_eq!(path(1), file(&wheels, "libnvrtc.so.12"));
    assert_eq!(path(2), file(&wheels, "libcublasLt.so.12"));
}

/// An old driver and libraries that lack a function, each in front of a good one.
#[test]
fn copies_that_cannot_be_used_are_passed_over_and_listed() {
    let [good, bad] = [complete_machine(), tempfile::tempdir().unwrap()];
    let path = |name: &str| bad.path().join(name);
    let old = "int cuDriverGetVersion(int *version) { *version = 11080; return 0; }\n";
    build(&path("libcuda.so.1"), &["cuInit"], old);
    build(&path("libnvrtc.so.12"), &["nvrtcCreateProgram"], NVRTC);
    build(&path("libcublasLt.so.12"), &["cublasLtCreate"], CUBLASLT);
    let folders = std::env::join_paths([bad.path(), good.path()]).unwrap();
    let cuda = cuda_with(Path::new(&folders));
    assert_eq!(cuda["unusable"], Value::Null);
    let said = [
        "libcuda.so.1 is version 11.8, expected 12.0 or newer",
        "libnvrtc.so.12 lacks the function nvrtcCompileProgram (version 12.4)",
        "libcublasLt.so.12 lacks the function cublasLtDestroy (version 12.4.2)",
    ];
    for (library, said) in cuda["libraries"].as_array().unwrap().iter().zip(said) {
        let used = Path::new(library["path"].as_str().unwrap());
        assert_eq!(used.parent(), Some(good.path()), "{library}");
        assert_eq!(library["passed_over"][0], path(said).display().to_string(), "{library}");
    }
    let text = only_with(Path::new(&folders), &["devices"]).expect(0).stdout;
    assert_eq!(text.matches("Passed over: ").count(), 3, "{text}");
}
