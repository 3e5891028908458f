//! Both families against numbers of Hugging Face transformers that `bench/parity.py` made: from the
//! same weights and tokens the same loss, gradients, and losses of twenty AdamW steps.

#![allow(clippy::print_stdout, reason = "the script reads what the test found")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use collectives::{Bucket, BucketPlan, Single};
use models::candle::Candle;
use models::fused::Fused;
use models::workload::Compute;
use models::{Batch, Layout, Model, Pass, StepSink, Sums};
use safetensors::SafeTensors;
use serde::Deserialize;

use super::Import;
use super::pieces::{pieces, transpose};
use crate::config::Config;
use crate::optimizer::{Optimizer, own_squares};
use crate::schedule::learning_rate;
use crate::shard::Shard;
use crate::state::State;

/// In f32: ten times what was found, as other processors sum in other orders.
const F32_BOUNDS: Errors =
    Errors { loss: 5e-7, tensor: 5e-6, scale: 2e-6, whole: 3e-6, steps: 2e-6 };
/// In bf16, against PyTorch's f32: two to four times what was found.
const BF16_BOUNDS: Errors =
    Errors { loss: 8e-5, tensor: 0.025, scale: 0.01, whole: 0.015, steps: 2e-3 };

/// Largest errors of an engine.
#[derive(Clone, Copy, Default)]
struct Errors {
    /// Relative, of the first loss.
    loss: f64,
    /// Relative L2, of any tensor's first gradient.
    tensor: f64,
    /// Of any tensor's first gradient along PyTorch's: how far its length there is from 1. Rounding
    /// goes all ways, so this tells a wrong factor where `tensor` cannot.
    scale: f64,
    /// Relative L2, of the whole first gradient.
    whole: f64,
    /// Relative, of any of twenty steps' losses.
    steps: f64,
}

impl Errors {
    /// The largest, each as a share of what is allowed.
    fn share_of(self, most: Self) -> f64 {
        let shares = [
            self.loss / most.loss,
            self.tensor / most.tensor,
            self.scale / most.scale,
            self.whole / most.whole,
            self.steps / most.steps,
        ];
        shares.into_iter().fold(0.0, worse)
    }
}

/// The larger of two errors; a NaN is the largest.
fn worse(one: f64, other: f64) -> f64 {
    if one.is_nan() || one >= other { one } else { other }
}

/// What PyTorch found.
#[derive(Deserialize)]
struct Numbers {
    sequences: usize,
    sequence_tokens: usize,
    losses: Vec<f64>,
    /// By batch: (B, T + 1). Steps take them in turn.
    tokens: Vec<Vec<u32>>,
}

impl Numbers {
    /// Inputs and targets of one step.
    fn batch(&self, step: usize) -> (Vec<u32>, Vec<u32>) {
        let rows = || self.tokens[step % self.tokens.len()].chunks_exact(self.sequence_tokens + 1);
        let inputs = rows().flat_map(|row| row[..self.sequence_tokens].to_vec()).collect();
        (inputs, rows().flat_map(|row| row[1..].to_vec()).collect())
    }
}

/// A flat gradient.
struct Flat<'a> {
    layout: &'a Layout,
    values: Vec<f32>,
}

impl StepSink for Flat<'_> {
    fn gradient(&mut self, segment: usize) -> &mut [f32] {
        &mut self.values[self.layout.segments()[segment].range.clone()]
    }

    fn complete(&mut self, _segment: usize) {}

    fn enter(&mut self, _pass: Pass) {}
}

/// One golden folder.
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

    /// What an engine computes from the same weights and tokens, against what PyTorch did.
    fn errors(&self, engine: &mut dyn Model, compute: Compute) -> Errors {
        let workload = &self.config.workload;
        let segments = self.layout.segments();
        let all = Bucket { range: 0..self.layout.len(), segments: 0..segments.len() };
        let starts = segments.iter().map(|segment| segment.range.start).collect();
        let plan = BucketPlan { starts, len: self.layout.len(), buckets: vec![all] };
        let shard = Shard::new((&self.layout, &plan), (0, 1), false);
        let single = Single::new();
        let mut state = State::new(&shard, compute, &single, Instant::now()).unwrap();
        let mut weights = vec![0.0; self.layout.len()];
        let import = Import::open(&self.folder, &workload.model).unwrap();
        import.load(&workload.model, &self.layout, &mut weights).unwrap();
        state.set_weights(&shard, &weights);
        let optimizer = Optimizer::new(workload.optimizer, workload.schedule.clone(), &self.layout);
        let targets = (self.numbers.sequences * self.numbers.sequence_tokens) as f64;
        let mut errors = Errors::default();
        let losses = &self.numbers.losses;
        assert!(losses[losses.len() - 1] < 0.9 * losses[0], "the loss falls: {losses:?}");
        for (step, expected) in losses.iter().enumerate() {
            let (inputs, outputs) = self.numbers.batch(step);
            let batch = Batch { inputs: &inputs, targets: &outputs };
            let mut flat = Flat { layout: &self.layout, values: vec![0.0; self.layout.len()] };
            let scale = (1.0 / targets) as f32;
            let loss =
                engine.train(&mut state.engine_weights(), batch, scale, Sums::Write, &mut flat);
            let loss = loss.unwrap() / targets;
            let error = (loss / expected - 1.0).abs();
            if step == 0 {
                errors = Errors { loss: error, ..self.gradient_errors(&flat.values) };
            }
            errors.steps = worse(errors.steps, error);
            let rate = learning_rate(&workload.schedule, step as u64);
            let update =
                optimizer.update(step as u64, own_squares(&shard, &flat.values).sqrt(), rate);
            update.apply(&shard, &mut state, &flat.values).unwrap();
            engine.weights_changed();
        }
        errors
    }

    /// Of a gradient: the worst of all of their tensors, and that of all elements together.
    fn gradient_errors(&self, gradient: &[f32]) -> Errors {
        let bytes = fs::read(self.folder.join("gradients.safetensors")).unwrap();
        let theirs = SafeTensors::deserialize(&bytes).unwrap();
        let (mut worst, mut compared) = (Errors::default(), 0);
        let (mut all_found, mut all_exact) = (Vec::new(), Vec::new());
        for tensor in self.layout.tensors() {
            for piece in pieces(&self.config.workload.model, tensor) {
                let exact = theirs.tensor(&piece.name).unwrap();
                assert_eq!(exact.shape(), piece.shape, "{}", piece.name);
                let exact = exact.data().as_chunks::<4>().0.iter();
                let exact: Vec<f32> = exact.map(|&bytes| f32::from_le_bytes(bytes)).collect();
                let mut found = gradient[tensor.range.clone()][piece.elements()].to_vec();
                if piece.is_transposed {
                    let ours = found.clone();
                    transpose(&mut found, &ours, piece.columns);
                }
                worst.tensor = worse(worst.tensor, relative_error(&found, &exact));
                worst.scale = worse(worst.scale, scale_error(&found, &exact));
                all_found.extend(found);
                all_exact.extend(exact);
                compared += 1;
            }
        }
        assert_eq!(compared, theirs.len(), "every tensor of theirs is one of ours");
        Errors { whole: relative_error(&all_found, &all_exact), ..worst }
    }
}

/// |found - exact| / |exact| in the Euclidean norm.
fn relative_error(found: &[f32], exact: &[f32]) -> f64 {
    let pairs = found.iter().zip(exact).map(|(f, e)| (f64::from(*f), f64::from(*e)));
    let (error, size) =
        pairs.fold((0.0, 0.0), |(d, s), (f, e)| (d + (f - e).powi(2), s + e.powi(2)));
    (error / size).sqrt()
}

/// |found . exact / exact . exact - 1|.
fn scale_error(found: &[f32], exact: &[f32]) -> f64 {
    let product = |values: &[f32]| -> f64 {
        values.iter().zip(exact).map(|(v, e)| f64::from(*v) * f64::from(*e)).sum()
    };
    (product(found) / product(exact) - 1.0).abs()
}

/// Every engine that computes the model, in every format.
fn engines(case: &Case) -> Vec<(&'static str, Compute, Box<dyn Model>)> {
    let (model, numbers) = (&case.config.workload.model, &case.numbers);
    let (sequences, tokens) = (numbers.sequences, numbers.sequence_tokens);
    let candle = Candle::new(model, case.layout.clone(), sequences, tokens).unwrap();
    let fused = |compute| {
        let engine = Fused::new(model, case.layout.clone(), sequences, tokens, compute).unwrap();
        ("fused", compute, Box::new(engine) as Box<dyn Model>)
    };
    vec![("candle", Compute::F32, Box::new(candle)), fused(Compute::F32), fused(Compute::Bf16)]
}

#[test]
fn engines_compute_what_transformers_computes() {
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/parity");
    let root = std::env::var_os("YARDSTICK_PARITY").map_or(committed, PathBuf::from);
    let mut folders: Vec<_> = fs::read_dir(root).unwrap().map(|e| e.unwrap().path()).collect();
    folders.sort();
    assert!(folders.len() >= 4, "{folders:?}");
    let mut shares = Vec::new();
    for case in folders.into_iter().map(Case::open) {
        let name = case.folder.file_name().unwrap().to_string_lossy().into_owned();
        for (engine, compute, mut model) in engines(&case) {
            let found = case.errors(&mut *model, compute);
            let share = found.share_of(match compute {
                Compute::F32 => F32_BOUNDS,
                Compute::Bf16 => BF16_BOUNDS,
            });
            let Errors { loss, tensor, scale, whole, steps } = found;
            println!(
                "parity {name} {engine} {compute}: loss {loss:.1e}, gradient {tensor:.1e} of a \
                 tensor, {scale:.1e} along it and {whole:.1e} as a whole, steps {steps:.1e}, share \
                 of what is allowed {share:.4}"
            );
            shares.push((share, format!("{name} with {engine} in {compute}")));
        }
    }
    let wrong: Vec<_> = shares.iter().filter(|(share, _)| share.is_nan() || *share > 1.0).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}
