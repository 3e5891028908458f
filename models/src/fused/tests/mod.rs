//! The engine alone: gradients, contract with the trainer, options, memory, and its meter.

mod contract;
mod gradients;
mod memory;
mod meter;
mod options;

use device::{Allocator, ViewMut};

use super::{Fused, Options};
use crate::Error;
use crate::config::{Family, Llama, RopeScaling};
use crate::layout::Init;
use crate::network::Sink;
use crate::ops::Float;
use crate::ops::testing::uniform;
use crate::{Layout, MicroBatch, ModelConfig, Pass, StepSink};

const MICRO_BATCH: MicroBatch = MicroBatch { sequences: 2, tokens: 7 };

/// Both families; heads tied and not; K below H; lengths that fill no vector.
fn families() -> [ModelConfig; 3] {
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
fn layout(config: &ModelConfig) -> Layout {
    let tight = Layout::new(config);
    let starts: Vec<usize> =
        tight.segments().iter().enumerate().map(|(i, s)| s.range.start + 256 * i).collect();
    tight.with_starts(&starts, tight.len() + 256 * starts.len())
}

/// Norm weights around one, everything else around zero, nothing zero.
fn weights<T: Float>(config: &ModelConfig) -> Vec<T> {
    let layout = layout(config);
    let noise: Vec<f64> = uniform(layout.len(), 1);
    let mut weights = vec![T::ZERO; layout.len()];
    for tensor in layout.tensors() {
        let center = if tensor.init == Init::Ones { 1.0 } else { 0.0 };
        for i in tensor.range.clone() {
            weights[i] = T::from_f64(center + 0.3 * noise[i]);
        }
    }
    weights
}

/// Inputs and targets.
fn tokens() -> (Vec<u32>, Vec<u32>) {
    let rows = MICRO_BATCH.rows();
    let stream: Vec<u32> = (0..=rows).map(|i| (i * i * 5 % 37) as u32).collect();
    (stream[..rows].to_vec(), stream[1..].to_vec())
}

#[derive(Debug, PartialEq)]
enum Event {
    Enter(Pass),
    Complete(usize),
}

/// Gradients in a flat buffer, and the events that the engine reported.
struct Flat<T> {
    layout: Layout,
    gradients: Vec<T>,
    events: Vec<Event>,
}

impl<T: Float> Flat<T> {
    fn new(config: &ModelConfig) -> Self {
        let layout = layout(config);
        Self { gradients: vec![T::ZERO; layout.len()], layout, events: Vec::new() }
    }

    /// Before another micro-batch.
    fn begin_micro_batch(&mut self) {
        self.events.clear();
    }
}

impl<T: Float> Sink<T> for Flat<T> {
    fn gradient(&mut self, segment: usize) -> Result<ViewMut<'_, T>, Error> {
        assert!(!self.events.contains(&Event::Complete(segment)), "segment {segment} is complete");
        Ok((&mut self.gradients[self.layout.segments()[segment].range.clone()]).into())
    }

    fn complete(&mut self, segment: usize) -> Result<(), Error> {
        self.events.push(Event::Complete(segment));
        Ok(())
    }

    fn enter(&mut self, pass: Pass) {
        self.events.push(Event::Enter(pass));
    }
}

impl StepSink for Flat<f32> {
    fn gradient(&mut self, segment: usize) -> Result<ViewMut<'_, f32>, Error> {
        Sink::gradient(self, segment)
    }

    fn complete(&mut self, segment: usize) -> Result<(), Error> {
        Sink::complete(self, segment)
    }

    fn enter(&mut self, pass: Pass) {
        Sink::enter(self, pass);
    }
}

fn engine(config: &ModelConfig, options: impl Into<Options>) -> Fused {
    Fused::new(config, layout(config), MICRO_BATCH, options, &Allocator::host()).unwrap()
}
