//! The engine of the workload itself: explicit forward and backward over preplanned buffers.
//!
//! There is no tape. Every block keeps what its backward needs ([`activation_bytes`]), weight
//! gradients are written or accumulated in place, and a segment is declared complete as soon as its
//! last gradient is in, so that its reduction can start while backward goes on. After construction
//! nothing is allocated. Results have the same bits for any number of threads.

mod activations;
mod block;
#[cfg(test)]
mod meter_agrees;
mod network;
mod norm;
#[cfg(test)]
mod options_agree;
mod packed;
mod places;
mod size;
mod square;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub(crate) use block::block_alone;

pub use activations::activation_bytes;
pub use packed::packing_pays;
pub use square::SquareProduct;

use std::ops::Range;

use half::bf16;
use network::{Network, Sink, Source};
use places::Places;
use size::Size;

use crate::ops::matmul;
use crate::workload::Compute;
use crate::{Batch, Error, Layout, Meter, Model, ModelConfig, Pass, StepSink, Sums, WeightSource};

/// What the engine computes in, and what it keeps. Results of all ways of keeping have the same
/// bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// The format of weights and activations.
    pub compute: Compute,
    /// Keep only each block's input, and run its forward again before its backward.
    pub recompute: bool,
    /// Keep weights packed from one micro-batch to the next, until [`Model::weights_changed`]: in
    /// both of the forms in which products read them, and the head's table in its only one.
    pub pack_weights: bool,
}

impl From<Compute> for Options {
    /// All activations are kept, and no packed weights.
    fn from(compute: Compute) -> Self {
        Self { compute, recompute: false, pack_weights: false }
    }
}

/// The fused engine, in f32 or bf16.
pub struct Fused {
    layout: Layout,
    network: Precise,
}

/// The network in the format it computes in.
enum Precise {
    F32(Network<f32>),
    Bf16(Network<bf16>),
}

impl Fused {
    /// Plans every buffer for micro-batches of B = `micro_sequences` and T = `sequence_tokens`.
    ///
    /// Work is divided for the number of threads of the rayon pool that this is called in; train
    /// inside the same pool.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the configuration is, B is 0, or T is not in 1 to the context;
    ///
    /// # Panics
    /// When `layout` is not one of `config`.
    pub fn new(
        config: &ModelConfig,
        layout: Layout,
        micro_sequences: usize,
        sequence_tokens: usize,
        options: impl Into<Options>,
    ) -> Result<Self, Error> {
        config.validate()?;
        config.check_batch(micro_sequences, sequence_tokens)?;
        Ok(Self::with_options(config, layout, (micro_sequences, sequence_tokens), options.into()))
    }

    /// Not generic: the network's code is made here, and not again in each crate that trains.
    fn with_options(
        config: &ModelConfig,
        layout: Layout,
        (sequences, tokens): (usize, usize),
        options: Options,
    ) -> Self {
        let threads = rayon::current_num_threads();
        let size = Size::new(config, (sequences, tokens), options, threads);
        let places = Places::new(&layout, config);
        let network = match options.compute {
            Compute::F32 => Precise::F32(Network::new(config, size, places)),
            Compute::Bf16 => Precise::Bf16(Network::new(config, size, places)),
        };
        Self { layout, network }
    }

    fn source<'a>(&self, weights: &'a mut dyn WeightSource) -> EngineSource<'a> {
        assert_eq!(weights.flat_len(), self.layout.len(), "weights laid out as the engine's");
        EngineSource(weights)
    }
}

/// Instruction set of the matmul kernels for a format on this processor.
pub fn matmul_kernel(compute: Compute) -> &'static str {
    match compute {
        Compute::F32 => matmul::kernel_name::<f32>(),
        Compute::Bf16 => matmul::kernel_name::<bf16>(),
    }
}

/// Those that are no fallback on a processor of this architecture, best first.
pub fn full_speed_kernels(compute: Compute) -> &'static [&'static str] {
    match compute {
        Compute::F32 => matmul::full_speed_kernels::<f32>(),
        Compute::Bf16 => matmul::full_speed_kernels::<bf16>(),
    }
}

impl std::fmt::Debug for Fused {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let size = match &self.network {
            Precise::F32(network) => network.size(),
            Precise::Bf16(network) => network.size(),
        };
        formatter.debug_struct("Fused").field("size", &size).finish_non_exhaustive()
    }
}

impl Model for Fused {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn weights_changed(&mut self) {
        match &mut self.network {
            Precise::F32(network) => network.weights_changed(),
            Precise::Bf16(network) => network.weights_changed(),
        }
    }

    fn meter(&mut self) -> Option<&mut Meter> {
        Some(match &mut self.network {
            Precise::F32(network) => network.meter(),
            Precise::Bf16(network) => network.meter(),
        })
    }

    fn train(
        &mut self,
        weights: &mut dyn WeightSource,
        batch: Batch<'_>,
        scale: f32,
        sums: Sums,
        sink: &mut dyn StepSink,
    ) -> Result<f64, Error> {
        let (mut weights, sink) = (self.source(weights), &mut EngineSink(sink));
        match &mut self.network {
            Precise::F32(network) => network.train(&mut weights, batch, (scale, sums), sink),
            Precise::Bf16(network) => network.train(&mut weights, batch, (scale, sums), sink),
        }
    }

    fn evaluate(&mut self, weights: &mut dyn WeightSource, batch: Batch<'_>) -> Result<f64, Error> {
        let mut weights = self.source(weights);
        match &mut self.network {
            Precise::F32(network) => network.evaluate(&mut weights, batch),
            Precise::Bf16(network) => network.evaluate(&mut weights, batch),
        }
    }
}

/// The trainer's weights, for the network that is generic over the element.
struct EngineSource<'a>(&'a mut dyn WeightSource);

impl Source<f32> for EngineSource<'_> {
    fn segment(&mut self, range: &Range<usize>) -> Result<&[f32], Error> {
        Ok(self.0.segment(range)?.f32())
    }
}

impl Source<bf16> for EngineSource<'_> {
    fn segment(&mut self, range: &Range<usize>) -> Result<&[bf16], Error> {
        Ok(self.0.segment(range)?.bf16())
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
