//! Lesser processors than the best: other instructions, the same training, told in the record.
//!
//! QEMU runs the binary under test in user mode as a processor without AVX2 and, from QEMU 7.2 on,
//! as one with it.

#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![cfg(target_arch = "x86_64")]

mod support;

use std::process::Command;

use support::{Folder, Kind, finish, yardstick};

/// What QEMU calls a processor, and the micro-kernels that it is to get.
fn processors() -> impl Iterator<Item = (&'static str, &'static str)> {
    let haswell = emulates_avx2().then_some(("Haswell", "fma"));
    haswell.into_iter().chain([("Nehalem", "scalar")])
}

/// Whether this QEMU is version 7.2 or newer.
fn emulates_avx2() -> bool {
    let mut command = Command::new("qemu-x86_64");
    command.arg("--version");
    let text = finish(command).expect(0).stdout;
    let version = text.split_once("version ").unwrap().1;
    let numbers = version.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap());
    [7_u32, 2].into_iter().le(numbers.take(2))
}

/// Emulated floating-point numbers are slow: one sequence of more than a block of attention.
const SMALL: [&str; 4] = [
    "model.layers=1",
    "batch.micro_sequences=1",
    "batch.global_sequences=1",
    "batch.sequence_tokens=72",
];
/// The second step's loss is of updated weights.
const STEPS: &str = "2";

/// The first steps of a kind, by a command that gets the arguments of `yardstick`.
fn train(kind: Kind, launch: impl Fn(&[&str]) -> Command) -> Folder {
    let folder = Folder::new();
    let out = folder.text();
    let small = SMALL.map(|setting| ["--set", setting]);
    let first = ["train", "--steps", STEPS, "--threads", "2", "--out", &out];
    finish(launch(&[&first[..], &kind.flags(), small.as_flattened()].concat())).expect(0);
    folder
}

fn emulated(processor: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("qemu-x86_64");
    command.args(["-cpu", processor, env!("CARGO_BIN_EXE_yardstick")]).args(arguments);
    command
}

#[test]
fn lesser_processors_train_alike() {
    for kind in Kind::all().into_iter().filter(|&kind| kind == kind.plain()) {
        let native = train(kind, yardstick);
        for (processor, kernel) in processors() {
            let run = train(kind, |arguments| emulated(processor, arguments));
            let record = run.record();
            assert_eq!(record["environment"]["matmul_kernel"], kernel, "{kind:?}");
            assert_eq!(record["ranks"][0]["matmul_kernel"], kernel, "{kind:?}");
            let format = if kind.is_bf16 { "bf16" } else { "f32" };
            let told = format!("matmul in {format} falls back to {kernel} on rank 0, ");
            let anomalies = record["anomalies"].as_array().unwrap().iter();
            let mut texts = anomalies.map(|anomaly| anomaly["text"].as_str().unwrap());
            assert!(texts.any(|text| text.starts_with(&told)), "{record}");
            let losses = native.steps(0).into_iter().zip(run.steps(0));
            for (native, emulated) in losses {
                let (native, emulated) = (native.loss(), emulated.loss());
                let error = (native - emulated).abs() / native;
                assert!(error < kind.rounding(), "{kind:?} on {processor}: {error:e}");
            }
            assert_eq!(run.steps(0).len().to_string(), STEPS);
        }
    }
}
