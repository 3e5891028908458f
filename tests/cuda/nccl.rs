//! `yardstick train --device cuda` on two ranks, each with an emulated device: NCCL between them,
//! bits, lost and hung ranks, and refusals.
//!
//! Needs the emulated device: `make test-cuda-emulated`.

mod transports;

use std::ffi::OsStr;
use std::process::Command;

use serde_json::Value;
use support::{Finished, Folder, Running, delay_streams, finish, mpirun, on_each_rank, run};

/// Little work, because the emulated device is slow: four micro-batches of 16 tokens a step on one
/// rank, two on two ranks, and several buckets. Comparing what ranks reach takes longer than steps.
const SMALL: &[&str] = [
    ["--threads", "1"],
    ["--set", "telemetry.matmul_probe=0s"],
    ["--set", "model.layers=2"],
    ["--set", "batch.sequence_tokens=16"],
    ["--set", "batch.micro_sequences=1"],
    ["--set", "batch.global_sequences=4"],
    ["--set", "data.evaluation_sequences=4"],
    ["--set", "collectives.bucket_bytes=65536"],
]
.as_flattened();

const FORMATS: [&str; 2] = ["precision.compute=f32", "precision.compute=bf16"];

const SHARDED_BF16: [&str; 2] = ["precision.compute=bf16", "parallel.sharded=optimizer"];

/// A device for each rank.
const DEVICES: (&str, &str) = ("EMULATED_CUDA_DEVICES", "2");

fn arguments<'a>(out: &'a str, flags: &[&'a str]) -> Vec<&'a str> {
    [&["train", "--device", "cuda", "--out", out], SMALL, flags].concat()
}

fn two_ranks(out: &str, flags: &[&str]) -> Command {
    let mut command = mpirun(2, &arguments(out, flags));
    command.envs([DEVICES]);
    delay_streams(&mut command, "200");
    command
}

#[track_caller]
fn train(folder: &Folder, flags: &[&str]) -> Finished {
    finish(two_ranks(&folder.text(), flags))
}

#[test]
fn two_ranks_have_the_losses_of_one() {
    for (format, bound) in FORMATS.into_iter().zip([1e-5, 1e-3]) {
        let flags = ["--steps", "6", "--set", format, "--set", "telemetry.matmul_probe=24ms"];
        let [one, two] = [(); 2].map(|()| Folder::new());
        run(&arguments(&one.text(), &flags)).expect(0);
        train(&two, &flags).expect(0);
        for rank in two.record()["ranks"].as_array().unwrap() {
            for rate in ["matmul_flops_per_second", "memory_bytes_per_second"] {
                assert!(rank["sniffed"][rate].as_f64().unwrap() > 1e6, "{rank:#}");
            }
        }
        assert_eq!((one.losses().len(), two.losses().len()), (6, 6));
        for (expected, found) in one.losses().into_iter().zip(two.losses()) {
            let relative = expected.relative_difference(found);
            assert!(relative <= bound, "{format}, {expected:?}: {relative:e}");
        }
    }
}

/// Two ranks in each dimension: sums pass one communicator after the other.
#[test]
fn four_ranks_in_two_dimensions_have_the_losses_of_the_host() {
    let host = Folder::new();
    let steps = ["--steps", "3"];
    run(&[&["train", "--out", &host.text()], SMALL, &steps].concat()).expect(0);
    let grid = ["--set", "parallel.data=2", "--set", "parallel.shard=2"];
    let [whole, sharded] = ["none", "weights"].map(|sharded| {
        let folder = Folder::new();
        let sharded = format!("parallel.sharded={sharded}");
        let flags = [&steps[..], &grid, &["--set", &sharded]].concat();
        let mut command = mpirun(4, &arguments(&folder.text(), &flags));
        command.env("EMULATED_CUDA_DEVICES", "4");
        let log = folder.sibling("nccl.%p.log");
        command.env("NCCL_DEBUG", "INFO").env("NCCL_DEBUG_FILE", log);
        delay_streams(&mut command, "200");
        finish(command).expect(0);
        folder
    });
    let pid = whole.record()["ranks"][3]["pid"].to_string();
    let log = whole.sibling(&format!("nccl.{pid}.log"));
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.contains("NCCL_LAUNCH_ORDER_IMPLICIT set by environment to 1"), "{log}");
    assert_eq!(whole.result(), sharded.result(), "sharding does not change a bit");
    assert_eq!((host.losses().len(), sharded.losses().len()), (3, 3));
    for (expected, found) in host.losses().into_iter().zip(sharded.losses()) {
        let relative = expected.relative_difference(found);
        assert!(relative <= 1e-5, "{expected:?}: {relative:e}");
    }
    let record = sharded.record();
    assert_eq!(record["ranks"][3]["mesh"], serde_json::json!({"data": 1, "shard": 1}));
    let transports = record["transports"].as_array().unwrap();
    let pair = |pair: &Value| [&pair["from"], &pair["to"]].map(|rank| rank.as_u64().unwrap());
    let pairs: Vec<_> = transports.iter().map(pair).collect();
    let lines = [[0, 1], [0, 2], [1, 0], [1, 3], [2, 0], [2, 3], [3, 1], [3, 2]];
    assert_eq!(pairs, lines, "both dimensions, by the ranks of the world");
    assert!(transports.iter().all(|pair| pair["name"] == "SHM/direct"), "{transports:?}");
    let traffic = record["collectives"]["traffic"].as_array().unwrap();
    let row = |row: &Value| format!("{} {}", row["dimension"], row["operation"]).replace('"', "");
    let rows: Vec<_> = traffic.iter().map(row).collect();
    let expected =
        ["shard reduce_scatter", "data reduce_scatter", "data all_gather", "shard all_gather"];
    assert_eq!(rows, expected, "operations of all groups differ");
}

/// Windows are used in turn by gathers, kernels and reductions of streams that are delayed at
/// random: a missing wait would change a sum.
#[test]
fn sharded_weights_have_the_bits_of_sharded_gradients() {
    let results = [
        ["parallel.sharded=gradients", "collectives.overlap=true"],
        ["parallel.sharded=weights", "collectives.overlap=true"],
        ["parallel.sharded=weights", "collectives.overlap=false"],
    ];
    let results = results.map(|[sharded, overlaps]| {
        let folder = Folder::new();
        let flags = ["--steps", "4", "--eval-every", "2", "--set", FORMATS[1]];
        train(&folder, &[&flags[..], &["--set", sharded, "--set", overlaps]].concat()).expect(0);
        (folder.result(), folder.steps(0)[3].0["evaluation_loss"].clone())
    });
    assert_eq!(results[0], results[1]);
    assert_eq!(results[1], results[2], "without overlap");
}

/// Streams are delayed at random, differently each time: a missing wait would change a sum.
#[test]
fn sharding_and_overlap_do_not_change_a_bit() {
    for format in FORMATS {
        let result = |shards: &str, overlaps: &str| {
            let folder = Folder::new();
            let flags = ["--steps", "4", "--eval-every", "2", "--set", format];
            train(&folder, &[&flags[..], &["--set", shards, "--set", overlaps]].concat()).expect(0);
            (folder.result(), folder.steps(0)[3].0["evaluation_loss"].clone())
        };
        let waiting = result("parallel.sharded=none", "collectives.overlap=false");
        assert!(waiting.0.fingerprint["weights"].is_string());
        for shards in ["parallel.sharded=none", "parallel.sharded=optimizer"] {
            let overlapped = result(shards, "collectives.overlap=true");
            assert_eq!(overlapped, waiting, "{format}, {shards}");
        }
    }
}

/// Weights pass through the host on their way to a device, and on their way to the digest.
#[test]
fn imported_weights_have_the_digest_of_the_processor() {
    let folder = Folder::new();
    let on_cpu = ["train", "--steps", "1", "--out", &folder.text()];
    run(&[&on_cpu, SMALL].concat()).expect(0);
    let exported = support::text(&folder.sibling("exported"));
    run(&["export", &folder.text(), "--out", &exported]).expect(0);
    for settings in [["precision.compute=f32", "parallel.sharded=none"], SHARDED_BF16] {
        let imported = Folder::new();
        let [format, sharded] = settings.map(|setting| ["--set", setting]);
        let flags = ["--steps", "1", "--init-from", &exported];
        train(&imported, &[&flags[..], &format, &sharded].concat()).expect(0);
        let found = &imported.record()["run"]["initial_weights"]["digest"];
        assert_eq!(*found, folder.record()["fingerprint"]["weights"], "{settings:?}");
    }
}

/// Plants a mistake: the device drops the waits of the communicating stream for the computing one,
/// or those the other way. One bucket leaves the computing stream little to do before it reads the
/// reduced gradients.
#[test]
fn a_missing_wait_of_either_stream_changes_losses() {
    let with_waits_forgotten = |kind| {
        let folder = Folder::new();
        let one_bucket = ["--steps", "6", "--set", "collectives.bucket_bytes=100000000"];
        let mut command = two_ranks(&folder.text(), &one_bucket);
        command.env("EMULATED_CUDA_FORGET_WAITS", kind).env("EMULATED_CUDA_SEED", "1");
        (finish(command).code, folder.losses())
    };
    let (code, losses) = with_waits_forgotten("");
    assert_eq!((code, losses.len()), (0, 6));
    for kind in ["urgent", "ordinary"] {
        // A gradient of poison ends the run.
        let (code, found) = with_waits_forgotten(kind);
        assert!(code == 4 || found != losses, "waits of {kind} streams are forgotten");
    }
}

#[test]
fn communication_is_recorded_as_nccl_s() {
    let folder = Folder::new();
    train(&folder, &["--steps", "4", "--set", "parallel.sharded=optimizer"]).expect(0);
    let record = folder.record();
    let collectives = &record["collectives"];
    assert_eq!(collectives["backend"], "nccl");
    let library = collectives["library"].as_str().unwrap();
    assert!(library.starts_with("NCCL 2.") && library.contains("control messages: "), "{library}");
    let number = |step: &Value, key: &str| step[key].as_u64().unwrap();
    let steps = folder.steps(0);
    for step in &steps {
        let total = number(&step.0, "comm_total_ns");
        assert!(total > 0 && number(&step.0, "comm_hidden_ns") <= total, "{step:?}");
    }
    // Gathers count in the step that waits for them: none in the first.
    let bytes: Vec<_> = steps.iter().map(|step| number(&step.0, "comm_bytes")).collect();
    assert_eq!(bytes[1..], [2 * bytes[0]; 3]);
}

#[test]
fn a_killed_run_resumes_to_the_same_bits() {
    for shards in ["parallel.sharded=none", "parallel.sharded=optimizer"] {
        let saves = ["--checkpoint-every", "2steps", "--set", "checkpoint.background=false"];
        let flags = [&["--steps", "4", "--set", shards][..], &saves].concat();
        let [whole, killed] = [(); 2].map(|()| Folder::new());
        train(&whole, &flags).expect(0);
        let kill = [&flags[..], &["--inject", "kill@step=3,rank=1"]].concat();
        assert_ne!(train(&killed, &kill).code, 0);
        train(&killed, &flags).expect(0);
        assert_eq!(killed.record()["attempts"][1]["resumed_after_step"], 2, "{shards}");
        assert_eq!(whole.result(), killed.result(), "{shards}");
    }
}

/// Saves copy the state of a device while windows of weights are gathered and updates are computed.
#[test]
fn saves_beside_training_change_no_bit_of_sharded_weights() {
    let flags = ["--steps", "6", "--set", FORMATS[1], "--set", "parallel.sharded=weights"];
    let [whole, killed] = [(); 2].map(|()| Folder::new());
    train(&whole, &flags).expect(0);
    let saves = [&flags[..], &["--checkpoint-every", "1steps"]].concat();
    let kill = [&saves[..], &["--inject", "kill@step=6,rank=0"]].concat();
    assert_ne!(train(&killed, &kill).code, 0);
    train(&killed, &saves).expect(0);
    let resumed = killed.record()["attempts"][1]["resumed_after_step"].as_u64();
    assert!(resumed >= Some(1), "{resumed:?}");
    assert_eq!(whole.result(), killed.result());
}

/// NCCL notices that the process is gone; the launcher does not end the surviving one.
#[test]
fn the_peer_of_a_killed_rank_ends_with_5_and_names_it() {
    let folder = Folder::new();
    let out = folder.text();
    let kill = ["--deadline", "60s", "--steps", "6", "--inject", "kill@step=4,rank=1"];
    let variables = [DEVICES].map(|(name, value)| (name, OsStr::new(value)));
    let both = on_each_rank(2, &arguments(&out, &kill), &variables);
    assert_eq!(both.codes, "137\n5\n", "{}", both.finished.stderr);
    assert!(!both.finished.stderr.contains("was not over after"), "long before the deadline");
    let reason = folder.record()["reason"].clone();
    assert_eq!((&reason["rank"], &reason["step"]), (&1.into(), &4.into()), "{reason}");
    assert!(reason["text"].as_str().unwrap().contains("a peer was lost"), "{reason}");
}

/// Stopped at any moment: in a reduction, or with a sharded optimizer perhaps in a gather.
#[test]
fn a_stopped_rank_ends_the_run_within_its_deadline_and_is_named() {
    for shards in ["parallel.sharded=none", "parallel.sharded=optimizer"] {
        let folder = Folder::new();
        let long = ["--deadline", "5s", "--set", "schedule.steps=100000", "--set", shards];
        let mut running = Running::start(two_ranks(&folder.text(), &long));
        let lines = folder.path().join("steps/r000001.jsonl");
        running.poll_while(|| std::fs::read_to_string(&lines).unwrap_or_default().is_empty());
        let pid = folder.record()["ranks"][1]["pid"].to_string();
        Command::new("kill").args(["-STOP", &pid]).status().unwrap();
        assert_eq!(running.wait(), Some(5), "{shards}");
        let reason = folder.record()["reason"].clone();
        assert_eq!(reason["rank"], 1, "{reason}");
        assert!(reason["step"].is_u64(), "{reason}");
        assert!(reason["phase"].is_null(), "a stopped process does not say: {reason}");
        let text = reason["text"].as_str().unwrap();
        assert!(text.contains("on rank 0"), "{reason}");
        let (_, waited) = text.split_once("was not over after ").expect("how long it waited");
        let waited: f64 = waited.split(' ').next().unwrap().parse().unwrap();
        assert!((5.0..60.0).contains(&waited), "{reason}");
    }
}

#[test]
fn a_rank_that_hangs_is_named_with_the_operation() {
    let folder = Folder::new();
    let hang = ["--deadline", "5s", "--steps", "6", "--inject", "hang@step=3,rank=1"];
    train(&folder, &hang).expect(5).expect_stderr(&["all-reduce of ", "(number 1 of ", "nccl"]);
    let reason = folder.record()["reason"].clone();
    assert_eq!((&reason["rank"], &reason["step"]), (&1.into(), &3.into()), "{reason}");
}

#[test]
fn two_ranks_need_two_devices() {
    let folder = Folder::new();
    let mut command = two_ranks(&folder.text(), &["--steps", "1"]);
    command.env("EMULATED_CUDA_DEVICES", "1");
    finish(command).expect(3).expect_stderr(&["backend nccl cannot start", "Duplicate GPU"]);
    assert!(!folder.path().exists(), "the folder is not created");
}

/// NCCL takes 4 MiB of a device when ranks are connected: more than is left beside the plan.
#[test]
fn the_memory_of_nccl_counts_before_anything_is_allocated() {
    let settings = [&["plan", "--json", "--ranks", "2", "--set", "run.device=cuda"], &SMALL[2..]];
    let plan = run(&settings.concat()).expect(0).stdout;
    let plan: Value = serde_json::from_str(&plan).unwrap();
    let memory = plan["device"]["total_bytes"].as_u64().unwrap() + (2 << 20);
    let folder = Folder::new();
    let mut command = two_ranks(&folder.text(), &["--steps", "1", "--set", "run.recompute=none"]);
    command.env("EMULATED_CUDA_MEMORY_BYTES", memory.to_string());
    finish(command).expect(3).expect_stderr(&["the device's memory does not suffice", "hint:"]);
    assert!(!folder.path().exists(), "the folder is not created");
}

/// All ranks compute in the same way, though only one of them has to.
#[test]
fn ranks_recompute_what_the_smallest_device_needs() {
    let plan = ["plan", "--json", "--ranks", "2", "--device", "cuda"];
    let selective = ["--set", "run.recompute=selective"];
    let plan = run(&[&plan, &SMALL[2..], &selective].concat()).expect(0).stdout;
    let plan: Value = serde_json::from_str(&plan).unwrap();
    // With what is left to the driver, and a little less than nothing recomputed needs.
    let memory = plan["device"]["total_bytes"].as_u64().unwrap() + (1 << 30) + 64;
    let folder = Folder::new();
    let mut command = two_ranks(&folder.text(), &["--steps", "2"]);
    command.env("EMULATED_CUDA_MEMORY_BYTES_1", memory.to_string());
    finish(command).expect(0);
    assert_eq!(folder.record()["run"]["run"]["recompute"], "selective");
    let other = Folder::new();
    train(&other, &["--steps", "2"]).expect(0);
    assert_eq!(other.record()["run"]["run"]["recompute"], "none");
    assert_eq!(folder.result(), other.result(), "in f32 all bits are the same");
}

#[test]
fn a_rank_without_nccl_is_an_environment_that_is_not_fit() {
    let libraries = std::env::var_os("YARDSTICK_CUDA_PATH").expect("the emulated device");
    let folder = Folder::new();
    let without = folder.sibling("without-nccl");
    std::fs::create_dir(&without).unwrap();
    for name in ["libcuda.so.1", "libnvrtc.so.12", "libcublasLt.so.12"] {
        let library = std::path::Path::new(&libraries).join(name);
        std::os::unix::fs::symlink(library.canonicalize().unwrap(), without.join(name)).unwrap();
    }
    let mut command = two_ranks(&folder.text(), &["--steps", "1"]);
    command.env("YARDSTICK_CUDA_PATH", &without);
    finish(command).expect(3).expect_stderr(&["NCCL is missing", "libnccl.so.2"]);
    // A single rank needs none, also under a launcher, unless it is requested.
    let alone = |flags: &[&str]| {
        let out = folder.text();
        let mut command = mpirun(1, &arguments(&out, flags));
        command.env("YARDSTICK_CUDA_PATH", &without);
        finish(command)
    };
    alone(&["--steps", "1", "--set", "collectives.backend=nccl"]).expect(3);
    alone(&["--steps", "1"]).expect(0);
}

/// Shows with a communicator of one rank that NCCL works there.
#[test]
fn one_rank_uses_nccl_where_it_is_named() {
    let results = ["auto", "nccl"].map(|backend| {
        let folder = Folder::new();
        let setting = format!("collectives.backend={backend}");
        run(&arguments(&folder.text(), &["--steps", "2", "--set", &setting])).expect(0);
        folder.result()
    });
    assert_eq!(results[0], results[1]);
}

#[test]
fn backends_that_do_not_reach_the_memory_are_usage_errors() {
    for (device, backend, expected) in
        [("cpu", "nccl", "auto, single or mpi"), ("cuda", "mpi", "auto, single or nccl")]
    {
        let folder = Folder::new();
        let setting = format!("collectives.backend={backend}");
        let flags = ["train", "--device", device, "--set", &setting, "--out", &folder.text()];
        run(&flags).expect(2).expect_stderr(&[&setting.replace('=', " = "), expected]);
    }
}

#[test]
fn comm_measures_and_verifies_every_operation_through_nccl() {
    let flags = ["--max-bytes", "64K", "--factor", "64", "--iterations", "2", "--json"];
    let mut command = mpirun(3, &[&["comm", "--device", "cuda"], &flags[..]].concat());
    command.env("EMULATED_CUDA_DEVICES", "3");
    let report: Value = serde_json::from_str(&finish(command).expect(0).stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| row["operation"].as_str().unwrap()).collect();
    let operations = ["all_reduce", "reduce_scatter", "all_gather", "all_to_all"];
    assert_eq!(names, operations.map(|name| [name; 2]).concat());
    for row in rows {
        assert_eq!([&row["in_place"]["wrong"], &row["out_of_place"]["wrong"]], [0, 0], "{row:#}");
    }
}
