//! `yardstick doctor --device cuda` on emulated devices, with faults that NVML reports and
//! transports that NCCL logs.
//!
//! Needs the emulated device: `make test-cuda-emulated`.

use serde_json::Value;
use support::{Finished, finish, mpirun, only_training_libraries};

/// Two ranks with a device each.
fn doctor(flags: &[&str], variables: &[(&str, &str)]) -> Finished {
    let all = [&["doctor", "--device", "cuda", "--json"], flags].concat();
    let mut command = mpirun(2, &all);
    command.env("EMULATED_CUDA_DEVICES", "2").envs(variables.iter().copied());
    finish(command)
}

/// Status, and the worst result.
fn check(finished: &Finished, name: &str) -> (String, String) {
    let report: Value = serde_json::from_str(&finished.stdout).expect(&finished.stdout);
    let checks = report["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["name"] == name).unwrap();
    let found = check["results"][0]["found"].as_str().unwrap();
    (check["status"].as_str().unwrap().to_owned(), found.to_owned())
}

#[test]
fn healthy_gpus_pass() {
    let finished = doctor(&[], &[]).expect(0);
    let (status, found) = check(&finished, "gpus");
    assert!(status == "pass" && found.starts_with("2 x "), "{found}");
    for name in ["ecc", "gpu_clocks", "gpu_memory", "gpu_pcie"] {
        assert_eq!(check(&finished, name).0, "pass", "{name}");
    }
    let (status, found) = check(&finished, "versions");
    assert!(status == "pass" && found.contains("nccl ") && found.contains("cublaslt "), "{found}");
    let (status, found) = check(&finished, "transports");
    assert!(status == "pass" && found == "2 x SHM/direct", "{found}");
    assert_eq!(check(&finished, "gdr").1, "no pair is over a network");
}

#[test]
fn what_a_gpu_tells_fails() {
    // The XID event arrives while the doctor runs: NVML does not report earlier ones.
    let faults = ("EMULATED_NVML", "1:ecc=3,0:throttled=64,1:lanes=8,0:xid=48,1:xid=79@0.001");
    let finished = doctor(&[], &[faults]).expect(3);
    let (status, found) = check(&finished, "ecc");
    assert!(status == "fail" && found.ends_with(": 3 uncorrected ECC errors"), "{found}");
    let (status, found) = check(&finished, "gpu_clocks");
    assert!(status == "warn" && found.ends_with(": hw_thermal_slowdown"), "{found}");
    let (status, found) = check(&finished, "xid");
    let text = "XID 79 (the GPU has fallen off the bus)";
    assert!(status == "fail" && found.ends_with(text) && !found.contains("48"), "{found}");
    let (status, found) = check(&finished, "gpu_pcie");
    assert!(status == "warn" && found == "GPU 0000:02:00.0: 8 PCIe lanes", "{found}");
}

/// Two ranks cannot train without NCCL, and the health of their GPUs is unknown without NVML.
#[test]
fn libraries_that_are_missing_are_named() {
    let only = only_training_libraries();
    let finished = doctor(&[], &[("YARDSTICK_CUDA_PATH", &only.text())]).expect(3);
    let (status, found) = check(&finished, "gpus");
    assert!(status == "fail" && found.contains("libnccl"), "{found}");
    let (status, found) = check(&finished, "transports");
    assert!(status == "fail" && found.starts_with("rank 0: "), "{found}");
    assert_eq!(check(&finished, "gdr").0, "warn");
    for name in ["ecc", "xid", "gpu_clocks", "gpu_memory", "gpu_pcie"] {
        let (status, found) = check(&finished, name);
        assert!(status == "skip" && found.contains("libnvidia-ml"), "{name}: {found}");
    }
}

#[test]
fn a_lost_gpu_fails_and_is_named() {
    let finished = doctor(&[], &[("EMULATED_NVML", "1:lost=1")]).expect(3);
    let (status, found) = check(&finished, "gpus");
    assert_eq!((&*status, &*found), ("fail", "lost: GPU 0000:02:00.0"));
    // Hidden from CUDA it has no address, but is counted.
    let hidden = [("EMULATED_NVML", "1:lost=1"), ("CUDA_VISIBLE_DEVICES", "0")];
    let finished = doctor(&[], &hidden).expect(3);
    assert_eq!(check(&finished, "gpus").1, "lost: GPU 1");
}

#[test]
fn memory_that_others_use_warns_and_fails() {
    let faults = [("EMULATED_NVML", "1:used_mib=80000,1:process=4242")];
    let finished = doctor(&[], &faults).expect(0);
    let (status, found) = check(&finished, "gpu_memory");
    let text = "GPU 0000:02:00.0: 80000 MiB in use by process 4242";
    assert!(status == "warn" && found == text, "{found}");
    let finished = doctor(&["--workload", "gpt2-124m"], &faults).expect(3);
    let (status, found) = check(&finished, "gpu_memory");
    assert!(status == "fail" && found == format!("{text}, 896 MiB free"), "{found}");
}

#[test]
fn one_direction_without_gdr_warns_and_fails_where_it_is_required() {
    let network = ("EMULATED_CUDA_NCCL_NET", "IB,1:receive");
    let finished = doctor(&[], &[network]).expect(0);
    let (status, found) = check(&finished, "gdr");
    assert!(status == "warn" && found.ends_with("receives without it (rank 1)"), "{found}");
    doctor(&["--require", "gdr"], &[network]).expect(3);
    let full = doctor(&["--require", "gdr"], &[("EMULATED_CUDA_NCCL_NET", "IB")]).expect(0);
    assert_eq!(check(&full, "gdr"), ("pass".to_owned(), "on in both directions".to_owned()));
}

#[test]
fn a_hidden_log_is_no_evidence() {
    let hidden = [("NCCL_DEBUG", "WARN"), ("EMULATED_CUDA_NCCL_NET", "IB")];
    let finished = doctor(&[], &hidden).expect(0);
    assert_eq!(check(&finished, "transports").0, "warn");
    assert_eq!(check(&finished, "gdr").0, "warn");
    doctor(&["--require", "transports"], &hidden).expect(3);
}
