//! The candle engine: candle-nn modules and candle's autograd. It is the oracle of other engines.
//!
//! It is written to be read, not to be fast: weights are copied into tensors on every call, and
//! autograd keeps every intermediate. Three pitfalls of candle 0.11.1 shape it:
//! - `LayerNorm` with bias, `ops::layer_norm`, `rms_norm`, `rope` and `softmax_last_dim` drop
//!   gradients silently, so only differentiable formulations are used, and a parameter without
//!   gradient is an error.
//! - `Tensor::gelu`'s backward has constants of six digits (wrong by 1e-6), so GELU is composed.
//! - matmuls take their thread count from `RAYON_NUM_THREADS`, read from the environment.

use std::collections::HashMap;

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Result, Tensor, Var};
use device::{Allocator, ViewMut};

use crate::config::Family;
use crate::layout::Segment;
use crate::{
    Batch, Error, Layout, MicroBatch, Model, ModelConfig, Pass, StepSink, Sums, WeightSource,
};

mod gpt;
mod llama;
mod memory;
mod parts;

use llama::Rotation;
pub use memory::ACTIVATION_TOLERANCE;
use parts::Parameters;

/// The candle engine at one micro-batch shape (B, T), on the CPU.
#[derive(Debug)]
pub struct Candle {
    config: ModelConfig,
    layout: Layout,
    micro_batch: MicroBatch,
    dtype: DType,
}

impl Candle {
    /// An engine in f32.
    ///
    /// Candle allocates as it computes: what it will need is estimated and recorded.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the configuration is, B is 0, or T is not in 1 to the context.
    pub fn new(
        config: &ModelConfig,
        layout: Layout,
        micro_batch: MicroBatch,
        allocator: &Allocator,
    ) -> std::result::Result<Self, Error> {
        let engine = Self::with_dtype(config, layout, micro_batch, DType::F32)?;
        memory::record_activations(config, micro_batch, allocator);
        Ok(engine)
    }

    /// The same, computing in f64: weights and gradients are still passed in f32.
    /// This is the reference for f32 engines.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the configuration is, B is 0, or T is not in 1 to the context.
    pub fn new_f64(
        config: &ModelConfig,
        layout: Layout,
        micro_batch: MicroBatch,
    ) -> std::result::Result<Self, Error> {
        Self::with_dtype(config, layout, micro_batch, DType::F64)
    }

    fn with_dtype(
        config: &ModelConfig,
        layout: Layout,
        micro_batch: MicroBatch,
        dtype: DType,
    ) -> std::result::Result<Self, Error> {
        config.validate()?;
        config.check_micro_batch(micro_batch)?;
        Ok(Self { config: config.clone(), layout, micro_batch, dtype })
    }

    /// The weights as variables by name, padding left out. Waits for all of them.
    fn variables(
        &self,
        weights: &mut dyn WeightSource,
    ) -> std::result::Result<HashMap<String, Var>, Error> {
        assert_eq!(weights.flat_len(), self.layout.len(), "length of the flat weights");
        let mut variables = HashMap::new();
        for segment in self.layout.segments().iter().rev() {
            let weights = weights.segment(&segment.range)?.f32().host();
            for tensor in &self.layout.tensors()[segment.tensors.clone()] {
                let start = tensor.range.start - segment.range.start;
                let values = &weights[start..][..tensor.range.len()];
                let values = Tensor::from_slice(values, tensor.shape.as_slice(), &Device::Cpu)?;
                let variable = Var::from_tensor(&values.to_dtype(self.dtype)?)?;
                variables.insert(tensor.name.clone(), variable);
            }
        }
        Ok(variables)
    }

    /// Cross-entropy in nats of each target: (B T).
    fn losses(&self, parameters: &Parameters, batch: Batch<'_>) -> Result<Tensor> {
        let MicroBatch { sequences, tokens } = self.micro_batch;
        let rows = self.micro_batch.rows();
        assert_eq!(batch.inputs.len(), rows, "inputs are (B, T)");
        assert_eq!(batch.targets.len(), rows, "targets are (B, T)");
        let inputs = Tensor::from_slice(batch.inputs, (sequences, tokens), &Device::Cpu)?;
        let targets = Tensor::from_slice(batch.targets, (rows, 1), &Device::Cpu)?;
        let config = &self.config;
        let mask = &parts::causal_mask(tokens, self.dtype)?;
        match &config.family {
            Family::Gpt => gpt::Gpt { config, parameters, mask }.losses(&inputs, &targets),
            Family::Llama(llama) => {
                let rotation = &Rotation::new(llama, config.head_width(), tokens, self.dtype)?;
                let model = llama::Llama { config, llama, parameters, mask, rotation };
                model.losses(&inputs, &targets)
            }
        }
    }

    /// Writes or adds `scale` times the gradients of one segment's tensors to the flat gradient.
    fn write_gradients(
        &self,
        segment: &Segment,
        variables: &HashMap<String, Var>,
        gradients: &GradStore,
        scale: f32,
        sums: Sums,
        flat: &mut [f32],
    ) -> std::result::Result<(), Error> {
        for tensor in &self.layout.tensors()[segment.tensors.clone()] {
            let gradient = gradients
                .get(&variables[&tensor.name])
                .ok_or_else(|| Error::MissingGradient { tensor: tensor.name.clone() })?;
            let gradient = (gradient.flatten_all()?.to_dtype(DType::F64)? * f64::from(scale))?;
            let start = tensor.range.start - segment.range.start;
            let values = gradient.to_dtype(DType::F32)?.to_vec1::<f32>()?;
            for (sum, value) in flat[start..].iter_mut().zip(values) {
                *sum = if sums == Sums::Add { *sum + value } else { value };
            }
        }
        Ok(())
    }
}

impl Model for Candle {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn train(
        &mut self,
        weights: &mut dyn WeightSource,
        batch: Batch<'_>,
        scale: f32,
        sums: Sums,
        loss: ViewMut<'_, f64>,
        sink: &mut dyn StepSink,
    ) -> std::result::Result<(), Error> {
        sink.enter(Pass::Forward);
        let variables = self.variables(weights)?;
        let tensors = variables.iter().map(|(name, v)| (name.clone(), v.as_tensor().clone()));
        let losses = self.losses(&tensors.collect(), batch)?;
        loss.host()[0] += sum(&losses)?;
        sink.enter(Pass::Backward);
        let gradients = losses.sum_all()?.backward()?;
        for (index, segment) in self.layout.segments().iter().enumerate() {
            let flat = sink.gradient(index)?.host();
            self.write_gradients(segment, &variables, &gradients, scale, sums, flat)?;
            sink.complete(index)?;
        }
        Ok(())
    }

    fn evaluate(
        &mut self,
        weights: &mut dyn WeightSource,
        batch: Batch<'_>,
    ) -> std::result::Result<f64, Error> {
        let variables = self.variables(weights)?;
        let tensors = variables.iter().map(|(name, v)| (name.clone(), v.as_detached_tensor()));
        Ok(sum(&self.losses(&tensors.collect(), batch)?)?)
    }
}

/// The sum in f64, in order.
fn sum(losses: &Tensor) -> Result<f64> {
    Ok(losses.to_dtype(DType::F64)?.to_vec1::<f64>()?.iter().sum())
}

#[cfg(test)]
mod tests;
