//! Model by model: the fused engine (f32) against the candle engine in f64.

mod common;

use common::Flat;
use device::Allocator;
use yardstick_models::config::{Family, Llama, RopeScaling};
use yardstick_models::fused::Fused;
use yardstick_models::init::init_weights;
use yardstick_models::ops::cross_entropy::{LOGITS_BYTES, chunk_tokens};
use yardstick_models::rng::{Purpose, Stream};
use yardstick_models::workload::Compute;
use yardstick_models::{Batch, Candle, Layout, MicroBatch, Model, ModelConfig, Sums, Weights};

/// Odd shapes: no dimension a multiple of a vector, blocks and chunks cut short, one head, one
/// token, the context not used up; and [`CHUNKED`].
const SHAPES: [([usize; 6], (usize, usize)); 8] = [
    CHUNKED,
    ([1, 12, 3, 20, 17, 7], (2, 5)),
    ([2, 24, 3, 80, 37, 9], (1, 9)),
    ([3, 35, 5, 61, 101, 70], (3, 67)),
    ([1, 64, 1, 130, 1000, 64], (2, 64)),
    ([2, 48, 4, 192, 257, 200], (1, 129)),
    ([1, 16, 2, 64, 33, 4], (5, 1)),
    ([4, 128, 4, 512, 256, 128], (2, 128)),
];

/// The head takes the tokens of this batch in several chunks, not cut where sequences are.
const CHUNKED: ([usize; 6], (usize, usize)) = ([1, 8, 2, 20, 50257, 450], (3, 446));

/// Llama over two and three blocks of keys (64 each), the last cut short: grouped queries, untied;
/// and one head of keys, tied, RoPE stretched.
fn llamas() -> [(ModelConfig, (usize, usize)); 2] {
    let stretched = RopeScaling {
        factor: 4.0,
        low_freq_factor: 0.5,
        high_freq_factor: 4.0,
        original_context: 70,
    };
    let grouped = Llama { key_value_heads: 2, norm_epsilon: 1e-3, ..Llama::plain(6) };
    let tied =
        Llama { key_value_heads: 1, tied: true, rope_scaling: Some(stretched), ..Llama::plain(3) };
    let of = |llama, dimensions| ModelConfig { family: Family::Llama(llama), ..model(dimensions) };
    [(of(grouped, [2, 36, 6, 29, 41, 70]), (2, 67)), (of(tied, [1, 30, 3, 51, 61, 140]), (1, 129))]
}

#[test]
fn one_shape_takes_the_head_several_chunks() {
    let ([_, _, _, _, vocabulary, _], (sequences, tokens)) = CHUNKED;
    let chunk = chunk_tokens::<f32>(sequences * tokens, vocabulary, LOGITS_BYTES);
    assert!(chunk < sequences * tokens && !chunk.is_multiple_of(tokens), "{chunk} tokens");
}

fn model(dimensions: [usize; 6]) -> ModelConfig {
    let [layers, width, heads, feed_forward, vocabulary, context] = dimensions;
    ModelConfig { family: Family::Gpt, layers, width, heads, feed_forward, vocabulary, context }
}

/// A layout with gaps, as a bucket plan makes them.
fn placed(config: &ModelConfig) -> Layout {
    let tight = Layout::new(config);
    let starts: Vec<usize> =
        tight.segments().iter().enumerate().map(|(i, s)| s.range.start + 256 * i).collect();
    tight.with_starts(&starts, tight.len() + 256 * starts.len())
}

/// Fresh weights, stirred so that norms and biases matter as well.
fn weights(layout: &Layout) -> Vec<f32> {
    let stream = Stream::new(11, Purpose::Test);
    let mut weights = vec![0.0; layout.len()];
    init_weights(layout, 1, &mut weights);
    for index in layout.tensors().iter().flat_map(|tensor| tensor.range.clone()) {
        weights[index] += 0.1 * stream.normal(index as u64) as f32;
    }
    weights
}

/// |found - exact| / |exact| in the Euclidean norm.
fn relative_error(found: &[f32], exact: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let pairs = found.iter().zip(exact).map(|(f, e)| (f64::from(*f), f64::from(*e)));
    let (error, size) = pairs.fold((0.0, 0.0), |(d, s), (f, e)| (d + square(f - e), s + square(e)));
    (error / size).sqrt()
}

fn run(engine: &mut dyn Model, weights: &[f32], batch: Batch<'_>, scale: f32) -> (f64, Vec<f32>) {
    let mut flat = Flat::new(engine.layout());
    let loss = engine
        .train_on_host(&mut Weights::from(weights), batch, scale, Sums::Write, &mut flat)
        .expect("training");
    let evaluated = engine.evaluate(&mut Weights::from(weights), batch).expect("evaluation");
    assert_eq!(loss.to_bits(), evaluated.to_bits(), "train and evaluate give one loss");
    (loss, flat.values)
}

#[test]
fn loss_and_every_gradient_agree() {
    let gpts = SHAPES.map(|(dimensions, shape)| (model(dimensions), shape));
    for (config, (sequences, tokens)) in gpts.into_iter().chain(llamas()) {
        let layout = placed(&config);
        let weights = weights(&layout);
        let stream = Stream::new(5, Purpose::Test);
        let ids: Vec<u32> = (0..=(sequences * tokens) as u64)
            .map(|index| stream.below(index, config.vocabulary as u64) as u32)
            .collect();
        let batch = Batch { inputs: &ids[..sequences * tokens], targets: &ids[1..] };
        let scale = 1.0 / (sequences * tokens) as f32;
        let micro_batch = MicroBatch { sequences, tokens };
        let mut oracle = Candle::new_f64(&config, layout.clone(), micro_batch).unwrap();
        let allocator = &Allocator::host();
        let mut fused =
            Fused::new(&config, layout.clone(), micro_batch, Compute::F32, allocator).unwrap();
        let (exact_loss, exact) = run(&mut oracle, &weights, batch, scale);
        let (loss, found) = run(&mut fused, &weights, batch, scale);
        let error = (loss / exact_loss - 1.0).abs();
        assert!(error < 1e-6, "{config:?}: loss {loss}, oracle {exact_loss}");
        for tensor in layout.tensors() {
            let (found, exact) = (&found[tensor.range.clone()], &exact[tensor.range.clone()]);
            let error = relative_error(found, exact);
            assert!(error < 1e-5, "{config:?} {}: {error:e}", tensor.name);
        }
    }
}
