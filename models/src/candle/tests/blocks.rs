//! Block by block: the fused engine's block against the oracle's, in f64 and f32.

use candle_core::{DType, Result, Tensor};

use super::ops::{as_type, dimensions, numbers, oracle};
use crate::candle::gpt::Gpt;
use crate::candle::llama::{Llama, Rotation};
use crate::candle::parts::{Parameters, causal_mask};
use crate::config::{self, Family};
use crate::layout::Init;
use crate::network::single_block::single_block;
use crate::ops::Float;
use crate::ops::testing::relative_error;
use crate::{Layout, MicroBatch, ModelConfig};

/// B, T, H, D with odd widths, one head and several, more tokens than one block of keys.
const GPT: [[usize; 4]; 3] = [[2, 7, 3, 5], [1, 70, 1, 9], [3, 5, 4, 4]];
/// B, T, H, D and K: grouped queries over two and three blocks of keys.
const LLAMA: [[usize; 5]; 2] = [[2, 67, 6, 4, 2], [1, 129, 3, 10, 1]];

/// Models and their micro-batches.
fn models() -> Vec<(ModelConfig, MicroBatch)> {
    let gpt = GPT.map(|[sequences, tokens, heads, head_width]| {
        (dimensions(heads * head_width, heads), MicroBatch { sequences, tokens })
    });
    let llama = LLAMA.map(|[sequences, tokens, heads, head_width, key_value_heads]| {
        let own = config::Llama { key_value_heads, ..config::Llama::plain(heads) };
        let shared = dimensions(heads * head_width, heads);
        let config = ModelConfig { family: Family::Llama(own), ..shared };
        (config, MicroBatch { sequences, tokens })
    });
    gpt.into_iter().chain(llama).collect()
}

/// The oracle's block.
fn block(config: &ModelConfig, tokens: usize, parameters: &Parameters) -> Result<Tensor> {
    let x = &parameters["x"];
    let mask = &causal_mask(tokens, DType::F64)?;
    match &config.family {
        Family::Gpt => Gpt { config, parameters, mask }.block(x, 0),
        Family::Llama(llama) => {
            let rotation = &Rotation::new(llama, config.head_width(), tokens, DType::F64)?;
            Llama { config, llama, parameters, mask, rotation }.block(x, 0)
        }
    }
}

/// Relative L2 error that the rounding of a dozen ops in a row explains.
fn agree<T: Float>(what: &str, found: &[T], exact: &[f64]) {
    let tolerance = if size_of::<T>() == 8 { 1e-12 } else { 1e-5 };
    let error = relative_error(found, exact);
    assert!(error < tolerance, "{what}: relative error {error:e}");
}

fn blocks_agree<T: Float>() {
    for (config, micro_batch) in models() {
        let MicroBatch { sequences, tokens } = micro_batch;
        let width = config.width;
        let layout = Layout::new(&config);
        let segment = layout.segments().iter().find(|segment| segment.name == "h.0").unwrap();
        let tensors = &layout.tensors()[segment.tensors.clone()];
        let mut weights = vec![0.0; layout.len()];
        for (seed, tensor) in (10..).zip(tensors) {
            let center = if tensor.init == Init::Ones { 1.0 } else { 0.0 };
            let values = numbers(tensor.range.len(), seed, 0.0);
            let values: Vec<f64> = values.iter().map(|value| center + value / 4.0).collect();
            weights[tensor.range.clone()].copy_from_slice(&values);
        }
        let elements = micro_batch.rows() * width;
        let x = numbers(elements, 1, 0.0);
        let dy = numbers(elements, 2, 0.0);
        let shape_of_x: &[usize] = &[sequences, tokens, width];
        let mut inputs = vec![("x", &x[..], shape_of_x)];
        inputs.extend(tensors.iter().map(|tensor| {
            (tensor.name.as_str(), &weights[tensor.range.clone()], &tensor.shape[..])
        }));
        let (y, gradients) = oracle(&inputs, &dy, |parameters| block(&config, tokens, parameters));

        let weights = as_type::<T>(&weights);
        let x = as_type::<T>(&x);
        let dy = as_type::<T>(&dy);
        let found = single_block(&config, &layout, micro_batch, &weights, &x, &dy);
        agree("y of the block", &found.output, &y);
        agree("dx of the block", &found.dx, &gradients["x"]);
        for tensor in tensors {
            let from = tensor.range.start;
            let to = tensor.range.end;
            let start = segment.range.start;
            agree(
                &tensor.name,
                &found.gradients[from - start..to - start],
                &gradients[&tensor.name],
            );
        }
    }
}

#[test]
fn in_f64() {
    blocks_agree::<f64>();
}

#[test]
fn in_f32() {
    blocks_agree::<f32>();
}
