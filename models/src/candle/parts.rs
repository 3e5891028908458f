//! Parts that both families' forward passes share, in differentiable candle operations.

use std::collections::HashMap;

use candle_core::{D, DType, Device, Module, Result, Tensor};
use candle_nn::Linear;
use candle_nn::ops::{log_softmax, softmax};

/// Tensors of a model by name.
pub(super) type Parameters = HashMap<String, Tensor>;

/// The causal mask (T, T).
pub(super) fn causal_mask(tokens: usize, dtype: DType) -> Result<Tensor> {
    let allowed = |index: usize| index % tokens <= index / tokens;
    let mask: Vec<f32> = (0..tokens * tokens)
        .map(|index| if allowed(index) { 0.0 } else { f32::NEG_INFINITY })
        .collect();
    Tensor::from_vec(mask, (tokens, tokens), &Device::Cpu)?.to_dtype(dtype)
}

/// Scaled dot-product attention of all heads: three times (B, H, T, D) to (B, T, H D).
pub(super) fn attend(
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    mask: &Tensor,
) -> Result<Tensor> {
    let query = (query * (1.0 / (query.dim(D::Minus1)? as f64).sqrt()))?;
    let scores = query.matmul(&key.t()?)?.broadcast_add(mask)?; // (B, H, T, T)
    let mixed = softmax(&scores, D::Minus1)?.matmul(value)?; // (B, H, T, D)
    mixed.transpose(1, 2)?.flatten_from(2)
}

/// Cross-entropy of each target by the head's table (V, C): (M, C) and targets (M, 1) to (M).
pub(super) fn cross_entropy(x: &Tensor, table: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let logits = Linear::new(table.clone(), None).forward(x)?; // (M, V)
    log_softmax(&logits, D::Minus1)?.gather(targets, 1)?.squeeze(1)?.neg()
}
