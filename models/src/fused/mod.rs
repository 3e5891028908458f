//! The engine of the workload itself: explicit forward and backward over buffers that are allocated
//! once.
//!
//! There is no tape. Every block saves what its backward needs (`activations.rs`), weight gradients
//! are written or accumulated in place, and a segment is declared complete as soon as its last
//! gradient is written, so that its reduction can start while backward goes on. After construction
//! nothing is allocated. Results have the same bits for any number of threads.

mod activations;
mod block;
mod linear;
mod network;
mod norm;
mod options;
mod parameter_ranges;
mod probe;
mod scratch;
mod size;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub(crate) use tests::single_block::single_block;

pub use options::Options;
pub use probe::{ProbeProduct, probe_shapes};

use std::ops::Range;

use device::Allocator;
use half::bf16;
use network::{Network, Sink, Source};
use parameter_ranges::ParameterRanges;
use size::Size;

use crate::ops::matmul;
use crate::workload::Compute;
use crate::{
    Batch, Error, Layout, Meter, MicroBatch, Model, ModelConfig, Pass, StepSink, Sums, WeightSource,
};

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
    /// Allocates every buffer. With a counting allocator the engine cannot compute: the allocator's
    /// items are its memory plan.
    ///
    /// Call the engine inside a rayon pool of as many threads as the options say.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the configuration is, B is 0, or T is not in 1 to the context.
    ///
    /// # Panics
    /// When `layout` is not one of `config`.
    pub fn new(
        config: &ModelConfig,
        layout: Layout,
        micro_batch: MicroBatch,
        options: impl Into<Options>,
        allocator: &Allocator,
    ) -> Result<Self, Error> {
        config.validate()?;
        config.check_micro_batch(micro_batch)?;
        Ok(Self::with_options(config, layout, micro_batch, options.into(), allocator))
    }

    /// Not generic, so that the network's code is compiled in this crate alone.
    fn with_options(
        config: &ModelConfig,
        layout: Layout,
        micro_batch: MicroBatch,
        options: Options,
        allocator: &Allocator,
    ) -> Self {
        let size = Size::new(config, micro_batch, options);
        let ranges = ParameterRanges::new(&layout, config);
        let network = match options.compute {
            Compute::F32 => Precise::F32(Network::new(allocator, config, size, ranges)),
            Compute::Bf16 => Precise::Bf16(Network::new(allocator, config, size, ranges)),
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
        let mut weights = self.source(weights);
        let sink = &mut EngineSink(sink);
        match &mut self.network {
            Precise::F32(network) => network.train(&mut weights, batch, scale, sums, sink),
            Precise::Bf16(network) => network.train(&mut weights, batch, scale, sums, sink),
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
        Ok(self.0.segment(range)?.f32().host())
    }
}

impl Source<bf16> for EngineSource<'_> {
    fn segment(&mut self, range: &Range<usize>) -> Result<&[bf16], Error> {
        Ok(self.0.segment(range)?.bf16().host())
    }
}

/// The trainer's sink, for the network that is generic over the element.
struct EngineSink<'a>(&'a mut dyn StepSink);

impl Sink<f32> for EngineSink<'_> {
    fn gradient(&mut self, segment: usize) -> &mut [f32] {
        self.0.gradient(segment).host()
    }

    fn complete(&mut self, segment: usize) {
        self.0.complete(segment);
    }

    fn enter(&mut self, pass: Pass) {
        self.0.enter(pass);
    }
}
