//! Answers of the libraries that no machine here gives: refused epilogues and products, several
//! copies of a library. Training uses what is left, and the record says how; or it ends with one
//! sentence and exit code 3.
//!
//! Needs the emulated device: `make test-cuda-emulated`.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use support::{Finished, Folder, finish, yardstick};

use crate::emulated::{SMALL, WIDE_STEPS, bf16_run_agrees, train};

const SEARCHED: &str = "YARDSTICK_CUDA_PATH";

fn short_run(folder: &Folder, flags: &[&str]) -> Command {
    let start = ["train", "--device", "cuda", "--steps", "1", "--out", &folder.text()];
    yardstick(&[&start[..], SMALL, flags].concat())
}

/// The run ends with exit code 3 and one sentence.
#[track_caller]
fn refused(command: Command, said: &[&str]) {
    let finished = finish(command).expect(3).expect_stderr(said);
    assert!(!finished.stderr.contains("panicked"), "{}", finished.stderr);
}

/// Layers whose forward or backward has the epilogue, and what computes it instead.
struct Refused {
    epilogues: &'static str,
    layers: &'static [&'static str],
    said: &'static str,
}

#[test]
fn products_whose_epilogues_are_refused_have_the_losses_of_the_processor() {
    let exact = Folder::new();
    let heads = ["--set", "model.heads=2"];
    train(&exact, "smoke", &[&heads[..], &["--steps", WIDE_STEPS]].concat()).expect(0);
    let cases = [
        Refused {
            epilogues: "GELU_AUX_BIAS",
            layers: &["mlp_up"],
            said: "a pass of its own computes GELU",
        },
        Refused {
            epilogues: "DGELU",
            layers: &["mlp_down"],
            said: "a pass of its own computes GELU",
        },
        Refused {
            epilogues: "BIAS",
            layers: &["attn_qkv", "attn_out", "mlp_down"],
            said: "a pass of its own computes the bias",
        },
        Refused {
            epilogues: "BIAS,GELU_AUX_BIAS,DGELU",
            layers: &["mlp_up", "mlp_down"],
            said: "passes of their own compute bias and GELU",
        },
    ];
    for Refused { epilogues, layers, said } in cases {
        let refuse = |command: &mut Command| {
            command.env("EMULATED_CUDA_REFUSE_EPILOGUES", epilogues);
        };
        let record = bf16_run_agrees(&exact, &refuse, &heads).record();
        let warnings: Vec<_> = record["anomalies"].as_array().unwrap().iter().collect();
        let of_layers: Vec<_> = warnings
            .iter()
            .filter_map(|warning| warning["text"].as_str()?.split_once(&format!(": {said}")))
            .map(|(layer, _)| layer)
            .collect();
        assert_eq!(of_layers, layers, "{epilogues}: {warnings:?}");
    }
}

#[test]
fn a_product_without_an_algorithm_is_one_sentence_and_exit_code_3() {
    let mut command = short_run(&Folder::new(), &[]);
    command.env("EMULATED_CUDA_REFUSE_PRODUCT", "512x32x128");
    let said =
        ["cuBLASLt 12.9.0 has no plan for a product of m = 512, n = 32, k = 128", "CUDA_R_32F"];
    refused(command, &said);

    let mut command = short_run(&Folder::new(), &[]);
    command.env("EMULATED_CUDA_REFUSE_START", "512x32x128");
    let said = [
        "cuBLASLt 12.9.0 has no plan for a product of m = 512, n = 32, k = 128",
        "starting it: status 15",
        "install another version of cuBLASLt",
    ];
    refused(command, &said);
}

/// The emulated device's libraries.
fn emulated() -> PathBuf {
    PathBuf::from(std::env::var_os(SEARCHED).expect("the emulated device"))
}

/// A folder with another copy of each library but the driver, none of which can be used: they lack
/// functions.
fn unusable_copies() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let source = path("source.c");
    fs::write(&source, "int nvrtcVersion(int *a, int *b) { *a = 12; *b = 1; return 0; }\n")
        .unwrap();
    for library in ["libnvrtc.so.12", "libcublasLt.so.12", "libnccl.so.2"] {
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-o"]).arg(path(library)).arg(&source);
        cc.arg(format!("-Wl,-soname,{library}"));
        assert!(cc.status().unwrap().success());
    }
    folder
}

/// Files of what a run on one device uses, in the order of the record.
const FILES: [&str; 3] = ["libcuda.so.1", "libnvrtc.so.12", "libcublasLt.so.12"];

/// A run with every library but NCCL used the emulated device's.
#[track_caller]
fn assert_emulated_were_used(finished: Finished, folder: &Folder) {
    finished.expect(0);
    let cuda = folder.record()["environment"]["cuda"].clone();
    let files = FILES.map(|name| emulated().join(name).display().to_string());
    assert_eq!(cuda["files"], serde_json::json!(files));
}

#[test]
fn copies_that_cannot_be_used_are_passed_over() {
    let unusable = unusable_copies();
    let folders = std::env::join_paths([unusable.path(), &emulated()]).unwrap();
    let folder = Folder::new();
    let mut command = short_run(&folder, &[]);
    command.env(SEARCHED, &folders);
    assert_emulated_were_used(finish(command), &folder);

    let mut command = yardstick(&["devices"]);
    command.env(SEARCHED, &folders);
    let listed = finish(command).expect(0).stdout;
    for said in [
        "libnvrtc.so.12 lacks the function nvrtcCompileProgram (version 12.1)",
        "libcublasLt.so.12 lacks the function cublasLtCreate (version unknown)",
        "libnccl.so.2 lacks the function ncclAllGather (version unknown)",
    ] {
        let said = format!("Passed over: {}/{said}.", unusable.path().display());
        assert!(listed.contains(&said), "{said}: {listed}");
    }
    assert!(!listed.contains("cannot be used"), "{listed}");
}

/// A copy of the driver, and the setting with which its `cuInit` fails.
fn driver_that_fails(status: u32) -> (tempfile::TempDir, (&'static str, String)) {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(emulated().join("libcuda.so.1"), folder.path().join("libcuda.so.1")).unwrap();
    let setting = format!("{}:{status}", folder.path().display());
    (folder, ("EMULATED_CUDA_FAIL_INIT", setting))
}

/// Every other library opens the driver by its name: it would find the rejected one, whose
/// functions all fail, if that were in the process.
#[test]
fn a_driver_that_does_not_start_is_passed_over() {
    let statuses = [
        (34, "CUDA_ERROR_STUB_LIBRARY"),
        (803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
        (804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE"),
    ];
    for (status, name) in statuses {
        let (bad, failure) = driver_that_fails(status);
        let folders = std::env::join_paths([bad.path(), &emulated()]).unwrap();
        let with = |mut command: Command, folders: &OsStr| {
            command.env(SEARCHED, folders).env(failure.0, &failure.1);
            command
        };
        let said = format!("{}/libcuda.so.1 does not start: {name} (", bad.path().display());
        let listed = finish(with(yardstick(&["devices"]), &folders)).expect(0).stdout;
        assert!(listed.contains(&format!("Passed over: {said}")), "{listed}");
        let alone = with(short_run(&Folder::new(), &[]), bad.path().as_os_str());
        refused(alone, &["no CUDA driver starts: looked for libcuda.so.1 in ", &said]);

        let folder = Folder::new();
        let command = short_run(&folder, &[]);
        assert_emulated_were_used(finish(with(command, &folders)), &folder);
    }
}

/// A failure that any other copy would have as well.
#[test]
fn a_driver_without_a_device_ends_the_search() {
    for (status, said) in [(100, "sees no device"), (999, "failed: CUDA_ERROR_UNKNOWN")] {
        let (bad, failure) = driver_that_fails(status);
        let mut command = short_run(&Folder::new(), &[]);
        command.env(SEARCHED, std::env::join_paths([bad.path(), &emulated()]).unwrap());
        command.env(failure.0, failure.1);
        refused(command, &[said]);
    }
}

/// A folder with an NVRTC of 12.4 that compiles for 9.0 alone.
fn older_nvrtc() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let library = emulated().join("libnvrtc.so.12");
    let mut nm = Command::new("nm");
    nm.args(["-D", "--defined-only", "--format=posix"]).arg(library);
    let symbols = finish(nm).expect(0).stdout;
    let names = symbols.lines().filter_map(|line| line.split(' ').next());
    let own = ["nvrtcVersion", "nvrtcGetNumSupportedArchs", "nvrtcGetSupportedArchs"];
    let others = names.filter(|name| name.starts_with("nvrtc") && !own.contains(name));
    let mut text: String =
        others.map(|name| format!("int {name}(void) {{ return 7; }}\n")).collect();
    text += "int nvrtcVersion(int *major, int *minor) { *major = 12; *minor = 4; return 0; }\n\
             int nvrtcGetNumSupportedArchs(int *count) { *count = 1; return 0; }\n\
             int nvrtcGetSupportedArchs(int *list) { *list = 90; return 0; }\n";
    let source = folder.path().join("source.c");
    fs::write(&source, text).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"]).arg(folder.path().join("libnvrtc.so.12")).arg(&source);
    finish(cc).expect(0);
    folder
}

#[test]
fn a_compiler_that_does_not_know_the_device_is_passed_over() {
    let older = older_nvrtc();
    let folders = std::env::join_paths([older.path(), &emulated()]).unwrap();
    let listed_for = |capability: &str| {
        let mut command = yardstick(&["devices"]);
        command.env(SEARCHED, &folders).env("EMULATED_CUDA_COMPUTE_CAPABILITY", capability);
        finish(command).expect(0).stdout
    };
    let file = older.path().join("libnvrtc.so.12").display().to_string();
    let said = format!("Passed over: {file} does not compile for sm_120a (version 12.4).");
    let newer = listed_for("120");
    assert!(newer.contains(&said), "{newer}");
    assert!(!newer.contains("cannot be used"), "{newer}");
    assert!(!listed_for("90").contains("Passed over"), "{file} compiles for 9.0");
}

/// An installed toolkit beside wheels: other copies, each as good, that the dynamic loader finds.
#[test]
fn what_the_dynamic_loader_would_find_is_not_used_beside_named_folders() {
    let installed = tempfile::tempdir().unwrap();
    for name in [&FILES[..], &["libnccl.so.2"]].concat() {
        fs::copy(emulated().join(name), installed.path().join(name)).unwrap();
    }
    let others = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let others = std::env::split_paths(&others);
    let first = std::iter::once(installed.path().to_owned()).chain(others);
    let folder = Folder::new();
    let mut command = short_run(&folder, &[]);
    command.env("LD_LIBRARY_PATH", std::env::join_paths(first).unwrap());
    assert_emulated_were_used(finish(command), &folder);
}
