//! The engine of the workload itself: explicit forward and backward over preplanned buffers.
//!
//! There is no tape. Every block keeps what its backward needs ([`activation_bytes`]), weight
//! gradients are accumulated in place, and a segment is declared complete as soon as its last
//! gradient is in, so that its reduction can start while backward goes on. After construction
//! nothing is allocated. Results have the same bits for any number of threads.

mod activations;
mod block;
mod network;
mod places;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub(crate) use block::block_alone;

pub use activations::activation_bytes;

use network::{Network, Sink, Size};
use places::Places;

use crate::{Batch, Error, Layout, Model, ModelConfig, Pass, StepSink};

/// The fused engine for the GPT family, in f32.
pub struct Fused {
    layout: Layout,
    network: Network<f32>,
}

impl Fused {
    /// Plans every buffer for micro-batches of B = `micro_sequences` and T = `sequence_tokens`.
    ///
    /// Work is divided for the number of threads of the rayon pool that this is called in; train
    /// inside the same pool.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the configuration is, B is 0, or T is not in 1 to the context;
    /// [`Error::Unsupported`] for another family.
    ///
    /// # Panics
    /// When `layout` is not one of `config`.
    pub fn new(
        config: &ModelConfig,
        layout: Layout,
        micro_sequences: usize,
        sequence_tokens: usize,
    ) -> Result<Self, Error> {
        config.validate()?;
        config.require_fused()?;
        config.check_batch(micro_sequences, sequence_tokens)?;
        let threads = rayon::current_num_threads();
        let size = Size::new(config, micro_sequences, sequence_tokens, threads);
        let network = Network::new(size, Places::new(&layout, config));
        Ok(Self { layout, network })
    }
}

impl std::fmt::Debug for Fused {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Fused").field("size", &self.network.size()).finish_non_exhaustive()
    }
}

impl Model for Fused {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn train(
        &mut self,
        weights: &[f32],
        batch: Batch<'_>,
        scale: f32,
        sink: &mut dyn StepSink,
    ) -> Result<f64, Error> {
        assert_eq!(weights.len(), self.layout.len(), "weights laid out as the engine's layout");
        Ok(self.network.train(weights, batch, scale, &mut EngineSink(sink)))
    }

    fn evaluate(&mut self, weights: &[f32], batch: Batch<'_>) -> Result<f64, Error> {
        assert_eq!(weights.len(), self.layout.len(), "weights laid out as the engine's layout");
        Ok(self.network.evaluate(weights, batch))
    }
}

/// The trainer's sink, for the network that is generic over the element.
struct EngineSink<'a>(&'a mut dyn StepSink);

impl Sink<f32> for EngineSink<'_> {
    fn gradient(&mut self, segment: usize) -> &mut [f32] {
        self.0.gradient(segment)
    }

    fn complete(&mut self, segment: usize) {
        self.0.complete(segment);
    }

    fn enter(&mut self, pass: Pass) {
        self.0.enter(pass);
    }
}
