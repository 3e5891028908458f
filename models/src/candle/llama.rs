//! Llama's forward pass in differentiable candle operations.
//!
//! Touvron et al. 2023 (arXiv 2302.13971, section 2.2) on Zhang, Sennrich 2019 (RMSNorm), Su et al.
//! 2021 (RoPE), Shazeer 2020 (SwiGLU) and Ainslie et al. 2023 (grouped queries). Pairs that RoPE
//! rotates are the elements i and i + D / 2 of a head, as in Hugging Face's weights.

use candle_core::{D, DType, Device, Module, Result, Tensor};
use candle_nn::ops::sigmoid;
use candle_nn::{Embedding, Linear};

use super::parts::{Parameters, attend, cross_entropy};
use crate::ModelConfig;
use crate::config;

/// Cosine and sine of RoPE's angles, each (T, D / 2).
#[derive(Debug)]
pub(super) struct Rotation {
    cosine: Tensor,
    sine: Tensor,
}

impl Rotation {
    /// Computes the tables for positions 0 to T - 1.
    pub(super) fn new(
        llama: &config::Llama,
        head_width: usize,
        tokens: usize,
        dtype: DType,
    ) -> Result<Self> {
        let angles = llama.angles_per_token(head_width);
        let angles = Tensor::from_slice(&angles, (1, head_width / 2), &Device::Cpu)?;
        let positions: Vec<f64> = (0..tokens).map(|position| position as f64).collect();
        let angles = Tensor::from_vec(positions, (tokens, 1), &Device::Cpu)?.matmul(&angles)?;
        Ok(Self { cosine: angles.cos()?.to_dtype(dtype)?, sine: angles.sin()?.to_dtype(dtype)? })
    }

    /// Rotates each pair of (B, heads, T, D) by its position's angle.
    pub(super) fn apply(&self, x: &Tensor) -> Result<Tensor> {
        let half = x.dim(D::Minus1)? / 2;
        let first = x.narrow(3, 0, half)?;
        let second = x.narrow(3, half, half)?;
        let rotated_first =
            first.broadcast_mul(&self.cosine)? - second.broadcast_mul(&self.sine)?;
        let rotated_second =
            second.broadcast_mul(&self.cosine)? + first.broadcast_mul(&self.sine)?;
        Tensor::cat(&[rotated_first?, rotated_second?], 3)
    }
}

/// One model over borrowed parameters. M = B T rows.
pub(super) struct Llama<'a> {
    pub(super) config: &'a ModelConfig,
    pub(super) llama: &'a config::Llama,
    pub(super) parameters: &'a Parameters,
    /// (T, T): 0 where a query may look, minus infinity where it may not.
    pub(super) mask: &'a Tensor,
    pub(super) rotation: &'a Rotation,
}

impl Llama<'_> {
    /// Cross-entropy of each target: inputs (B, T), targets (M, 1) to (M).
    pub(super) fn losses(&self, inputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let table = self.tensor("wte.weight").clone();
        let mut x = Embedding::new(table, self.config.width).forward(inputs)?; // (B, T, C)
        for layer in 0..self.config.layers {
            x = self.block(&x, layer)?;
        }
        let x = self.norm("ln_f", &x)?.flatten_to(1)?;
        let head = if self.llama.tied { "wte.weight" } else { "lm_head.weight" };
        cross_entropy(&x, self.tensor(head), targets)
    }

    /// (B, T, C) to (B, T, C).
    pub(super) fn block(&self, x: &Tensor, layer: usize) -> Result<Tensor> {
        let name = |part: &str| format!("h.{layer}.{part}");
        let qkv = self.linear(&name("attn.c_attn"), &self.norm(&name("ln_1"), x)?)?;
        let x = (x + self.linear(&name("attn.c_proj"), &self.attention(&qkv)?)?)?;
        let gate_up = self.linear(&name("mlp.gate_up"), &self.norm(&name("ln_2"), &x)?)?;
        &x + self.linear(&name("mlp.c_proj"), &swiglu(&gate_up)?)?
    }

    /// Causal attention, H / K query heads to each head of keys: (B, T, (H + 2 K) D) to (B, T, C).
    pub(super) fn attention(&self, qkv: &Tensor) -> Result<Tensor> {
        let (sequences, tokens, _) = qkv.dims3()?;
        let heads = self.config.heads;
        let groups = self.llama.key_value_heads;
        let head_width = self.config.head_width();
        let rows = qkv.reshape((sequences, tokens, heads + 2 * groups, head_width))?;
        let rows = rows.transpose(1, 2)?.contiguous()?; // (B, H + 2 K, T, D)
        let query = self.rotation.apply(&rows.narrow(1, 0, heads)?)?;
        let key = self.rotation.apply(&rows.narrow(1, heads, groups)?)?;
        let value = rows.narrow(1, heads + groups, groups)?;
        let shared = |x: &Tensor| {
            x.unsqueeze(2)?
                .broadcast_as((sequences, groups, heads / groups, tokens, head_width))?
                .reshape((sequences, heads, tokens, head_width))
        };
        attend(&query, &shared(&key)?, &shared(&value)?, self.mask)
    }

    fn linear(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        Linear::new(self.tensor(&format!("{name}.weight")).clone(), None).forward(x)
    }

    pub(super) fn norm(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        let mean_square = x.sqr()?.mean_keepdim(D::Minus1)?;
        x.broadcast_div(&(mean_square + self.llama.norm_epsilon)?.sqrt()?)?
            .broadcast_mul(self.tensor(&format!("{name}.weight")))
    }

    fn tensor(&self, name: &str) -> &Tensor {
        &self.parameters[name]
    }
}

/// gate sigmoid(gate) up of rows that hold the gate first: (.., 2 F) to (.., F).
pub(super) fn swiglu(gate_up: &Tensor) -> Result<Tensor> {
    let width = gate_up.dim(D::Minus1)? / 2;
    let gate = gate_up.narrow(D::Minus1, 0, width)?;
    let up = gate_up.narrow(D::Minus1, width, width)?;
    (&gate * sigmoid(&gate)?)? * up
}
