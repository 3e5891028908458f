//! `yardstick train --device cuda`, unmodified, on the emulated device: losses against the
//! processor's, bits, resumption, and a machine that is not fit.
//!
//! Needs the emulated device: `make test-cuda-emulated`.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;
use support::{
    Finished, Folder, LossBits, delay_streams, finish, profile_row, run, text, yardstick,
};

/// The emulated device takes a second for what a real one does in microseconds: two micro-batches
/// of 32 tokens, two such evaluations, and no probe.
pub(crate) const SMALL: &[&str] = [
    ["--set", "telemetry.matmul_probe=0s"],
    ["--set", "batch.sequence_tokens=32"],
    ["--set", "batch.micro_sequences=1"],
    ["--set", "batch.global_sequences=2"],
    ["--set", "data.evaluation_sequences=2"],
]
.as_flattened();

/// Steps over which losses are compared. `cuda_engine` of models compares every gradient of a step;
/// these have several updates, and prefetched batches.
const STEPS: &str = "10";

/// Largest relative difference of the loss of any step from that of the processor in f32.
const F32_BOUND: f64 = 1e-4;
const BF16_BOUND: f64 = 1e-2;

pub(crate) fn train(folder: &Folder, workload: &str, flags: &[&str]) -> Finished {
    finish(train_command(folder, workload, flags))
}

fn train_command(folder: &Folder, workload: &str, flags: &[&str]) -> Command {
    let all = [&["train", "--workload", workload, "--out", &folder.text()], SMALL, flags];
    let mut command = yardstick(&all.concat());
    delay_streams(&mut command, "30");
    command
}

/// The losses of a workload in a format on a device.
fn losses(workload: &str, device: &str, compute: &str) -> Vec<LossBits> {
    let folder = Folder::new();
    let compute = format!("precision.compute={compute}");
    let flags = ["--device", device, "--set", &compute, "--steps", STEPS];
    train(&folder, workload, &flags).expect(0);
    folder.losses()
}

fn assert_losses_agree(workload: &str) {
    let exact = losses(workload, "cpu", "f32");
    let distinct: BTreeSet<u64> = exact.iter().map(|loss| loss.bits).collect();
    assert_eq!(distinct.len(), exact.len(), "{workload}: each step trains");
    for (compute, bound) in [("f32", F32_BOUND), ("bf16", BF16_BOUND)] {
        let found = losses(workload, "cuda", compute);
        assert_eq!(found.len(), exact.len());
        for (exact, found) in exact.iter().zip(found) {
            let difference = exact.relative_difference(found);
            let step = exact.step;
            assert!(difference < bound, "{workload} in {compute}, step {step}: {difference:e}");
        }
    }
}

#[test]
fn smoke_has_the_losses_of_the_processor() {
    assert_losses_agree("smoke");
}

#[test]
fn llama_smoke_has_the_losses_of_the_processor() {
    assert_losses_agree("llama-smoke");
}

/// The same where heads are 64 wide.
pub(crate) const WIDE_STEPS: &str = "8";

#[test]
fn wgmma_on_another_kind_of_device_is_one_sentence_and_exit_code_3() {
    let folder = Folder::new();
    let wide = ["--set", "model.heads=2", "--set", "precision.compute=bf16"];
    let wgmma = ["--device", "cuda", "--set", "run.attention=wgmma", "--steps", "1"];
    let start = ["train", "--workload", "smoke", "--out", &folder.text()];
    let mut command = yardstick(&[&start[..], &wide, &wgmma].concat());
    command.env("EMULATED_CUDA_COMPUTE_CAPABILITY", "80");
    let said = ["has compute capability 8.0", "wgmma is for 9.0 alone; use run.attention = flash"];
    let finished = finish(command).expect(3).expect_stderr(&said);
    assert!(!finished.stderr.contains("panicked"), "{}", finished.stderr);
}

#[test]
fn kernel_that_the_compiler_calls_slow_is_one_warning() {
    let folder = Folder::new();
    let cache = Folder::new();
    let mut command = train_command(&folder, "smoke", &["--device", "cuda", "--steps", "1"]);
    command.env("YARDSTICK_CACHE_DIR", cache.text());
    let complaint = "ptxas info    : (C7514) Potential Performance Loss: wgmma are serialized";
    command.env("EMULATED_CUDA_COMPILER_LOG", format!("gelu/kernel.cu:{complaint}"));
    let warning = format!("gelu/kernel.cu as compiled by NVRTC 12.9 may be slow: {complaint}");
    let finished = finish(command).expect(0).expect_stderr(&[&warning]);
    assert_eq!(finished.stderr.matches("may be slow").count(), 1, "{}", finished.stderr);
}

#[test]
fn reruns_and_a_kill_with_resumption_have_the_same_bits() {
    for settings in [&[][..], &["--set", "precision.compute=bf16"]] {
        let flags = |extra: &[&'static str]| [&["--device", "cuda"], settings, extra].concat();
        let whole = Folder::new();
        train(&whole, "smoke", &flags(&["--steps", "4", "--eval-every", "2"])).expect(0);
        let killed = Folder::new();
        let steps = ["--steps", "4", "--eval-every", "2"];
        let saves = ["--checkpoint-every", "2steps", "--set", "checkpoint.background=false"];
        let saves = [steps, saves].concat();
        let kill = [&saves[..], &["--inject", "kill@step=3"]].concat();
        assert_eq!(train(&killed, "smoke", &flags(&kill)).code, -1);
        train(&killed, "smoke", &flags(&saves)).expect(0);
        assert_eq!(killed.record()["attempts"][1]["resumed_after_step"], 2);
        assert_eq!(whole.result(), killed.result());
    }
}

/// The time of a step is known one step later, but not when it ended: a step of three seconds is
/// three seconds after the one before.
#[test]
fn steps_are_told_with_the_time_when_they_ended() {
    const SLOW: usize = 4;
    let folder = Folder::new();
    let slow = format!("slow@step={SLOW},rank=0");
    train(&folder, "smoke", &["--device", "cuda", "--steps", "6", "--inject", &slow]).expect(0);
    let ended_ms = |step: &support::StepLine| step.0["unix_ms"].as_u64().unwrap();
    let steps = folder.steps(0);
    let [before, after] = [&steps[SLOW - 2], &steps[SLOW - 1]].map(ended_ms);
    assert!(after - before > 2_900, "{steps:?}");
}

#[test]
fn recomputation_has_the_same_bits() {
    let result = |settings: &[&str]| {
        let folder = Folder::new();
        let flags = [&["--device", "cuda", "--steps", "3"], settings].concat();
        train(&folder, "smoke", &flags).expect(0);
        folder.result()
    };
    let bf16 = ["--set", "precision.compute=bf16"];
    let plain = result(&bf16);
    let recompute = ["--set", "run.recompute=full"];
    assert_eq!(plain, result(&[&bf16[..], &recompute].concat()));
}

/// What does not fit the device is computed again, unless the setting is chosen.
#[test]
fn recomputation_is_what_the_memory_of_the_device_needs() {
    let planned = |level: &str| {
        let setting = format!("run.recompute={level}");
        let flags = ["plan", "--workload", "smoke", "--device", "cuda", "--json"];
        let plan = run(&[&flags[..], SMALL, &["--set", &setting]].concat()).expect(0);
        let plan: Value = serde_json::from_str(&plan.stdout).unwrap();
        plan["device"]["total_bytes"].as_u64().unwrap()
    };
    // What is left to the driver, and less than the difference of the levels.
    let memory_bytes = planned("selective") + (1 << 30) + (1 << 12);
    assert!(planned("none") + (1 << 30) > memory_bytes);
    let trained = |settings: &[&str], memory_bytes: u64| {
        let folder = Folder::new();
        let flags = [&["--device", "cuda", "--steps", "3"], settings].concat();
        let mut command = train_command(&folder, "smoke", &flags);
        command.env("EMULATED_CUDA_MEMORY_BYTES", memory_bytes.to_string());
        (finish(command), folder)
    };
    let level = |folder: &Folder| folder.record()["run"]["run"]["recompute"].clone();
    let (finished, small) = trained(&[], memory_bytes);
    finished.expect(0);
    let (finished, large) = trained(&[], 8 << 30);
    finished.expect(0);
    assert_eq!((level(&small), level(&large)), ("selective".into(), "none".into()));
    assert_eq!(small.result(), large.result(), "in f32 all bits are the same");
    let toml = std::fs::read_to_string(small.path().join("config.toml")).unwrap();
    assert!(!toml.contains("recompute ="), "a choice is no setting: {toml}");
    let (finished, _) = trained(&["--set", "run.recompute=none"], planned("selective") + 64);
    finished.expect(3).expect_stderr(&["it fits with run.recompute = selective"]);
}

/// Checkpoints do not depend on the device that computed them.
#[test]
fn a_run_goes_on_where_there_is_no_device() {
    let folder = Folder::new();
    train(&folder, "smoke", &["--device", "cuda", "--steps", "2"]).expect(0);
    train(&folder, "smoke", &["--steps", "4"]).expect(0);
    let alone = Folder::new();
    train(&alone, "smoke", &["--steps", "4"]).expect(0);
    for (mixed, alone) in folder.losses().into_iter().zip(alone.losses()) {
        let difference = mixed.relative_difference(alone);
        assert!(difference < F32_BOUND, "step {}: {difference:e}", mixed.step);
    }
}

#[test]
fn the_record_names_the_device_and_its_libraries() {
    let folder = Folder::new();
    train(&folder, "smoke", &["--device", "cuda", "--steps", "2"]).expect(0);
    let record = folder.record();
    let device = &record["ranks"][0]["device"];
    assert_eq!(device["name"], "Emulated CUDA device");
    assert_eq!(device["compute_capability"]["major"], 9);
    assert!(record["ranks"][0]["matmul_kernel"].is_null());
    for library in ["cuda_driver", "nvrtc", "cublaslt"] {
        assert!(record["environment"]["cuda"][library].is_string(), "{library}");
    }
    // No peak of it is published, and that is reported once.
    assert!(record["mfu_causal"].is_null());
    let anomalies = record["anomalies"].to_string();
    assert_eq!(anomalies.matches("no published peak of Emulated CUDA device").count(), 1);
    for step in folder.steps(0) {
        let phases = step.0["phases_ns"].as_object().unwrap();
        let sum: u64 = phases.values().map(|ns| ns.as_u64().unwrap()).sum();
        assert_eq!(sum, step.0["wall_ns"].as_u64().unwrap(), "phases add up to the wall time");
        let most = ["forward", "backward"].map(|phase| phases[phase].as_u64().unwrap());
        assert!(most.iter().sum::<u64>() > sum / 4, "the engine takes time: {phases:?}");
        let other = phases["other"].as_u64().unwrap();
        assert!(other < sum / 2, "the device's events are read: {phases:?}");
    }
}

/// A bit flips in device memory, while a gradient is computed.
#[test]
fn flipped_bits_are_found_and_the_run_ends_with_those_of_an_undisturbed_one() {
    let run_with = |faults: &[&str]| {
        let folder = Folder::new();
        let always = ["--steps", "4", "--set", "sdc.recompute_every_steps=1"];
        train(&folder, "smoke", &[&["--device", "cuda"], &always[..], faults].concat()).expect(0);
        folder.record()
    };
    let undisturbed = run_with(&[]);
    assert_eq!(undisturbed["sdc"]["findings"], serde_json::json!([]));
    let gradient = ["--inject", "flip@step=2,rank=0,where=gradient"];
    let found = run_with(&gradient);
    assert_eq!(found["fingerprint"], undisturbed["fingerprint"]);
    let findings = found["sdc"]["findings"].as_array().unwrap();
    assert_eq!((findings.len(), &findings[0]["step"]), (1, &2.into()), "{findings:#?}");
    assert_eq!((&findings[0]["rank"], &findings[0]["repeat"]), (&0.into(), &"transient".into()));
}

#[test]
fn a_loss_that_is_not_finite_stops_the_run_before_the_update() {
    let folder = Folder::new();
    let flags = ["--device", "cuda", "--steps", "3", "--set", "schedule.learning_rate=1e30"];
    train(&folder, "smoke", &flags).expect(4).expect_stderr(&["is not finite"]);
}

/// Fails a launch in the second of two micro-batches of step 2.
#[test]
fn a_launch_that_fails_ends_the_run_and_names_step_and_kernel() {
    let folder = Folder::new();
    let mut command = train_command(&folder, "smoke", &["--device", "cuda", "--steps", "3"]);
    command.env("EMULATED_CUDA_FAIL_LAUNCH", "embedding_forward:4");
    let said = ["step 2", "launching embedding_forward failed: ", "LAUNCH_OUT_OF_RESOURCES"];
    let finished = finish(command).expect(1).expect_stderr(&said);
    assert!(!finished.stderr.contains("panicked"), "{}", finished.stderr);
    let reason = folder.record()["reason"].clone();
    assert_eq!((&reason["rank"], &reason["step"]), (&0.into(), &2.into()), "{reason}");
    assert_eq!(reason["phase"], "forward", "{reason}");
    assert!(reason["text"].as_str().unwrap().contains("embedding_forward"), "{reason}");
    assert_eq!(folder.losses().len(), 1);
}

/// Fault of a machine, and the words that report it.
struct Unfit {
    variables: Vec<(&'static str, String)>,
    said: &'static [&'static str],
}

#[test]
fn a_machine_that_is_not_fit_is_one_sentence_and_exit_code_3() {
    // Without a file of this name the machine's own driver would be looked for.
    let broken = Folder::new();
    std::fs::create_dir(broken.path()).unwrap();
    std::fs::write(broken.path().join("libcuda.so.1"), "").unwrap();
    let broken = broken.text();
    let set = |name, value: &str| vec![(name, value.to_owned())];
    let cases = [
        Unfit { variables: set("YARDSTICK_CUDA_PATH", &broken), said: &["no CUDA driver"] },
        Unfit { variables: set("EMULATED_CUDA_DEVICES", "0"), said: &["sees no device"] },
        Unfit {
            variables: set("EMULATED_CUDA_DRIVER_VERSION", "11080"),
            said: &["expected a driver for CUDA 12.0 or newer", "11.8"],
        },
        Unfit {
            variables: set("EMULATED_CUDA_COMPUTE_CAPABILITY", "75"),
            said: &["has compute capability 7.5, expected 8.0 or higher"],
        },
        Unfit {
            variables: set("EMULATED_CUDA_MEMORY_BYTES", "4194304"),
            said: &["the device's memory does not suffice", "hint:"],
        },
    ];
    for Unfit { variables, said } in cases {
        let folder = Folder::new();
        let mut command =
            yardstick(&["train", "--device", "cuda", "--steps", "1", "--out", &folder.text()]);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        let finished = finish(command).expect(3).expect_stderr(said);
        assert!(!finished.stderr.contains("panicked"), "{}", finished.stderr);
    }
}

/// The libraries that the dynamic loader opens at the start of the program.
#[test]
fn the_program_links_no_library_of_cuda() {
    let program = env!("CARGO_BIN_EXE_yardstick");
    let headers = finish({
        let mut command = Command::new("readelf");
        command.args(["--dynamic", program]);
        command
    });
    let needed: Vec<_> = headers.stdout.lines().filter(|line| line.contains("(NEEDED)")).collect();
    assert!(needed.iter().any(|line| line.contains("libc.so")), "{needed:?}");
    for library in ["cuda", "nvrtc", "cublas", "nccl"] {
        assert!(!needed.iter().any(|line| line.contains(library)), "{needed:?}");
    }
}

#[test]
fn what_a_device_cannot_do_is_a_usage_error() {
    let folder = Folder::new();
    let out = text(&folder.path());
    let start = ["train", "--device", "cuda", "--steps", "1", "--out", &out];
    let refused = |flags: &[&str], said: &[&str]| {
        run(&[&start[..], flags].concat()).expect(2).expect_stderr(said);
    };
    refused(&["--engine", "candle"], &["run.engine = candle", "fused with run.device = cuda"]);
    refused(&["--set", "model.feed_forward=500"], &["model.feed_forward = 500", "multiple of 8"]);
}

/// The same products as the processor, each with a time, and a rate of the device to compare with.
#[test]
fn a_profile_has_the_products_of_the_processor_and_changes_no_loss() {
    for workload in ["smoke", "llama-smoke"] {
        let [plain, profiled, processor] = [(); 3].map(|()| Folder::new());
        let cuda = ["--device", "cuda", "--steps", "3"];
        train(&plain, workload, &cuda).expect(0);
        let profile = ["--profile-step", "2", "--set", "telemetry.matmul_probe=24ms"];
        let flags = [&cuda[..], &profile].concat();
        let found = train(&profiled, workload, &flags).expect(0).stdout;
        assert_eq!(plain.losses(), profiled.losses());
        let exact = train(&processor, workload, &["--steps", "3", "--profile-step", "2"]);
        let exact = exact.expect(0).stdout;
        for role in ["attn_qkv", "attn_out", "mlp_up", "mlp_down", "head"] {
            for kind in ["forward", "dX", "dW"] {
                let name = format!("{role} {kind}");
                let found = profile_row(&found, &name);
                let exact = profile_row(&exact, &name);
                assert_eq!((&found[0], &found[3]), (&exact[0], &exact[3]), "{name}");
                assert!(found[1].parse::<f64>().unwrap() > 0.0, "{name}: {found:?}");
            }
        }
        for name in ["attention forward", "norm backward", "cross-entropy", "AdamW"] {
            let cells = profile_row(&found, name);
            assert!(cells[1].parse::<f64>().unwrap() > 0.0, "{name}: {cells:?}");
        }
        let phases = &profiled.record()["profile"]["phases_ns"];
        let wall_ns = profiled.steps(0)[1].0["wall_ns"].as_u64();
        let sum_ns = phases.as_object().unwrap().values().map(|ns| ns.as_u64().unwrap()).sum();
        assert_eq!(wall_ns, Some(sum_ns), "by the events of that step: {phases}");
        let record = profiled.record();
        let measured = &record["mfu_measured"];
        let share = measured["causal"].as_f64().unwrap();
        // Steps may be disturbed less than the measurement of the device's rate.
        let [made, possible] =
            [&record["rank_flops_per_second"]["causal"], &measured["matmul_flops_per_second"]]
                .map(|rate| rate.as_f64().unwrap());
        assert!(share > 0.0 && (share * possible / made - 1.0).abs() < 1e-9, "{measured}");
    }
}

/// Losses in bf16 within the bound of those of the processor in f32, and the finished run.
pub(crate) fn bf16_run_agrees(
    exact: &Folder,
    set: &dyn Fn(&mut Command),
    flags: &[&str],
) -> Folder {
    let found = Folder::new();
    let bf16 = ["--device", "cuda", "--set", "precision.compute=bf16", "--steps", WIDE_STEPS];
    let mut command = train_command(&found, "smoke", &[&bf16, flags].concat());
    set(&mut command);
    finish(command).expect(0);
    for (exact, found) in exact.losses().iter().zip(found.losses()) {
        let difference = exact.relative_difference(found);
        assert!(difference < BF16_BOUND, "{flags:?}, step {}: {difference:e}", exact.step);
    }
    found
}

#[test]
fn wgmma_has_the_losses_of_the_processor() {
    let heads = ["--set", "model.heads=2"];
    let exact = Folder::new();
    train(&exact, "smoke", &[&heads[..], &["--steps", WIDE_STEPS]].concat()).expect(0);
    let flags = [&heads[..], &["--set", "run.attention=wgmma"]].concat();
    let record = bf16_run_agrees(&exact, &|_| {}, &flags).record();
    assert_eq!(record["run"]["run"]["attention"], "wgmma");
    assert!(!record["anomalies"].to_string().contains("pass of its own"), "{record:#}");
}
