//! Power, clocks and errors of GPUs in record, metrics, warnings, report and comparison: two ranks
//! on emulated devices, one of them with planted faults.
//!
//! Needs the emulated device: `make test-cuda-emulated`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{
    Finished, Folder, finish, free_port, mpirun, only_training_libraries, run, yardstick,
};

/// Faults of the second GPU: bit 64 is a thermal slowdown by hardware.
const FAULTS: &str =
    "1:throttled=64,1:power=410,1:limit=500,1:xid=79@1,1:next_xid=45@1,1:ecc=2@1,1:replays=5@1";

const SMALL: &[&str] = [
    ["--set", "telemetry.matmul_probe=0s"],
    ["--threads", "1"],
    ["--set", "model.layers=2"],
    ["--set", "batch.sequence_tokens=16"],
    ["--set", "batch.micro_sequences=1"],
    ["--set", "batch.global_sequences=4"],
    ["--set", "telemetry.hardware_interval=50ms"],
    ["--set", "telemetry.price_per_node_hour=36"],
    ["--steps", "30"],
]
.as_flattened();

fn two_ranks(folder: &Folder, faults: &str, flags: &[&str]) -> Command {
    let out = folder.text();
    let all = [&["train", "--device", "cuda", "--out", &out], SMALL, flags].concat();
    let mut command = mpirun(2, &all);
    command.envs([("EMULATED_CUDA_DEVICES", "2"), ("EMULATED_NVML", faults)]);
    command
}

fn warnings(finished: &Finished) -> Vec<&str> {
    finished.stderr.lines().filter(|line| line.starts_with("warning: ")).collect()
}

/// The page of the endpoint; `None` if nobody answers.
fn metrics(port: u16) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    write!(stream, "GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// Waits until the endpoint shows all of these lines.
#[track_caller]
fn until_metrics(port: u16, lines: &[&str]) {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let page = metrics(port).unwrap_or_default();
        let missing: Vec<_> = lines.iter().filter(|line| !page.contains(**line)).collect();
        if missing.is_empty() {
            return;
        }
        assert!(Instant::now() < end, "{missing:?} not in:\n{page}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_gpu_that_throttles_and_fails_is_named_everywhere() {
    let [calm, hot] = [(); 2].map(|()| Folder::new());
    let finished = finish(two_ranks(&calm, "0:refused=1", &[])).expect(0);
    assert!(!finished.stderr.contains("its GPU"), "{}", finished.stderr);
    let ranks = &calm.record()["ranks"];
    let refused = &ranks[0]["gpu"]["gauges"];
    assert!(refused["power_watts"].is_object());
    assert!(refused["throttled.hw_thermal_slowdown"].is_null(), "it does not tell that");
    let gpu = &ranks[1]["gpu"];
    assert_eq!(gpu["gauges"]["power_watts"]["max"], 650.0);
    assert_eq!(gpu["gauges"]["sm_clock_hertz"]["max"], 1.755e9);
    assert!(gpu["counters"]["nvlink_bytes.transmit"]["total"].as_f64().unwrap() > 0.0);

    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    let flags = ["--prometheus", &address, "--set", "telemetry.prometheus_linger=3s"];
    let health = ["--set", "checkpoint.on_verdict=true"];
    let command = two_ranks(&hot, FAULTS, &[&flags[..], &health].concat());
    let training = std::thread::spawn(|| finish(command));
    until_metrics(
        port,
        &[
            "yardstick_gpu_throttled{rank=\"1\",reason=\"hw_thermal_slowdown\"} 1",
            "yardstick_gpu_throttled{rank=\"0\",reason=\"hw_thermal_slowdown\"} 0",
            "yardstick_gpu_power_watts{rank=\"1\"} 410",
            "yardstick_gpu_power_limit_watts{rank=\"1\"} 500",
            "yardstick_gpu_power_limit_default_watts{rank=\"1\"} 700",
            "yardstick_gpu_last_xid{rank=\"1\"} 79",
            "yardstick_gpu_ecc_errors_total{rank=\"1\",kind=\"uncorrected\"} 2",
            "yardstick_host_memory_available_bytes",
        ],
    );
    let finished = training.join().unwrap().expect(0);
    let place = "rank 1 (";
    for said in [
        "the clocks of its GPU are held down: hw_thermal_slowdown",
        "its GPU reports XID 79 (the GPU has fallen off the bus)",
        "the memory of its GPU has had 2 uncorrected ECC errors",
        "packets sent again over PCIe: ",
    ] {
        let found = warnings(&finished).iter().any(|it| it.contains(said) && it.contains(place));
        assert!(found, "{said}: {}", finished.stderr);
        // A busy machine may slow either rank down, and then another warning names that one.
        let is_of_rank_0 = |it: &&str| it.contains(said) && it.contains("rank 0 (");
        assert!(!warnings(&finished).iter().any(is_of_rank_0), "{}", finished.stderr);
    }

    let record = hot.record();
    let triggers = &record["checkpoints"]["triggers"];
    assert!(triggers["health"].as_u64() >= Some(1), "{triggers}");
    let gpu = &record["ranks"][1]["gpu"];
    assert!(gpu["gauges"]["throttled.hw_thermal_slowdown"]["mean"].as_f64().unwrap() > 0.5);
    assert_eq!(gpu["counters"]["xid_errors"]["total"], 2.0);
    assert_eq!(gpu["gauges"]["memory_temperature_celsius"]["max"], 74.0);
    assert_eq!(gpu["counters"]["ecc_errors.uncorrected"]["total"], 2.0);
    let energy = &record["energy"];
    let watts = energy["gpu_joules"].as_f64().unwrap() / gpu["seconds"].as_f64().unwrap();
    assert!((700.0..1500.0).contains(&watts), "650 and 410 W: {watts}");
    assert!(record["cost"]["per_billion_tokens"].as_f64().unwrap() > 0.0);

    let report = run(&["report", &hot.text()]).expect(0);
    assert!(report.stdout.contains("530 W of 600 W"), "{}", report.stdout);
    let page = hot.path().join("page.html");
    run(&["report", "--html", page.to_str().unwrap(), &hot.text()]).expect(0);
    let page = std::fs::read_to_string(page).unwrap();
    for shown in ["<h3>Power of GPUs</h3>", "<h3>Clocks of GPUs</h3>", "<td>hw_thermal_slowdown<"] {
        assert!(page.contains(shown), "{shown}");
    }
    let compared = run(&["compare", "--json", &calm.text(), &hot.text()]);
    let compared: Value = serde_json::from_str(&compared.stdout).unwrap();
    let differences = compared["differences"].as_array().unwrap();
    for (name, new) in [
        ("ranks.1.gpu.clocks_held_down", "hw_thermal_slowdown"),
        ("ranks.1.gpu.power_cap", "power capped at 500 W of 700 W"),
        ("ranks.1.gpu.xid_errors", "some"),
        ("ranks.1.gpu.uncorrected_ecc_errors", "some"),
    ] {
        let found = differences.iter().find(|it| it["name"] == name);
        assert_eq!(found.map(|it| &it["new"][0]), Some(&Value::from(new)), "{name}");
    }
}

#[test]
fn a_power_cap_is_named_beside_the_mfu() {
    let folder = Folder::new();
    let out = folder.text();
    let flags = ["--steps", "6", "--set", "telemetry.matmul_probe=100ms"];
    let mut command =
        yardstick(&[&["train", "--device", "cuda", "--out", &out], &SMALL[2..16], &flags].concat());
    command.env("EMULATED_NVML", "0:limit=500");
    finish(command).expect(0);
    let gauges = &folder.record()["ranks"][0]["gpu"]["gauges"];
    assert_eq!(gauges["power_limit_watts"]["min"], 500.0);
    assert_eq!(gauges["power_limit_default_watts"]["max"], 700.0);
    let report = run(&["report", &out]).expect(0).stdout;
    let words: Vec<_> = report.split_whitespace().collect();
    let mfu = words.iter().position(|word| *word == "mfu_measured").expect("it was measured");
    let line = words[mfu..mfu + 30].join(" ");
    assert!(line.contains("per rank (power capped at 500 W of 700 W)"), "{report}");
    assert!(report.contains("model rate"), "{report}");
}

/// A launch fails, and the driver has reported the reason.
#[test]
fn the_error_of_a_failed_gpu_names_its_xid() {
    let folder = Folder::new();
    let out = folder.text();
    let mut command =
        yardstick(&[&["train", "--device", "cuda", "--out", &out], &SMALL[..16]].concat());
    command
        .args(["--steps", "9"])
        .envs([("EMULATED_CUDA_FAIL_LAUNCH", "adamw:4"), ("EMULATED_NVML", "0:xid=48@0.001")]);
    let finished = finish(command);
    let said = "the GPU reports XID 48 (double-bit ECC error): ";
    assert!(finished.code != 0 && finished.stderr.contains(said), "{finished:?}");
    let reason = &folder.record()["reason"];
    assert!(reason["text"].as_str().unwrap().contains(said), "{reason}");
}

/// The rest of the machine's libraries without NVML.
#[test]
fn without_nvml_there_is_one_warning_and_null() {
    let without = only_training_libraries();
    let folder = Folder::new();
    let out = folder.text();
    let mut command =
        yardstick(&[&["train", "--device", "cuda", "--out", &out], &SMALL[..16]].concat());
    command.args(["--steps", "2"]).env("YARDSTICK_CUDA_PATH", without.path());
    let finished = finish(command).expect(0);
    let said = "ranks[].gpu is null, libnvidia-ml.so.1 was not found: rank 0 (";
    let about: Vec<_> =
        warnings(&finished).into_iter().filter(|line| line.contains("libnvidia-ml")).collect();
    assert_eq!(about.len(), 1, "{about:?}");
    assert!(about[0].starts_with(&format!("warning: {said}")), "{about:?}");
    let record = folder.record();
    assert_eq!((&record["ranks"][0]["gpu"], &record["energy"]), (&Value::Null, &Value::Null));
    assert!(record["hosts"][0]["gauges"]["cpu_ratio.user"].is_object());
}
