//! Parity tests of both families against Hugging Face transformers: the same weights and tokens
//! must give the same loss, gradients, and losses of twenty AdamW steps. `bench/parity.py` writes
//! the golden numbers.

#![allow(clippy::print_stdout, reason = "bench/parity.py parses the output")]

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use collectives::{Bucket, BucketPlan, Operation, Single};
use device::{Allocator, Device, View, ViewMut};
use models::candle::Candle;
use models::fused::Fused;
use models::layout::Tensor;
use models::workload::Compute;
use models::{Batch, Layout, MicroBatch, Model, Pass, StepSink, Sums};
use safetensors::SafeTensors;
use serde::Deserialize;

use super::Import;
use super::tensor_mapping::{hf_tensors, transpose};
use crate::config::{Config, Sharded};
use crate::mesh::Mesh;
use crate::step::Waits;
use crate::step::optimizer::Optimizer;
use crate::step::shard::{Owner, Shard};
use crate::step::state::State;
use crate::timing::phase::PhaseClock;
use crate::timing::tallies::Tallies;

/// Bounds in f32: ten times the measured errors, because other processors sum in another order.
const F32_BOUNDS: Errors =
    Errors { loss: 5e-7, tensor: 5e-6, scale: 2e-6, whole: 3e-6, steps: 2e-6 };
/// Bounds in bf16, against PyTorch's f32: two to four times the measured errors.
const BF16_BOUNDS: Errors =
    Errors { loss: 8e-5, tensor: 0.025, scale: 0.01, whole: 0.015, steps: 2e-3 };

/// Largest errors of an engine.
#[derive(Clone, Copy, Default)]
struct Errors {
    /// Relative error of the first loss.
    loss: f64,
    /// Relative L2 error of any tensor's first gradient.
    tensor: f64,
    /// Scale error of any tensor's first gradient: its projection onto PyTorch's gradient, relative
    /// to that, minus 1. Rounding errors cancel in it, so it shows a wrong factor where `tensor`
    /// cannot.
    scale: f64,
    /// Relative L2 error of the whole first gradient.
    whole: f64,
    /// Relative error of any of twenty steps' losses.
    steps: f64,
}

impl Errors {
    /// Returns the largest error relative to its bound.
    fn share_of(self, bounds: Self) -> f64 {
        let shares = [
            self.loss / bounds.loss,
            self.tensor / bounds.tensor,
            self.scale / bounds.scale,
            self.whole / bounds.whole,
            self.steps / bounds.steps,
        ];
        shares.into_iter().fold(0.0, worse)
    }
}

/// Returns the larger of two errors; a NaN is the largest.
fn worse(one: f64, other: f64) -> f64 {
    if one.is_nan() || one >= other { one } else { other }
}

/// Results of PyTorch.
#[derive(Deserialize)]
struct Numbers {
    sequences: usize,
    sequence_tokens: usize,
    losses: Vec<f64>,
    /// Batches of (B, T + 1), which steps use in turn.
    tokens: Vec<Vec<u32>>,
}

impl Numbers {
    fn inputs(&self, step: usize) -> Vec<u32> {
        self.rows(step).flat_map(|row| row[..self.sequence_tokens].to_vec()).collect()
    }

    fn targets(&self, step: usize) -> Vec<u32> {
        self.rows(step).flat_map(|row| row[1..].to_vec()).collect()
    }

    fn rows(&self, step: usize) -> impl Iterator<Item = &[u32]> {
        self.tokens[step % self.tokens.len()].chunks_exact(self.sequence_tokens + 1)
    }
}

/// Collects the gradients of one micro-batch.
struct FlatGradient<'a> {
    layout: &'a Layout,
    values: Vec<f32>,
}

impl StepSink for FlatGradient<'_> {
    fn gradient(&mut self, segment: usize) -> Result<ViewMut<'_, f32>, models::Error> {
        Ok((&mut self.values[self.layout.segments()[segment].range.clone()]).into())
    }

    fn complete(&mut self, _segment: usize) -> Result<(), models::Error> {
        Ok(())
    }

    fn enter(&mut self, _pass: Pass) {}
}

/// Folder of golden numbers.
struct Case {
    folder: PathBuf,
    config: Config,
    layout: Layout,
    numbers: Numbers,
}

impl Case {
    fn open(folder: PathBuf) -> Self {
        let config = Config::load(&folder.join("workload.toml").to_string_lossy(), &[]).unwrap();
        let numbers = fs::read(folder.join("numbers.json")).unwrap();
        let numbers = serde_json::from_slice(&numbers).unwrap();
        let layout = Layout::new(&config.workload.model);
        Self { folder, config, layout, numbers }
    }

    /// Trains with an engine from the same weights and tokens, and compares.
    fn errors(&self, engine: &mut dyn Model, compute: Compute) -> Errors {
        let workload = &self.config.workload;
        let segments = self.layout.segments();
        let all = Bucket { range: 0..self.layout.len(), segments: 0..segments.len() };
        let starts = segments.iter().map(|segment| segment.range.start).collect();
        let plan = BucketPlan { starts, len: self.layout.len(), buckets: vec![all] };
        let shard = Shard::new(&self.layout, &plan, Owner::ALONE, Sharded::None);
        let single = Single::new();
        let alone = Mesh::flat(&single, &single).dimensions(Duration::from_secs(10));
        let allocator = Allocator::host();
        let layout = self.layout.clone();
        let mut state = State::new(layout, shard, compute, None, alone, &allocator).unwrap();
        let clock = PhaseClock::new();
        let tallies = RefCell::new(Tallies::new(&alone, Operation::AllReduceSum, false));
        let waits = Waits { tallies: &tallies, clock: &clock, dimensions: alone };
        let import = Import::open(&self.folder, &workload.model).unwrap();
        let mut reader = import.reader(&workload.model);
        let read =
            |tensor: &Tensor, first, elements: &mut [f32]| reader.read(tensor, first, elements);
        state.set_weights(&Device::Host, read).unwrap();
        let mut ops = models::ops::step::on(&Device::Host).unwrap();
        state.all_gather_weights(waits, &*ops).unwrap();
        let optimizer = Optimizer::new(workload.optimizer, workload.schedule.clone(), &self.layout);
        let targets = (self.numbers.sequences * self.numbers.sequence_tokens) as f64;
        let mut errors = Errors::default();
        let losses = &self.numbers.losses;
        assert!(losses[losses.len() - 1] < 0.9 * losses[0], "the loss must fall: {losses:?}");
        for (step, expected) in losses.iter().enumerate() {
            let batch =
                Batch { inputs: &self.numbers.inputs(step), targets: &self.numbers.targets(step) };
            let values = vec![0.0; self.layout.len()];
            let mut gradient = FlatGradient { layout: &self.layout, values };
            let scale = (1.0 / targets) as f32;
            let loss = engine.train_on_host(
                &mut state.arriving(waits).1,
                batch,
                scale,
                Sums::Write,
                &mut gradient,
            );
            let loss = loss.unwrap() / targets;
            let error = (loss / expected - 1.0).abs();
            if step == 0 {
                errors = Errors { loss: error, ..self.gradient_errors(&gradient.values) };
            }
            errors.steps = worse(errors.steps, error);
            let values = View::from(gradient.values.as_slice());
            let mut sums = [0.0; 2];
            ops.add_sums((&mut sums).into(), values.into(), 0).unwrap();
            let update = optimizer.update(step as u64, sums[1].sqrt());
            state.update(&update, &|bucket| values.slice(bucket.own.clone()), &*ops).unwrap();
        }
        errors
    }

    /// Returns the errors of a gradient: of the worst tensor, and of all elements together.
    fn gradient_errors(&self, gradient: &[f32]) -> Errors {
        let bytes = fs::read(self.folder.join("gradients.safetensors")).unwrap();
        let golden = SafeTensors::deserialize(&bytes).unwrap();
        let mut worst = Errors::default();
        let mut compared = 0;
        let mut all_found = Vec::new();
        let mut all_exact = Vec::new();
        for tensor in self.layout.tensors() {
            for theirs in hf_tensors(&self.config.workload.model, tensor) {
                let exact = golden.tensor(&theirs.name).unwrap();
                assert_eq!(exact.shape(), theirs.shape, "{}", theirs.name);
                let exact = exact.data().as_chunks::<4>().0.iter();
                let exact: Vec<f32> = exact.map(|&bytes| f32::from_le_bytes(bytes)).collect();
                let mut found = gradient[tensor.range.clone()][theirs.elements()].to_vec();
                if theirs.is_transposed {
                    let ours = found.clone();
                    transpose(&mut found, &ours, theirs.columns);
                }
                worst.tensor = worse(worst.tensor, relative_error(&found, &exact));
                worst.scale = worse(worst.scale, scale_error(&found, &exact));
                all_found.extend(found);
                all_exact.extend(exact);
                compared += 1;
            }
        }
        assert_eq!(compared, golden.len(), "every golden tensor was compared");
        Errors { whole: relative_error(&all_found, &all_exact), ..worst }
    }
}

/// Returns |found - exact| / |exact| in the Euclidean norm.
fn relative_error(found: &[f32], exact: &[f32]) -> f64 {
    let pairs = found.iter().zip(exact).map(|(f, e)| (f64::from(*f), f64::from(*e)));
    let mut error = 0.0;
    let mut size = 0.0;
    for (found, exact) in pairs {
        error += (found - exact).powi(2);
        size += exact.powi(2);
    }
    (error / size).sqrt()
}

/// Returns |found . exact / exact . exact - 1|.
fn scale_error(found: &[f32], exact: &[f32]) -> f64 {
    let product = |values: &[f32]| -> f64 {
        values.iter().zip(exact).map(|(v, e)| f64::from(*v) * f64::from(*e)).sum()
    };
    (product(found) / product(exact) - 1.0).abs()
}

/// Engine, and the format that it computes in.
struct Engine {
    name: &'static str,
    compute: Compute,
    model: Box<dyn Model>,
}

/// Returns every engine in every format.
fn engines(case: &Case) -> [Engine; 3] {
    let model = &case.config.workload.model;
    let numbers = &case.numbers;
    let batch = MicroBatch { sequences: numbers.sequences, tokens: numbers.sequence_tokens };
    let layout = || case.layout.clone();
    let allocator = Allocator::host();
    let candle = Candle::new(model, layout(), batch, &allocator).unwrap();
    let fused = |compute| {
        let engine = Fused::new(model, layout(), batch, compute, &allocator).unwrap();
        Engine { name: "fused", compute, model: Box::new(engine) }
    };
    [
        Engine { name: "candle", compute: Compute::F32, model: Box::new(candle) },
        fused(Compute::F32),
        fused(Compute::Bf16),
    ]
}

#[test]
fn engines_agree_with_transformers() {
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/parity");
    let root = std::env::var_os("YARDSTICK_PARITY").map_or(committed, PathBuf::from);
    let mut folders: Vec<_> = fs::read_dir(root).unwrap().map(|e| e.unwrap().path()).collect();
    folders.sort();
    assert!(folders.len() >= 4, "{folders:?}");
    let mut shares = Vec::new();
    for case in folders.into_iter().map(Case::open) {
        let name = case.folder.file_name().unwrap().to_string_lossy().into_owned();
        for Engine { name: engine, compute, mut model } in engines(&case) {
            let found = case.errors(&mut *model, compute);
            let share = found.share_of(match compute {
                Compute::F32 => F32_BOUNDS,
                Compute::Bf16 => BF16_BOUNDS,
            });
            let Errors { loss, tensor, scale, whole, steps } = found;
            println!(
                "parity {name} {engine} {compute}: errors: loss {loss:.1e}, gradient {tensor:.1e} \
                 of a tensor, {scale:.1e} of its scale and {whole:.1e} as a whole, steps \
                 {steps:.1e}; share of the bound {share:.4}"
            );
            shares.push((share, format!("{name} with {engine} in {compute}")));
        }
    }
    let failed: Vec<_> =
        shares.iter().filter(|(share, _)| share.is_nan() || *share > 1.0).collect();
    assert!(failed.is_empty(), "{failed:?}");
}
