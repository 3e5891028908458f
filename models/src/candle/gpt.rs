//! GPT-2's forward pass in differentiable candle operations.
//!
//! Radford et al. 2019, "Language Models are Unsupervised Multitask Learners" (section 2.3), on
//! Vaswani et al. 2017 (attention), Ba et al. 2016 (layer norm) and Hendrycks, Gimpel 2016 (GELU).

use candle_core::{D, Module, Result, Tensor};
use candle_nn::ops::sigmoid;
use candle_nn::{Embedding, Linear};

use super::parts::{Parameters, attend, cross_entropy};
use crate::ModelConfig;

/// Added to the variance by layer norm, as in GPT-2.
const EPSILON: f64 = 1e-5;

/// One model over borrowed parameters. M = B T rows.
pub(super) struct Gpt<'a> {
    pub(super) config: &'a ModelConfig,
    pub(super) parameters: &'a Parameters,
    /// (T, T): 0 where a query may look, minus infinity where it may not.
    pub(super) mask: &'a Tensor,
}

impl Gpt<'_> {
    /// Cross-entropy of each target: inputs (B, T), targets (M, 1) to (M).
    pub(super) fn losses(&self, inputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let mut x = self.embed(inputs)?;
        for layer in 0..self.config.layers {
            x = self.block(&x, layer)?;
        }
        self.cross_entropy(&self.layer_norm("ln_f", &x)?.flatten_to(1)?, targets)
    }

    /// Token and position embedding: (B, T) to (B, T, C).
    pub(super) fn embed(&self, inputs: &Tensor) -> Result<Tensor> {
        let tokens = Embedding::new(self.tensor("wte.weight").clone(), self.config.width);
        let positions = self.tensor("wpe.weight").narrow(0, 0, inputs.dim(1)?)?;
        tokens.forward(inputs)?.broadcast_add(&positions)
    }

    /// The tied head and its loss: (M, C) and targets (M, 1) to (M).
    pub(super) fn cross_entropy(&self, x: &Tensor, targets: &Tensor) -> Result<Tensor> {
        cross_entropy(x, self.tensor("wte.weight"), targets)
    }

    /// (B, T, C) to (B, T, C).
    pub(super) fn block(&self, x: &Tensor, layer: usize) -> Result<Tensor> {
        let name = |part: &str| format!("h.{layer}.{part}");
        let normed = self.layer_norm(&name("ln_1"), x)?;
        let qkv = self.linear(&name("attn.c_attn"), &normed)?; // (B, T, 3 C)
        let x = (x + self.linear(&name("attn.c_proj"), &self.attention(&qkv)?)?)?;
        let normed = self.layer_norm(&name("ln_2"), &x)?;
        let hidden = gelu(&self.linear(&name("mlp.c_fc"), &normed)?)?; // (B, T, F)
        &x + self.linear(&name("mlp.c_proj"), &hidden)?
    }

    /// Causal attention of all heads: (B, T, 3 C) to (B, T, C).
    pub(super) fn attention(&self, qkv: &Tensor) -> Result<Tensor> {
        let (sequences, tokens, _) = qkv.dims3()?;
        let heads = self.config.heads;
        let qkv = qkv.reshape((sequences, tokens, 3, heads, self.config.head_width()))?;
        let part = |index| qkv.narrow(2, index, 1)?.squeeze(2)?.transpose(1, 2)?.contiguous();
        attend(&part(0)?, &part(1)?, &part(2)?, self.mask) // of (B, H, T, D) each
    }

    pub(super) fn linear(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        let weight = self.tensor(&format!("{name}.weight")).clone();
        let bias = self.tensor(&format!("{name}.bias")).clone();
        Linear::new(weight, Some(bias)).forward(x)
    }

    pub(super) fn layer_norm(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        let centered = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
        let variance = centered.sqr()?.mean_keepdim(D::Minus1)?;
        centered
            .broadcast_div(&(variance + EPSILON)?.sqrt()?)?
            .broadcast_mul(self.tensor(&format!("{name}.weight")))?
            .broadcast_add(self.tensor(&format!("{name}.bias")))
    }

    fn tensor(&self, name: &str) -> &Tensor {
        &self.parameters[name]
    }
}

/// GELU in its tanh form, 0.5 x (1 + tanh u) with u = sqrt(2 / pi) (x + 0.044715 x^3), written as
/// x sigmoid(2 u): the same function with fewer intermediates.
pub(super) fn gelu(x: &Tensor) -> Result<Tensor> {
    let root = std::f64::consts::FRAC_2_PI.sqrt();
    let factor = x.sqr()?.affine(2.0 * root * 0.044_715, 2.0 * root)?;
    x * sigmoid(&(x * factor)?)?
}
