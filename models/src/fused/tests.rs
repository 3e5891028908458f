//! The whole model against finite differences in f64, and f32 against f64.

use std::ops::Range;

use half::bf16;

use super::network::{Network, Sink, Source};
use super::places::Places;
use super::size::Size;
use super::{Fused, activation_bytes};
use crate::config::{Family, Llama, RopeScaling};
use crate::ops::Float;
use crate::ops::testing::{on_threads, relative_error, uniform};
use crate::workload::Compute;
use crate::{Batch, Error, Layout, Model, ModelConfig, Pass, StepSink, Sums};
use crate::{WeightSource, Weights};

const SEQUENCES: usize = 2;
const TOKENS: usize = 7;

/// Both families; heads tied and not; K below H; lengths that fill no vector.
pub(super) fn families() -> [ModelConfig; 3] {
    let scaling = RopeScaling {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_context: 4,
    };
    let grouped = Llama { key_value_heads: 1, ..Llama::plain(3) };
    let tied = Llama { tied: true, rope_scaling: Some(scaling), ..Llama::plain(3) };
    [Family::Gpt, Family::Llama(grouped), Family::Llama(tied)].map(|family| ModelConfig {
        family,
        layers: 2,
        width: 24,
        heads: 3,
        feed_forward: 80,
        vocabulary: 37,
        context: 9,
    })
}

/// A layout with gaps between the segments, as a bucket plan makes them.
pub(super) fn layout(config: &ModelConfig) -> Layout {
    let tight = Layout::new(config);
    let starts: Vec<usize> =
        tight.segments().iter().enumerate().map(|(i, s)| s.range.start + 256 * i).collect();
    tight.place(&starts, tight.len() + 256 * starts.len())
}

/// Norm weights around one, everything else around zero, nothing zero.
pub(super) fn weights<T: Float>(config: &ModelConfig) -> Vec<T> {
    let layout = layout(config);
    let noise: Vec<f64> = uniform(layout.len(), 1);
    let mut weights = vec![T::ZERO; layout.len()];
    for tensor in layout.tensors() {
        let center = if tensor.init == crate::layout::Init::Ones { 1.0 } else { 0.0 };
        for i in tensor.range.clone() {
            weights[i] = T::from_f64(center + 0.3 * noise[i]);
        }
    }
    weights
}

pub(super) fn tokens() -> (Vec<u32>, Vec<u32>) {
    let stream: Vec<u32> = (0..SEQUENCES * TOKENS + 1).map(|i| (i * i * 5 % 37) as u32).collect();
    (stream[..SEQUENCES * TOKENS].to_vec(), stream[1..].to_vec())
}

#[derive(Debug, PartialEq)]
enum Event {
    Enter(Pass),
    Complete(usize),
}

/// Keeps gradients in a flat buffer, and what it is told.
pub(super) struct Flat<T> {
    layout: Layout,
    pub(super) gradients: Vec<T>,
    events: Vec<Event>,
}

impl<T: Float> Flat<T> {
    pub(super) fn new(config: &ModelConfig) -> Self {
        let layout = layout(config);
        Self { gradients: vec![T::ZERO; layout.len()], layout, events: Vec::new() }
    }

    /// Before another micro-batch.
    pub(super) fn begin_again(&mut self) {
        self.events.clear();
    }
}

impl Source<f64> for &[f64] {
    fn segment(&mut self, range: &Range<usize>) -> Result<&[f64], Error> {
        Ok(&self[range.clone()])
    }
}

impl<T: Float> Sink<T> for Flat<T> {
    fn gradient(&mut self, segment: usize) -> &mut [T] {
        assert!(!self.events.contains(&Event::Complete(segment)), "segment {segment} is complete");
        &mut self.gradients[self.layout.segments()[segment].range.clone()]
    }

    fn complete(&mut self, segment: usize) {
        self.events.push(Event::Complete(segment));
    }

    fn enter(&mut self, pass: Pass) {
        self.events.push(Event::Enter(pass));
    }
}

impl StepSink for Flat<f32> {
    fn gradient(&mut self, segment: usize) -> &mut [f32] {
        Sink::gradient(self, segment)
    }

    fn complete(&mut self, segment: usize) {
        Sink::complete(self, segment);
    }

    fn enter(&mut self, pass: Pass) {
        Sink::enter(self, pass);
    }
}

fn network<T: Float>(config: &ModelConfig) -> Network<T> {
    let size = Size::new(config, (SEQUENCES, TOKENS), Compute::F32.into(), 2);
    Network::new(config, size, Places::new(&layout(config), config))
}

/// The loss in f64, and the gradient of a quarter of it.
fn exact_loss(
    config: &ModelConfig,
    mut weights: &[f64],
    batch: Batch<'_>,
    sink: &mut Flat<f64>,
) -> f64 {
    network(config).train(&mut weights, batch, (0.25, Sums::Write), sink).unwrap()
}

fn engine(config: &ModelConfig, compute: Compute) -> Fused {
    Fused::new(config, layout(config), SEQUENCES, TOKENS, compute).unwrap()
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
    let (mut network, mut sink) = (network::<f64>(config), Flat::new(config));
    let mut weights = weights::<f64>(config);
    network.train(&mut &weights[..], batch, (SCALE, Sums::Write), &mut sink).unwrap();
    for tensor in layout(config).tensors() {
        // All of the small tensors; a spread of a hundred elements of the large ones.
        let stride = tensor.range.len().div_ceil(100) | 1;
        let (mut found, mut differences) = (Vec::new(), Vec::new());
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
        let loss =
            model.train(&mut Weights::F32(&weights), batch, 0.25, Sums::Write, &mut found).unwrap();
        assert!((loss - exact_loss).abs() < 1e-5 * exact_loss, "{loss} {exact_loss}");
        for tensor in layout(&config).tensors() {
            let gradient = &found.gradients[tensor.range.clone()];
            assert!(gradient.iter().any(|g| *g != 0.0), "{}: no gradient", tensor.name);
            let error = relative_error(gradient, &exact.gradients[tensor.range.clone()]);
            assert!(error < 2e-5, "{}: relative error {error:e}", tensor.name);
        }
        let evaluated = model.evaluate(&mut Weights::F32(&weights), batch).unwrap();
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
            .train(&mut Weights::Bf16(&rounded), batch, 0.25, Sums::Write, &mut found)
            .unwrap();
        assert!((loss - exact_loss).abs() < 3e-3 * exact_loss, "{loss} {exact_loss}");
        for tensor in layout(&config).tensors() {
            let gradient = &found.gradients[tensor.range.clone()];
            let error = relative_error(gradient, &exact.gradients[tensor.range.clone()]);
            assert!(error < 0.03, "{}: relative error {error:e}", tensor.name);
        }
        let evaluated = model.evaluate(&mut Weights::Bf16(&rounded), batch).unwrap();
        assert_eq!(evaluated.to_bits(), loss.to_bits());
    }
}

#[test]
fn segments_complete_in_order_and_passes_are_told() {
    let (inputs, targets) = tokens();
    let batch = Batch { inputs: &inputs, targets: &targets };
    for config in families() {
        let mut sink = Flat::<f32>::new(&config);
        let weights = weights::<f32>(&config);
        let mut model = engine(&config, Compute::F32);
        model.train(&mut Weights::F32(&weights), batch, 1.0, Sums::Write, &mut sink).unwrap();
        let completed = |event: &Event| matches!(event, Event::Complete(_));
        let order: Vec<Event> = sink.events.drain(..).collect();
        let first = order.iter().position(completed).unwrap();
        let segments = layout(&config).segments().len();
        assert!(
            order[first..].iter().eq((0..segments).map(Event::Complete).collect::<Vec<_>>().iter())
        );
        assert_eq!(order[0], Event::Enter(Pass::Forward));
        assert_eq!(order[first - 1], Event::Enter(Pass::Backward));
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
        Compute::F32 => Weights::F32(&weights),
        Compute::Bf16 => Weights::Bf16(&rounded),
    };
    let run = |threads: usize| {
        on_threads(threads, || {
            let batch = Batch { inputs: &inputs, targets: &targets };
            let mut model = engine(config, compute);
            let mut sink = Flat::<f32>::new(config);
            let loss = model.train(&mut weights(), batch, 0.5, Sums::Write, &mut sink).unwrap();
            let once = sink.gradients.clone();
            sink.begin_again();
            model.train(&mut weights(), batch, 0.5, Sums::Add, &mut sink).unwrap();
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
            model.train(&mut Weights::F32(&weights), batch, 0.5, Sums::Write, &mut sink).unwrap();
            sink.gradients
        };
        let (expected, mut replaced) = (train(0.0), vec![7.5; layout(&config).len()]);
        for tensor in layout(&config).tensors() {
            let range = tensor.range.clone();
            replaced[range.clone()].copy_from_slice(&expected[range]);
        }
        assert!(train(7.5) == replaced, "{:?}", config.family);
    }
}

#[test]
fn impossible_batches_are_refused_by_name() {
    for (sequences, tokens, key) in
        [(0, 7, "batch.micro_sequences"), (1, 0, "sequence_tokens"), (1, 10, "sequence_tokens")]
    {
        let config = &families()[0];
        let engine = Fused::new(config, layout(config), sequences, tokens, Compute::F32);
        let error = engine.unwrap_err().to_string();
        assert!(error.contains(key), "{error}");
    }
}

#[test]
fn the_plan_names_every_byte_of_gpt2_124m() {
    let config = ModelConfig {
        family: Family::Gpt,
        layers: 12,
        width: 768,
        heads: 12,
        feed_forward: 3072,
        vocabulary: 50257,
        context: 1024,
    };
    let plan = activation_bytes(&config, (4, 256), Compute::F32, 2);
    let kept: u64 = plan[..4].iter().map(|(_, bytes)| bytes).sum();
    // 10 C + 4 + H per token and block, and the last stream and norm.
    assert_eq!(kept, 4 * 1024 * (12 * (10 * 768 + 4 + 12) + 768 + 2));
    // Normed, branch, gradient, hidden and wide; a norm's sums of 32 groups of rows.
    assert_eq!(plan[4].1, 4 * (1024 * (3 * 768 + 2 * 3072) + 32 * 2 * 768));
    assert_eq!(plan[5].1, 4 * 1024 * (50257 + 130));
}

/// Hands out segments, notes which, and fails at one.
struct Counted<'a> {
    layout: Layout,
    weights: &'a [f32],
    asked: Vec<usize>,
    fails_at: Option<usize>,
}

impl WeightSource for Counted<'_> {
    fn flat_len(&self) -> usize {
        self.weights.len()
    }

    fn segment(&mut self, range: &Range<usize>) -> Result<Weights<'_>, Error> {
        let index = self.layout.segments().iter().position(|segment| segment.range == *range);
        self.asked.push(index.unwrap());
        if index == self.fails_at {
            return Err(Error::Weights("they are lost".into()));
        }
        Ok(Weights::F32(&self.weights[range.clone()]))
    }
}

#[test]
fn every_segment_is_asked_for_from_the_last_to_the_first_before_a_gradient_is_complete() {
    let (inputs, targets) = tokens();
    let batch = Batch { inputs: &inputs, targets: &targets };
    for config in families() {
        let weights = weights::<f32>(&config);
        let (layout, mut model) = (layout(&config), engine(&config, Compute::F32));
        let segments = layout.segments().len();
        let mut source = Counted { layout, weights: &weights, asked: Vec::new(), fails_at: None };
        let mut sink = Flat::<f32>::new(&config);
        let loss = model.train(&mut source, batch, 1.0, Sums::Write, &mut sink).unwrap();
        assert!(source.asked[..segments].iter().copied().eq((0..segments).rev()));
        source.asked.clear();
        let evaluated = model.evaluate(&mut source, batch).unwrap();
        assert_eq!(evaluated.to_bits(), loss.to_bits());
        source.asked.dedup();
        assert!(source.asked[..segments].iter().copied().eq((0..segments).rev()));
        for lost in 0..segments {
            source.fails_at = Some(lost);
            let mut sink = Flat::<f32>::new(&config);
            let failed = model.train(&mut source, batch, 1.0, Sums::Write, &mut sink);
            assert!(matches!(failed, Err(Error::Weights(_))), "segment {lost}");
            assert!(!sink.events.iter().any(|event| matches!(event, Event::Complete(_))));
            assert!(model.evaluate(&mut source, batch).is_err(), "segment {lost}");
        }
    }
}
