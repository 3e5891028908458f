//! The candle engine: candle-nn modules and candle's autograd. It is the oracle of the others.
//!
//! It is written to be read, not to be fast: weights are copied into tensors on every call, and
//! autograd keeps every intermediate. Three of candle 0.11.1's traps shape it:
//! - `LayerNorm` with bias, `ops::layer_norm`, `rms_norm`, `rope` and `softmax_last_dim` drop
//!   gradients silently, so only differentiable formulations are used, and a parameter without
//!   gradient is an error.
//! - `Tensor::gelu`'s backward has constants of six digits (wrong by 1e-6), so GELU is composed.
//! - matmuls take their thread count from `RAYON_NUM_THREADS`, read from the environment.

use std::collections::HashMap;

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Result, Tensor, Var};

use crate::config::Family;
use crate::layout::Segment;
use crate::{Batch, Error, Layout, Model, ModelConfig, Pass, StepSink, Sums, WeightSource};

mod gpt;
mod llama;
mod memory;
mod parts;

use llama::Rotation;
pub use memory::{ACTIVATION_TOLERANCE, activation_bytes};

/// Tensors of a model by name.
type Parameters = HashMap<String, Tensor>;

/// The candle engine at one micro-batch shape (B, T), on the CPU.
#[derive(Debug)]
pub struct Candle {
    config: ModelConfig,
    layout: Layout,
    shape: (usize, usize),
    dtype: DType,
    mask: Tensor,
    /// Only with RoPE.
    rotation: Option<Rotation>,
}

impl Candle {
    /// An engine in f32 for B = `micro_sequences` of T = `sequence_tokens` each.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the configuration is, B is 0, or T is not in 1 to the context.
    pub fn new(
        config: &ModelConfig,
        layout: Layout,
        micro_sequences: usize,
        sequence_tokens: usize,
    ) -> std::result::Result<Self, Error> {
        Self::with_dtype(config, layout, (micro_sequences, sequence_tokens), DType::F32)
    }

    /// The same, computing in f64: weights and gradients are still handed over in f32.
    /// This is what f32 engines are judged against.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the configuration is, B is 0, or T is not in 1 to the context.
    pub fn new_f64(
        config: &ModelConfig,
        layout: Layout,
        micro_sequences: usize,
        sequence_tokens: usize,
    ) -> std::result::Result<Self, Error> {
        Self::with_dtype(config, layout, (micro_sequences, sequence_tokens), DType::F64)
    }

    fn with_dtype(
        config: &ModelConfig,
        layout: Layout,
        shape: (usize, usize),
        dtype: DType,
    ) -> std::result::Result<Self, Error> {
        config.validate()?;
        config.check_batch(shape.0, shape.1)?;
        let mask = parts::causal_mask(shape.1, dtype)?;
        let rotation = match &config.family {
            Family::Gpt => None,
            Family::Llama(llama) => {
                Some(Rotation::new(llama, config.head_width(), shape.1, dtype)?)
            }
        };
        Ok(Self { config: config.clone(), layout, shape, dtype, mask, rotation })
    }

    /// The weights as variables by name, padding left out. Waits for all of them.
    fn variables(
        &self,
        weights: &mut dyn WeightSource,
    ) -> std::result::Result<HashMap<String, Var>, Error> {
        assert_eq!(weights.flat_len(), self.layout.len(), "length of the flat weights");
        let mut variables = HashMap::new();
        for segment in self.layout.segments().iter().rev() {
            let weights = weights.segment(&segment.range)?.f32();
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
        let rows = self.shape.0 * self.shape.1;
        assert_eq!(batch.inputs.len(), rows, "inputs are (B, T)");
        assert_eq!(batch.targets.len(), rows, "targets are (B, T)");
        let inputs = Tensor::from_slice(batch.inputs, self.shape, &Device::Cpu)?;
        let targets = Tensor::from_slice(batch.targets, (rows, 1), &Device::Cpu)?;
        let (config, mask) = (&self.config, &self.mask);
        match (&config.family, &self.rotation) {
            (Family::Llama(llama), Some(rotation)) => {
                let model = llama::Llama { config, llama, parameters, mask, rotation };
                model.losses(&inputs, &targets)
            }
            _ => gpt::Gpt { config, parameters, mask }.losses(&inputs, &targets),
        }
    }

    /// Writes or adds `scale` times the gradients of one segment's tensors to the flat gradient.
    fn hand_over(
        &self,
        segment: &Segment,
        variables: &HashMap<String, Var>,
        gradients: &GradStore,
        (scale, sums): (f32, Sums),
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

    /// Nothing is made of weights that outlives a call.
    fn weights_changed(&mut self) {}

    fn train(
        &mut self,
        weights: &mut dyn WeightSource,
        batch: Batch<'_>,
        scale: f32,
        sums: Sums,
        sink: &mut dyn StepSink,
    ) -> std::result::Result<f64, Error> {
        sink.enter(Pass::Forward);
        let variables = self.variables(weights)?;
        let tensors = variables.iter().map(|(name, v)| (name.clone(), v.as_tensor().clone()));
        let losses = self.losses(&tensors.collect(), batch)?;
        let loss = sum(&losses)?;
        sink.enter(Pass::Backward);
        let gradients = losses.sum_all()?.backward()?;
        for (index, segment) in self.layout.segments().iter().enumerate() {
            let flat = sink.gradient(index);
            self.hand_over(segment, &variables, &gradients, (scale, sums), flat)?;
            sink.complete(index);
        }
        Ok(loss)
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
mod block_agrees;
#[cfg(test)]
mod llama_agrees;
#[cfg(test)]
mod ops_agree;
#[cfg(test)]
mod tests;
