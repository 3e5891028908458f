//! The whole model against finite differences in f64, f32 and bf16 against f64, and repetition.

use std::ops::Range;

use device::{Allocator, View};
use half::bf16;

use super::{Flat, MICRO_BATCH, engine, families, layout, tokens, weights};
use crate::fused::Options;
use crate::network::host::HostOps;
use crate::network::{Network, ParameterRanges, Size, Source};
use crate::ops::testing::{on_threads, relative_error};
use crate::workload::Compute;
use crate::{Batch, Error, Model, ModelConfig, Sums, Weights};

impl Source<f64> for &[f64] {
    fn segment(&mut self, range: &Range<usize>) -> Result<View<'_, f64>, Error> {
        Ok(self[range.clone()].into())
    }
}

fn network(config: &ModelConfig) -> Network<HostOps<f64>> {
    let options = Options { threads: 2, ..Compute::F32.into() };
    let size = Size::new(config, MICRO_BATCH, options);
    let ranges = ParameterRanges::new(&layout(config), config);
    Network::new(&Allocator::host(), config, size, ranges).unwrap()
}

/// The loss in f64, and the gradient of a quarter of it.
fn exact_loss(
    config: &ModelConfig,
    mut weights: &[f64],
    batch: Batch<'_>,
    sink: &mut Flat<f64>,
) -> f64 {
    let mut loss = [0.0];
    let sum = (&mut loss).into();
    network(config).train(&mut weights, batch, 0.25, Sums::Write, sum, sink).unwrap();
    loss[0]
}

#[test]
fn every_gradient_of_every_parameter_agrees_with_finite_differences() {
    for config in families() {
        gradients_agree_with_finite_differences(&config);
    }
}

fn gradients_agree_with_finite_differences(config: &ModelConfig) {
    const STEP: f64 = 1e-5;
    const SCALE: f64 = 0.25;
    let (inputs, targets) = tokens();
    let batch = Batch { inputs: &inputs, targets: &targets };
    let mut network = network(config);
    let mut sink = Flat::new(config);
    let mut weights = weights::<f64>(config);
    let mut loss = [0.0];
    let loss = (&mut loss).into();
    network.train(&mut &weights[..], batch, SCALE, Sums::Write, loss, &mut sink).unwrap();
    for tensor in layout(config).tensors() {
        // All of the small tensors; a spread of a hundred elements of the large ones.
        let stride = tensor.range.len().div_ceil(100) | 1;
        let mut found = Vec::new();
        let mut differences = Vec::new();
        for i in tensor.range.clone().step_by(stride) {
            let before = weights[i];
            weights[i] = before + STEP;
            let above = network.evaluate(&mut &weights[..], batch).unwrap();
            weights[i] = before - STEP;
            let below = network.evaluate(&mut &weights[..], batch).unwrap();
            weights[i] = before;
            differences.push(SCALE * (above - below) / (2.0 * STEP));
            found.push(sink.gradients[i]);
        }
        assert!(differences.iter().any(|d| d.abs() > 1e-8), "{}: no influence", tensor.name);
        let error = relative_error(&found, &differences);
        assert!(error < 1e-6, "{}: relative error {error:e}", tensor.name);
    }
}

#[test]
fn no_gradient_is_missing_in_f32_and_all_agree_with_f64() {
    let (inputs, targets) = tokens();
    let batch = Batch { inputs: &inputs, targets: &targets };
    for config in families() {
        let mut exact = Flat::new(&config);
        let exact_weights = weights::<f64>(&config);
        let exact_loss = exact_loss(&config, &exact_weights, batch, &mut exact);
        let mut model = engine(&config, Compute::F32);
        let mut found = Flat::<f32>::new(&config);
        let weights = weights::<f32>(&config);
        let loss = model
            .train_on_host(&mut Weights::from(&weights[..]), batch, 0.25, Sums::Write, &mut found)
            .unwrap();
        assert!((loss - exact_loss).abs() < 1e-5 * exact_loss, "{loss} {exact_loss}");
        for tensor in layout(&config).tensors() {
            let gradient = &found.gradients[tensor.range.clone()];
            assert!(gradient.iter().any(|g| *g != 0.0), "{}: no gradient", tensor.name);
            let error = relative_error(gradient, &exact.gradients[tensor.range.clone()]);
            assert!(error < 2e-5, "{}: relative error {error:e}", tensor.name);
        }
        let evaluated = model.evaluate(&mut Weights::from(&weights[..]), batch).unwrap();
        assert_eq!(evaluated.to_bits(), loss.to_bits());
    }
}

/// Against f64 from the same rounded weights: what is left is the rounding of activations, 2^-9
/// each, and of their gradients.
#[test]
fn gradients_in_bf16_agree_with_f64_within_its_rounding() {
    let (inputs, targets) = tokens();
    let batch = Batch { inputs: &inputs, targets: &targets };
    for config in families() {
        let rounded: Vec<bf16> = weights::<f32>(&config).into_iter().map(bf16::from_f32).collect();
        let exact_weights: Vec<f64> = rounded.iter().map(|weight| weight.to_f64()).collect();
        let mut exact = Flat::new(&config);
        let exact_loss = exact_loss(&config, &exact_weights, batch, &mut exact);
        let mut model = engine(&config, Compute::Bf16);
        let mut found = Flat::<f32>::new(&config);
        let loss = model
            .train_on_host(&mut Weights::from(&rounded[..]), batch, 0.25, Sums::Write, &mut found)
            .unwrap();
        assert!((loss - exact_loss).abs() < 3e-3 * exact_loss, "{loss} {exact_loss}");
        for tensor in layout(&config).tensors() {
            let gradient = &found.gradients[tensor.range.clone()];
            let error = relative_error(gradient, &exact.gradients[tensor.range.clone()]);
            assert!(error < 0.03, "{}: relative error {error:e}", tensor.name);
        }
        let evaluated = model.evaluate(&mut Weights::from(&rounded[..]), batch).unwrap();
        assert_eq!(evaluated.to_bits(), loss.to_bits());
    }
}

#[test]
fn gradients_accumulate_and_repeat_bit_for_bit_on_any_threads() {
    for config in families() {
        for compute in [Compute::F32, Compute::Bf16] {
            repeats_on_any_threads(&config, compute);
        }
    }
}

fn repeats_on_any_threads(config: &ModelConfig, compute: Compute) {
    let (inputs, targets) = tokens();
    let weights = weights::<f32>(config);
    let rounded: Vec<bf16> = weights.iter().map(|&weight| bf16::from_f32(weight)).collect();
    let weights = || match compute {
        Compute::F32 => Weights::from(&weights[..]),
        Compute::Bf16 => Weights::from(&rounded[..]),
    };
    let run = |threads: usize| {
        on_threads(threads, || {
            let batch = Batch { inputs: &inputs, targets: &targets };
            let mut model = engine(config, compute);
            let mut sink = Flat::<f32>::new(config);
            let loss =
                model.train_on_host(&mut weights(), batch, 0.5, Sums::Write, &mut sink).unwrap();
            let once = sink.gradients.clone();
            sink.begin_micro_batch();
            model.train_on_host(&mut weights(), batch, 0.5, Sums::Add, &mut sink).unwrap();
            let twice: Vec<f64> = once.iter().map(|&g| 2.0 * f64::from(g)).collect();
            assert!(relative_error(&sink.gradients, &twice) < 1e-6);
            (loss.to_bits(), once, sink.gradients)
        })
    };
    let one = run(1);
    for threads in [1, 2, 3] {
        assert!(run(threads) == one, "{compute} on {threads} threads");
    }
}

#[test]
fn written_gradients_replace_what_is_there_and_leave_padding_alone() {
    let (inputs, targets) = tokens();
    let batch = Batch { inputs: &inputs, targets: &targets };
    for config in families() {
        let weights = weights::<f32>(&config);
        let train = |there: f32| {
            let mut sink = Flat::<f32>::new(&config);
            sink.gradients.fill(there);
            let mut model = engine(&config, Compute::F32);
            model
                .train_on_host(&mut Weights::from(&weights[..]), batch, 0.5, Sums::Write, &mut sink)
                .unwrap();
            sink.gradients
        };
        let expected = train(0.0);
        let mut replaced = vec![7.5; layout(&config).len()];
        for tensor in layout(&config).tensors() {
            let range = tensor.range.clone();
            replaced[range.clone()].copy_from_slice(&expected[range]);
        }
        assert!(train(7.5) == replaced, "{:?}", config.family);
    }
}
