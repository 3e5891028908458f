//! The engine of the workload itself: the network with explicit forward and backward over buffers
//! that are allocated once. Results have the same bits for any number of threads.

#[cfg(test)]
mod tests;

use std::ops::Range;

use device::{Allocator, View, ViewMut};
use half::bf16;

use crate::network::cuda::CudaOps;
use crate::network::host::HostOps;
pub use crate::network::{
    AttentionBackend, LOGITS_BYTES_ON_CUDA, Options, ProbeProduct, Recompute, Triad, probe_shapes,
};
use crate::network::{Network, Ops, ParameterRanges, Sink, Size, Source};
use crate::ops::matmul;
use crate::tuning::ProductTuner;
use crate::workload::Compute;
use crate::{
    Batch, Error, Layout, Meter, MicroBatch, Model, ModelConfig, Pass, StepSink, Sums, WeightSource,
};

/// The fused engine, in f32 or bf16.
pub struct Fused {
    layout: Layout,
    network: Box<dyn AnyNetwork>,
}

/// A network of any ops that trains.
trait AnyNetwork: Send {
    fn size(&self) -> Size;

    fn fallbacks(&self) -> Vec<String>;

    fn tuner(&mut self) -> Option<&mut dyn ProductTuner>;

    fn meter(&mut self) -> &mut Meter;

    fn train(
        &mut self,
        weights: &mut dyn WeightSource,
        batch: Batch<'_>,
        scale: f32,
        sums: Sums,
        loss: ViewMut<'_, f64>,
        sink: &mut dyn StepSink,
    ) -> Result<(), Error>;

    fn evaluate(&mut self, weights: &mut dyn WeightSource, batch: Batch<'_>) -> Result<f64, Error>;
}

impl<E, O> AnyNetwork for Network<O>
where
    E: crate::ops::Element<Wide = f32>,
    O: Ops<Element = E>,
    for<'a> EngineSource<'a>: Source<E>,
{
    fn size(&self) -> Size {
        self.size()
    }

    fn fallbacks(&self) -> Vec<String> {
        self.fallbacks()
    }

    fn tuner(&mut self) -> Option<&mut dyn ProductTuner> {
        self.tuner()
    }

    fn meter(&mut self) -> &mut Meter {
        self.meter()
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
        let sink = &mut EngineSink(sink);
        self.train(&mut EngineSource(weights), batch, scale, sums, loss, sink)
    }

    fn evaluate(&mut self, weights: &mut dyn WeightSource, batch: Batch<'_>) -> Result<f64, Error> {
        self.evaluate(&mut EngineSource(weights), batch)
    }
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
        let network: Box<dyn AnyNetwork> = match (options.compute, options.on_cuda) {
            (Compute::F32, false) => {
                Box::new(Network::<HostOps<f32>>::new(allocator, config, size, ranges)?)
            }
            (Compute::Bf16, false) => {
                Box::new(Network::<HostOps<bf16>>::new(allocator, config, size, ranges)?)
            }
            (Compute::F32, true) => {
                Box::new(Network::<CudaOps<f32>>::new(allocator, config, size, ranges)?)
            }
            (Compute::Bf16, true) => {
                Box::new(Network::<CudaOps<bf16>>::new(allocator, config, size, ranges)?)
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
        formatter.debug_struct("Fused").field("size", &self.network.size()).finish_non_exhaustive()
    }
}

impl Model for Fused {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn fallbacks(&self) -> Vec<String> {
        self.network.fallbacks()
    }

    fn tuner(&mut self) -> Option<&mut dyn ProductTuner> {
        self.network.tuner()
    }

    fn meter(&mut self) -> Option<&mut Meter> {
        Some(self.network.meter())
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
        self.network.train(weights, batch, scale, sums, loss, sink)
    }

    fn evaluate(&mut self, weights: &mut dyn WeightSource, batch: Batch<'_>) -> Result<f64, Error> {
        self.check_weights(weights);
        self.network.evaluate(weights, batch)
    }
}

/// The trainer's weights, for the network that is generic over the element.
struct EngineSource<'a>(&'a mut dyn WeightSource);

impl Source<f32> for EngineSource<'_> {
    fn segment(&mut self, range: &Range<usize>) -> Result<View<'_, f32>, Error> {
        Ok(self.0.segment(range)?.f32())
    }
}

impl Source<bf16> for EngineSource<'_> {
    fn segment(&mut self, range: &Range<usize>) -> Result<View<'_, bf16>, Error> {
        Ok(self.0.segment(range)?.bf16())
    }
}

/// The trainer's sink, for the network that is generic over the element.
struct EngineSink<'a>(&'a mut dyn StepSink);

impl Sink<f32> for EngineSink<'_> {
    fn gradient(&mut self, segment: usize) -> Result<ViewMut<'_, f32>, Error> {
        self.0.gradient(segment)
    }

    fn complete(&mut self, segment: usize) -> Result<(), Error> {
        self.0.complete(segment)
    }

    fn enter(&mut self, pass: Pass) {
        self.0.enter(pass);
    }
}
