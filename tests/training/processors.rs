//! Processors with fewer instruction sets: other kernels, the same training, an anomaly in the
//! record.
//!
//! QEMU runs the binary under test in user mode as a processor without AVX2 and, from QEMU 7.2 on,
//! as one with it.

use std::process::Command;

use support::{Folder, Variant, finish, yardstick};

/// An emulated processor.
struct Processor {
    /// QEMU's name of it.
    name: &'static str,
    /// The micro-kernels that are expected to be chosen.
    kernel: &'static str,
}

fn processors() -> impl Iterator<Item = Processor> {
    let haswell = emulates_avx2().then_some(Processor { name: "Haswell", kernel: "fma" });
    haswell.into_iter().chain([Processor { name: "Nehalem", kernel: "scalar" }])
}

/// Returns whether this QEMU is version 7.2 or newer.
fn emulates_avx2() -> bool {
    let mut command = Command::new("qemu-x86_64");
    command.arg("--version");
    let text = finish(command).expect(0).stdout;
    let version = text.split_once("version ").unwrap().1;
    let numbers = version.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap());
    [7_u32, 2].into_iter().le(numbers.take(2))
}

/// Emulated floating-point arithmetic is slow: one sequence of more than a block of attention.
const SMALL: [&str; 4] = [
    "model.layers=1",
    "batch.micro_sequences=1",
    "batch.global_sequences=1",
    "batch.sequence_tokens=72",
];
/// The second step uses updated weights.
const STEPS: &str = "2";

/// Trains the first steps of a variant, with the command that `launch` makes of the arguments.
fn train(variant: Variant, launch: impl Fn(&[&str]) -> Command) -> Folder {
    let folder = Folder::new();
    let out = folder.text();
    let small = SMALL.map(|setting| ["--set", setting]);
    let train = ["train", "--steps", STEPS, "--threads", "2", "--out", &out];
    finish(launch(&[&train[..], &variant.flags(), small.as_flattened()].concat())).expect(0);
    folder
}

fn emulated(processor: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("qemu-x86_64");
    command.args(["-cpu", processor, env!("CARGO_BIN_EXE_yardstick")]).args(arguments);
    command
}

#[test]
fn other_processors_train_to_the_same_losses() {
    // GPT in f32 and Llama in bf16.
    for variant in [0, 12].map(|index| Variant::all()[index]) {
        let native = train(variant, yardstick);
        for Processor { name, kernel } in processors() {
            let run = train(variant, |arguments| emulated(name, arguments));
            let record = run.record();
            assert_eq!(record["environment"]["matmul_kernel"], kernel, "{variant:?}");
            assert_eq!(record["ranks"][0]["matmul_kernel"], kernel, "{variant:?}");
            let format = if variant.is_bf16 { "bf16" } else { "f32" };
            let fallback = format!("matmul in {format} falls back to {kernel} on rank 0; ");
            let anomalies = record["anomalies"].as_array().unwrap().iter();
            let mut texts = anomalies.map(|anomaly| anomaly["text"].as_str().unwrap());
            assert!(texts.any(|text| text.starts_with(&fallback)), "{record}");
            for (native, emulated) in native.losses().into_iter().zip(run.losses()) {
                let error = native.relative_difference(emulated);
                assert!(error < variant.rounding(), "{variant:?} on {name}: {error:e}");
            }
            assert_eq!(run.losses().len().to_string(), STEPS);
        }
    }
}
