//! The oracle against finite differences, and the contract of [`Model`](crate::Model).

use device::{Allocator, ViewMut};

use crate::Error;
use crate::config::{Family, Llama, RopeScaling};
use crate::init::init_weights;
use crate::rng::{Purpose, Stream};
use crate::{Batch, Candle, Layout, MicroBatch, Model, ModelConfig, Pass, StepSink, Sums, Weights};

/// A flat gradient that checks the order of calls.
struct Flat {
    values: Vec<f32>,
    segments: Vec<std::ops::Range<usize>>,
    completed: usize,
    passes: Vec<Pass>,
}

impl Flat {
    fn new(layout: &Layout) -> Self {
        let segments = layout.segments().iter().map(|segment| segment.range.clone()).collect();
        Self { values: vec![0.0; layout.len()], segments, completed: 0, passes: Vec::new() }
    }
}

impl StepSink for Flat {
    fn gradient(&mut self, segment: usize) -> Result<ViewMut<'_, f32>, Error> {
        assert!(segment >= self.completed, "segment {segment} was complete");
        Ok((&mut self.values[self.segments[segment].clone()]).into())
    }

    fn complete(&mut self, segment: usize) -> Result<(), Error> {
        assert_eq!(segment, self.completed, "segments complete in order");
        self.completed += 1;
        Ok(())
    }

    fn enter(&mut self, pass: Pass) {
        self.passes.push(pass);
    }
}

const SHAPE: MicroBatch = MicroBatch { sequences: 2, tokens: 5 };

fn tiny() -> ModelConfig {
    ModelConfig {
        family: Family::Gpt,
        layers: 2,
        width: 12,
        heads: 3,
        feed_forward: 20,
        vocabulary: 17,
        context: 7,
    }
}

/// Both families: Llama with grouped queries and an untied head, and with everything else.
fn families() -> [ModelConfig; 3] {
    let stretched = RopeScaling {
        factor: 2.0,
        low_freq_factor: 0.1,
        high_freq_factor: 0.9,
        original_context: 4,
    };
    let grouped = Llama { key_value_heads: 1, ..Llama::plain(3) };
    let tied =
        Llama { tied: true, rope_theta: 9.0, rope_scaling: Some(stretched), ..Llama::plain(3) };
    let [grouped, tied] = [grouped, tied].map(Family::Llama);
    [tiny(), ModelConfig { family: grouped, ..tiny() }, ModelConfig { family: tied, ..tiny() }]
}

/// Weights large enough that no gradient drowns in rounding; norms and biases not at their start.
fn weights(layout: &Layout) -> Vec<f32> {
    let stream = Stream::new(3, Purpose::Test);
    let mut weights = vec![0.0; layout.len()];
    init_weights(layout, 3, &mut weights);
    for tensor in layout.tensors() {
        for index in tensor.range.clone() {
            weights[index] += 0.2 * stream.normal(index as u64) as f32;
        }
    }
    weights
}

fn tokens(seed: u64) -> Vec<u32> {
    let stream = Stream::new(seed, Purpose::Test);
    (0..SHAPE.rows() as u64).map(|index| stream.below(index, 17) as u32).collect()
}

fn candle(config: &ModelConfig, layout: &Layout) -> Candle {
    Candle::new(config, layout.clone(), SHAPE, &Allocator::host()).unwrap()
}

fn gradient(engine: &mut Candle, weights: &[f32], scale: f32) -> (f64, Flat) {
    let mut flat = Flat::new(engine.layout());
    let inputs = tokens(1);
    let targets = tokens(2);
    let batch = Batch { inputs: &inputs, targets: &targets };
    let loss = engine
        .train_on_host(&mut Weights::from(weights), batch, scale, Sums::Write, &mut flat)
        .unwrap();
    (loss, flat)
}

#[test]
fn every_tensor_has_a_gradient_and_segments_complete_in_order() {
    for config in families() {
        let layout = Layout::new(&config);
        let mut engine = candle(&config, &layout);
        let (loss, flat) = gradient(&mut engine, &weights(&layout), 1.0);
        assert!(loss > 0.0 && loss.is_finite());
        assert_eq!(flat.completed, layout.segments().len());
        assert_eq!(flat.passes, [Pass::Forward, Pass::Backward]);
        for tensor in layout.tensors() {
            let values = &flat.values[tensor.range.clone()];
            assert!(values.iter().all(|value| value.is_finite()), "{} is not finite", tensor.name);
            assert!(values.iter().any(|value| *value != 0.0), "{} has no gradient", tensor.name);
        }
        let inside: usize = flat.values.iter().filter(|value| **value != 0.0).count();
        assert!(inside <= layout.parameters(), "padding has gradients");
    }
}

#[test]
fn gradients_are_those_of_finite_differences() {
    for config in families() {
        let layout = Layout::new(&config);
        let mut engine = Candle::new_f64(&config, layout.clone(), SHAPE).unwrap();
        let weights = weights(&layout);
        let (_, flat) = gradient(&mut engine, &weights, 1.0);
        let inputs = tokens(1);
        let targets = tokens(2);
        let mut loss = |weights: &[f32]| {
            engine
                .evaluate(&mut Weights::from(weights), Batch { inputs: &inputs, targets: &targets })
                .unwrap()
        };
        for tensor in layout.tensors() {
            let (mut error, mut size) = (0.0, 0.0);
            for index in tensor.range.clone().step_by(1 + tensor.range.len() / 40) {
                let mut above = weights.clone();
                let mut below = weights.clone();
                above[index] += 2e-4;
                below[index] -= 2e-4;
                let distance = f64::from(above[index]) - f64::from(below[index]);
                let slope = (loss(&above) - loss(&below)) / distance;
                error += (slope - f64::from(flat.values[index])).powi(2);
                size += slope.powi(2);
            }
            let relative = (error / size).sqrt();
            assert!(relative < 2e-5, "{}: off by {relative:e} of its size", tensor.name);
        }
    }
}

#[test]
fn gradients_accumulate_and_scale_linearly() {
    for config in families() {
        let layout = Layout::new(&config);
        let mut engine = candle(&config, &layout);
        let weights = weights(&layout);
        let (loss, once) = gradient(&mut engine, &weights, 0.5);
        let inputs = tokens(1);
        let targets = tokens(2);
        let batch = Batch { inputs: &inputs, targets: &targets };
        let mut twice =
            Flat { completed: 0, passes: Vec::new(), ..gradient(&mut engine, &weights, 0.25).1 };
        engine
            .train_on_host(&mut Weights::from(&weights[..]), batch, 0.25, Sums::Add, &mut twice)
            .unwrap();
        assert_eq!(once.values, twice.values, "powers of two scale without rounding");
        let evaluated = engine.evaluate(&mut Weights::from(&weights[..]), batch).unwrap();
        assert_eq!(loss.to_bits(), evaluated.to_bits(), "evaluation computes the same loss");
    }
}

#[test]
fn written_gradients_replace_what_is_there_and_leave_padding_alone() {
    for config in families() {
        let layout = Layout::new(&config);
        let mut engine = candle(&config, &layout);
        let (_, expected) = gradient(&mut engine, &weights(&layout), 1.0);
        let inputs = tokens(1);
        let targets = tokens(2);
        let batch = Batch { inputs: &inputs, targets: &targets };
        let mut flat = Flat::new(&layout);
        flat.values.fill(7.5);
        let weights = weights(&layout);
        engine
            .train_on_host(&mut Weights::from(&weights[..]), batch, 1.0, Sums::Write, &mut flat)
            .unwrap();
        let mut replaced = vec![7.5; layout.len()];
        for tensor in layout.tensors() {
            let range = tensor.range.clone();
            replaced[range.clone()].copy_from_slice(&expected.values[range]);
        }
        assert_eq!(flat.values, replaced);
    }
}

#[test]
fn segment_starts_change_nothing() {
    for config in families() {
        let tight = Layout::new(&config);
        let starts: Vec<usize> =
            tight.segments().iter().enumerate().map(|(i, s)| s.range.start + 256 * i).collect();
        let placed = tight.with_starts(&starts, tight.len() + 256 * starts.len() + 128);
        let mut found = Vec::new();
        for layout in [tight, placed] {
            let mut weights = vec![0.0; layout.len()];
            init_weights(&layout, 1, &mut weights);
            let mut engine = candle(&config, &layout);
            let (loss, flat) = gradient(&mut engine, &weights, 1.0);
            let values = layout.tensors().iter().map(|t| flat.values[t.range.clone()].to_vec());
            found.push((loss, values.collect::<Vec<_>>()));
        }
        assert_eq!(found[0], found[1]);
    }
}

#[test]
fn a_missing_gradient_is_an_error() {
    let layout = Layout::new(&tiny());
    let engine = candle(&tiny(), &layout);
    let variables = engine.variables(&mut Weights::from(&weights(&layout)[..])).unwrap();
    let unrelated = variables["wpe.weight"].sum_all().unwrap().backward().unwrap();
    let mut flat = vec![0.0; layout.segments()[0].range.len()];
    let segment = &layout.segments()[0];
    let written =
        engine.write_gradients(segment, &variables, &unrelated, 1.0, Sums::Add, &mut flat);
    let error = written.unwrap_err();
    assert!(error.to_string().contains("ln_f.weight"), "{error}");
}

#[test]
fn impossible_shapes_name_their_key() {
    for (sequences, tokens, key) in [(0, 5, "batch.micro_sequences"), (2, 8, "model.context = 7")] {
        let micro_batch = MicroBatch { sequences, tokens };
        let engine =
            Candle::new(&tiny(), Layout::new(&tiny()), micro_batch, &Allocator::counting());
        let error = engine.unwrap_err();
        assert!(error.to_string().contains(key), "{error}");
    }
}
