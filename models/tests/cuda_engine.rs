//! The engine on a CUDA device, a real one or the emulated one, against the engine on the
//! processor: losses and the gradient of every tensor.
//!
//! Needs a device: `make test-cuda-emulated` provides the emulated one.

use device::cuda::{ComputeCapability, Cuda, Launched, devices};
use device::{Allocator, Device, DeviceBuffer, ViewMut};
use half::bf16;
use yardstick_models::config::{Family, Llama, RopeScaling};
use yardstick_models::fused::{AttentionBackend, Fused, Options, Recompute};
use yardstick_models::init::init_weights;
use yardstick_models::meter::Op;
use yardstick_models::ops::cross_entropy::{LOGITS_BYTES, chunk_tokens};
use yardstick_models::rng::{Purpose, Stream};
use yardstick_models::workload::Compute;
use yardstick_models::{
    Batch, Error, Layout, MicroBatch, Model, ModelConfig, Pass, StepSink, Sums, Weights,
};

/// Layers, width, heads, feed-forward width, vocabulary and context, with B and T: rows that fill
/// no block, one token, one head, a vocabulary that is no multiple of 8; and [`CHUNKED`].
const SHAPES: [([usize; 6], (usize, usize)); 4] = [
    ([2, 24, 3, 80, 37, 9], (3, 7)),
    ([1, 64, 1, 136, 101, 70], (2, 67)),
    ([1, 16, 2, 64, 33, 4], (5, 1)),
    CHUNKED,
];

/// The head takes the tokens of this batch in several chunks, not cut where sequences are.
const CHUNKED: ([usize; 6], (usize, usize)) = ([1, 8, 1, 24, 50257, 450], (3, 446));

/// Grouped queries with a head of its own; one head of keys, tied, RoPE stretched; and heads that
/// do not start at multiples of 16 bytes.
fn llamas() -> [(ModelConfig, (usize, usize)); 3] {
    let stretched = RopeScaling {
        factor: 4.0,
        low_freq_factor: 0.5,
        high_freq_factor: 4.0,
        original_context: 70,
    };
    let grouped = Llama { key_value_heads: 2, norm_epsilon: 1e-3, ..Llama::plain(8) };
    let tied =
        Llama { key_value_heads: 1, tied: true, rope_scaling: Some(stretched), ..Llama::plain(2) };
    let of = |llama, dimensions| ModelConfig { family: Family::Llama(llama), ..gpt(dimensions) };
    [
        (of(grouped, [2, 48, 6, 40, 41, 70]), (2, 37)),
        (of(tied, [1, 32, 2, 56, 61, 140]), (1, 65)),
        (of(grouped, [1, 120, 6, 40, 41, 70]), (1, 33)),
    ]
}

fn gpt(dimensions: [usize; 6]) -> ModelConfig {
    let [layers, width, heads, feed_forward, vocabulary, context] = dimensions;
    ModelConfig { family: Family::Gpt, layers, width, heads, feed_forward, vocabulary, context }
}

/// Gradients on a device, flat.
struct FlatGradients<'a> {
    layout: &'a Layout,
    values: DeviceBuffer<f32>,
    completed: Vec<usize>,
}

impl StepSink for FlatGradients<'_> {
    fn gradient(&mut self, segment: usize) -> Result<ViewMut<'_, f32>, Error> {
        Ok(self.values.view_mut().slice(self.layout.segments()[segment].range.clone()))
    }

    fn complete(&mut self, segment: usize) -> Result<(), Error> {
        self.completed.push(segment);
        Ok(())
    }

    fn enter(&mut self, _: Pass) {}
}

/// Results of an engine: losses of two micro-batches, their gradient, and an evaluation.
#[derive(Debug, PartialEq)]
struct Computed {
    loss: f64,
    evaluated: f64,
    gradients: Vec<f32>,
}

/// A model, its weights, and a micro-batch.
struct Case {
    layout: Layout,
    config: ModelConfig,
    micro_batch: MicroBatch,
    weights: Vec<f32>,
    ids: Vec<u32>,
}

impl Case {
    fn new(config: ModelConfig, (sequences, tokens): (usize, usize)) -> Self {
        let layout = Layout::new(&config);
        let stream = Stream::new(11, Purpose::Test);
        let mut weights = vec![0.0; layout.len()];
        init_weights(&layout, 1, &mut weights);
        // Norms and biases matter as well.
        for index in layout.tensors().iter().flat_map(|tensor| tensor.range.clone()) {
            weights[index] += 0.1 * stream.normal(index as u64) as f32;
        }
        let id = |index| stream.child(5).below(index, config.vocabulary as u64) as u32;
        let ids = (0..=(sequences * tokens) as u64).map(id).collect();
        Self { layout, config, micro_batch: MicroBatch { sequences, tokens }, weights, ids }
    }

    /// Two micro-batches, the second of which is added, and an evaluation.
    fn compute(&self, device: &Device, options: Options) -> Computed {
        self.compute_and_count(device, options).0
    }

    /// The same, and what each op of the micro-batches launched.
    fn compute_and_count(
        &self,
        device: &Device,
        options: Options,
    ) -> (Computed, Vec<(Op, Launched)>) {
        let allocator = device.allocator();
        let on_cuda = matches!(device, Device::Cuda(_));
        let options = Options { on_cuda, ..options };
        let layout = self.layout.clone();
        let mut engine =
            Fused::new(&self.config, layout, self.micro_batch, options, &allocator).unwrap();
        let mut master = allocator.zeros(self.layout.len());
        let mut working = allocator.zeros(self.layout.len());
        let rounded: Vec<bf16> = self.weights.iter().map(|&w| bf16::from_f32(w)).collect();
        device.write(master.view_mut(), &self.weights).unwrap();
        device.write(working.view_mut(), &rounded).unwrap();
        let mut weights = match options.compute {
            Compute::F32 => Weights::F32(master.view()),
            Compute::Bf16 => Weights::Bf16(working.view()),
        };
        let rows = self.ids.len() - 1;
        let batch = Batch { inputs: &self.ids[..rows], targets: &self.ids[1..] };
        let values = allocator.zeros(self.layout.len());
        let mut sink = FlatGradients { layout: &self.layout, values, completed: Vec::new() };
        let mut loss = allocator.zeros(1);
        engine.meter().unwrap().start();
        for sums in [Sums::Write, Sums::Add] {
            let scale = 0.5 / rows as f32;
            engine.train(&mut weights, batch, scale, sums, loss.view_mut(), &mut sink).unwrap();
        }
        let meter = engine.meter().unwrap();
        meter.stop().unwrap();
        let launched = meter.counts().map(|(op, count)| (op, count.launched)).collect();
        let segments = self.layout.segments().len();
        assert!(sink.completed.iter().copied().eq((0..segments).chain(0..segments)));
        let mut computed = Computed {
            loss: read(device, &loss)[0],
            evaluated: 0.0,
            gradients: read(device, &sink.values),
        };
        computed.evaluated = engine.evaluate(&mut weights, batch).unwrap();
        (computed, launched)
    }
}

fn read<E: device::Element>(device: &Device, buffer: &DeviceBuffer<E>) -> Vec<E> {
    let mut host = vec![E::default(); buffer.len()];
    device.read(buffer.view(), &mut host).unwrap();
    host
}

fn cuda() -> Device {
    Device::Cuda(Cuda::open(0).unwrap_or_else(|error| panic!("{error}")))
}

/// |found - exact| / |exact| in the Euclidean norm.
fn relative_error(found: &[f32], exact: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let pairs = found.iter().zip(exact).map(|(f, e)| (f64::from(*f), f64::from(*e)));
    let (error, size) = pairs.fold((0.0, 0.0), |(d, s), (f, e)| (d + square(f - e), s + square(e)));
    if size == 0.0 { error.sqrt() } else { (error / size).sqrt() }
}

/// Bounds of the relative errors: both engines round, in bf16 at the same places but not in the
/// same order of sums.
struct Bounds {
    loss: f64,
    gradient: f64,
}

fn bounds(compute: Compute) -> Bounds {
    match compute {
        Compute::F32 => Bounds { loss: 1e-6, gradient: 1e-4 },
        Compute::Bf16 => Bounds { loss: 2e-3, gradient: 3e-2 },
    }
}

fn assert_agree(case: &Case, found: &Computed, exact: &Computed, compute: Compute) {
    let bounds = bounds(compute);
    let what = format!("{:?} in {compute}", case.config);
    let error = (found.loss / exact.loss - 1.0).abs();
    assert!(error < bounds.loss, "{what}: loss {}, on the processor {}", found.loss, exact.loss);
    let evaluated = (found.evaluated / (0.5 * found.loss) - 1.0).abs();
    assert!(evaluated < 1e-12, "{what}: evaluated {} of {}", found.evaluated, found.loss);
    let mut padding = found.gradients.clone();
    for tensor in case.layout.tensors() {
        let range = tensor.range.clone();
        padding[range.clone()].fill(0.0);
        let error = relative_error(&found.gradients[range.clone()], &exact.gradients[range]);
        assert!(error < bounds.gradient, "{what}: {} {error:e}", tensor.name);
    }
    // The head's products read and write rows of it.
    assert!(padding.iter().all(|&gradient| gradient == 0.0), "{what}: padding has a gradient");
}

#[test]
fn losses_and_every_gradient_are_those_of_the_processor() {
    let device = cuda();
    let gpts = SHAPES.map(|(dimensions, shape)| (gpt(dimensions), shape));
    for (config, shape) in gpts.into_iter().chain(llamas()) {
        let is_chunked = shape == CHUNKED.1;
        let case = Case::new(config, shape);
        for compute in [Compute::F32, Compute::Bf16] {
            let options = Options::from(compute);
            let exact = case.compute(&Device::Host, options);
            // The head computes nothing again.
            let also = (!is_chunked).then_some(Recompute::Selective);
            for recompute in [Recompute::None].into_iter().chain(also) {
                let found = case.compute(&device, Options { recompute, ..options });
                assert_agree(&case, &found, &exact, compute);
            }
        }
    }
}

/// The cost of a plan is that of the same calls.
#[test]
fn a_device_that_only_counts_counts_what_the_device_is_given() {
    let device = cuda();
    let dry = Device::Cuda(Cuda::dry().unwrap());
    let [(grouped, shape), ..] = llamas();
    let (dimensions, gpt_shape) = SHAPES[0];
    for (config, shape) in [(grouped, shape), (gpt(dimensions), gpt_shape)] {
        let case = Case::new(config, shape);
        for recompute in [Recompute::None, Recompute::Selective, Recompute::Full] {
            let options = Options { recompute, ..Options::from(Compute::Bf16) };
            let (_, counted) = case.compute_and_count(&dry, options);
            let (_, launched) = case.compute_and_count(&device, options);
            assert!(launched.iter().all(|(_, launched)| launched.launches > 0), "{launched:?}");
            assert_eq!(counted, launched, "{options:?}");
        }
    }
}

#[test]
fn a_rerun_and_recomputation_have_the_same_bits() {
    let device = cuda();
    let [(grouped, shape), ..] = llamas();
    let (dimensions, gpt_shape) = SHAPES[0];
    for (config, shape) in [(grouped, shape), (gpt(dimensions), gpt_shape)] {
        let case = Case::new(config, shape);
        for compute in [Compute::F32, Compute::Bf16] {
            let with =
                |recompute| case.compute(&device, Options { recompute, ..Options::from(compute) });
            let once = with(Recompute::None);
            assert_eq!(once, with(Recompute::None), "a rerun");
            assert_eq!(once, with(Recompute::Full), "full recomputation");
            let selective = with(Recompute::Selective);
            assert_eq!(selective, with(Recompute::Selective), "a rerun");
            // In bf16 GELU is the library's where it is saved, and ours where it is not.
            if compute == Compute::F32 || matches!(case.config.family, Family::Llama(_)) {
                assert_eq!(once, selective, "selective recomputation");
            }
        }
    }
}

/// Layers, width, heads, feed-forward width, vocabulary and context: heads of 64, which two share
/// in Llama.
const WIDE_DIMENSIONS: [usize; 6] = [2, 256, 4, 256, 65, 64];

/// On devices other than Hopper's, is refused.
#[test]
fn attention_by_wgmma_has_the_losses_and_gradients_of_the_processor_and_of_the_default() {
    let capability = devices().unwrap()[0].compute_capability;
    if capability == (ComputeCapability { major: 9, minor: 0 }) {
        return assert_wgmma_agrees();
    }
    let refused = wgmma_refusal(&gpt(WIDE_DIMENSIONS), Compute::Bf16);
    assert!(refused.contains("is for 9.0 alone; use run.attention = flash"), "{refused}");
}

fn assert_wgmma_agrees() {
    let device = cuda();
    let grouped = Llama { key_value_heads: 2, ..Llama::plain(2) };
    let gpt = gpt(WIDE_DIMENSIONS);
    let llama = ModelConfig { family: Family::Llama(grouped), ..gpt.clone() };
    for config in [gpt, llama] {
        let case = Case::new(config, (2, 64));
        let flash = Options { recompute: Recompute::None, ..Options::from(Compute::Bf16) };
        let other = Options { attention: AttentionBackend::Wgmma, ..flash };
        let found = case.compute(&device, other);
        let exact = case.compute(&Device::Host, Options::from(Compute::Bf16));
        assert_agree(&case, &found, &exact, Compute::Bf16);
        assert_agree(&case, &found, &case.compute(&device, flash), Compute::Bf16);
        assert_eq!(found, case.compute(&device, other), "a rerun");
        let recompute = Recompute::Full;
        let recomputed = case.compute(&device, Options { recompute, ..other });
        assert_eq!(found, recomputed, "recomputation");
    }
}

#[test]
fn one_shape_takes_the_head_several_chunks() {
    let ([_, _, _, _, vocabulary, _], (sequences, tokens)) = CHUNKED;
    let chunk = chunk_tokens::<f32>(sequences * tokens, vocabulary, LOGITS_BYTES);
    assert!(chunk < sequences * tokens && !chunk.is_multiple_of(tokens), "{chunk} tokens");
}

#[test]
fn a_plan_counts_what_the_engine_allocates() {
    let (dimensions, (sequences, tokens)) = SHAPES[0];
    let config = &gpt(dimensions);
    let micro_batch = MicroBatch { sequences, tokens };
    let device = cuda();
    for recompute in [Recompute::None, Recompute::Selective, Recompute::Full] {
        let options = Options { on_cuda: true, recompute, ..Options::from(Compute::Bf16) };
        let items = |allocator: Allocator| {
            let layout = Layout::new(config);
            let engine = Fused::new(config, layout, micro_batch, options, &allocator).unwrap();
            drop(engine);
            allocator.items()
        };
        assert_eq!(items(device.allocator()), items(Allocator::counting()), "{options:?}");
    }
}

#[test]
fn widths_that_kernels_cannot_read_are_refused() {
    let device = cuda();
    let options = Options { on_cuda: true, ..Options::from(Compute::Bf16) };
    let micro_batch = MicroBatch { sequences: 1, tokens: 2 };
    let refusals = [
        ([1, 20, 5, 64, 33, 4], "model.width = 20", "a multiple of 8"),
        ([1, 24, 8, 64, 33, 4], "model.heads = 3", "even"),
        ([1, 264, 1, 64, 33, 4], "model.heads = 264", "at most 256"),
    ];
    for (dimensions, found, expected) in refusals {
        let config = gpt(dimensions);
        let layout = Layout::new(&config);
        let refused = Fused::new(&config, layout, micro_batch, options, &device.allocator());
        let text = refused.unwrap_err().to_string();
        assert!(text.contains(found) && text.contains(expected), "{text}");
    }
}

#[test]
fn wgmma_is_refused_for_other_widths_and_in_f32() {
    let wide = gpt(WIDE_DIMENSIONS);
    let narrow = gpt([1, 64, 2, 64, 33, 4]);
    for (config, compute) in [(&narrow, Compute::Bf16), (&wide, Compute::F32)] {
        let refused = wgmma_refusal(config, compute);
        assert!(refused.contains("run.attention = wgmma: expected flash, or"), "{refused}");
    }
}

fn wgmma_refusal(config: &ModelConfig, compute: Compute) -> String {
    let attention = AttentionBackend::Wgmma;
    let options = Options { on_cuda: true, attention, ..Options::from(compute) };
    let micro_batch = MicroBatch { sequences: 1, tokens: 2 };
    let layout = Layout::new(config);
    let refused = Fused::new(config, layout, micro_batch, options, &cuda().allocator());
    refused.unwrap_err().to_string()
}
