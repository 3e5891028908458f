//! The engine of the workload itself: explicit forward and backward over buffers that are allocated
//! once.
//!
//! There is no tape. Every block saves what its backward needs (`activations.rs`), weight gradients
//! are written or accumulated in place, and a segment is declared complete as soon as its last
//! gradient is written, so that its reduction can start while backward goes on. After construction
//! nothing is allocated. Results have the same bits for any number of threads.

mod activations;
mod block;
mod cuda;
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

pub use cuda::CudaProbe;
pub use options::{AttentionBackend, LOGITS_BYTES_ON_CUDA, Options};
pub use probe::{ProbeProduct, probe_shapes};

use std::ops::Range;

use device::{Allocator, ViewMut};
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
    CudaF32(cuda::Network<f32>),
    CudaBf16(cuda::Network<bf16>),
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
        Self::with_options(config, layout, micro_batch, options.into(), allocator)
    }

    /// Not generic, so that the network's code is compiled in this crate alone.
    fn with_options(
        config: &ModelConfig,
        layout: Layout,
        micro_batch: MicroBatch,
        options: Options,
        allocator: &Allocator,
    ) -> Result<Self, Error> {
        let size = Size::new(config, micro_batch, options);
        let ranges = ParameterRanges::new(&layout, config);
        let network = match (options.compute, options.on_cuda) {
            (Compute::F32, false) => Precise::F32(Network::new(allocator, config, size, ranges)),
            (Compute::Bf16, false) => Precise::Bf16(Network::new(allocator, config, size, ranges)),
            (Compute::F32, true) => {
                Precise::CudaF32(cuda::Network::new(allocator, config, size, ranges)?)
            }
            (Compute::Bf16, true) => {
                Precise::CudaBf16(cuda::Network::new(allocator, config, size, ranges)?)
            }
        };
        Ok(Self { layout, network })
    }

    fn check_weights(&self, weights: &dyn WeightSource) {
        assert_eq!(weights.flat_len(), self.layout.len(), "weights laid out as the engine's");
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
            Precise::CudaF32(network) => network.size(),
            Precise::CudaBf16(network) => network.size(),
        };
        formatter.debug_struct("Fused").field("size", &size).finish_non_exhaustive()
    }
}

impl Model for Fused {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn meter(&mut self) -> Option<&mut Meter> {
        match &mut self.network {
            Precise::F32(network) => Some(network.meter()),
            Precise::Bf16(network) => Some(network.meter()),
            Precise::CudaF32(_) | Precise::CudaBf16(_) => None,
        }
    }

    fn train(
        &mut self,
        weights: &mut dyn WeightSource,
        batch: Batch<'_>,
        scale: f32,
        sums: Sums,
        loss: ViewMut<'_, f64>,
        sink: &mut dyn StepSink,
    ) -> Result<(), Error> {
        self.check_weights(weights);
        let (source, host_sink) = (&mut EngineSource(weights), &mut EngineSink(sink));
        loss.host()[0] += match &mut self.network {
            Precise::F32(network) => network.train(source, batch, scale, sums, host_sink)?,
            Precise::Bf16(network) => network.train(source, batch, scale, sums, host_sink)?,
            Precise::CudaF32(network) => {
                return network.train(weights, batch, scale, sums, loss, sink);
            }
            Precise::CudaBf16(network) => {
                return network.train(weights, batch, scale, sums, loss, sink);
            }
        };
        Ok(())
    }

    fn evaluate(&mut self, weights: &mut dyn WeightSource, batch: Batch<'_>) -> Result<f64, Error> {
        self.check_weights(weights);
        match &mut self.network {
            Precise::F32(network) => network.evaluate(&mut EngineSource(weights), batch),
            Precise::Bf16(network) => network.evaluate(&mut EngineSource(weights), batch),
            Precise::CudaF32(network) => network.evaluate(weights, batch),
            Precise::CudaBf16(network) => network.evaluate(weights, batch),
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
