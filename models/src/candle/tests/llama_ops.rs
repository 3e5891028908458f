//! Op by op: the ops of Llama alone against the oracle's differentiable formulations.

use candle_core::{DType, Tensor};
use device::Allocator;

use super::ops::{agree, as_type, dimensions, no_mask, numbers, oracle};
use crate::ModelConfig;
use crate::candle::llama::{Llama, Rotation, swiglu};
use crate::config::{self, Family, RopeScaling};
use crate::ops::{self, Float, RowSums, rms_norm, rope};

/// H = 6, K = 2, D = 10, with RoPE scaling such that all three cases of it occur.
fn model() -> (ModelConfig, config::Llama) {
    let scaling = RopeScaling {
        factor: 4.0,
        low_freq_factor: 0.5,
        high_freq_factor: 2.0,
        original_context: 16,
    };
    let llama = config::Llama {
        key_value_heads: 2,
        norm_epsilon: 1e-2,
        rope_scaling: Some(scaling),
        ..config::Llama::plain(6)
    };
    (ModelConfig { family: Family::Llama(llama), ..dimensions(60, 6) }, llama)
}

fn norms<T: Float>() {
    let (config, llama) = model();
    let rows = 21;
    let width = config.width;
    let x = numbers(rows * width, 1, 0.5);
    let w = numbers(width, 2, 1.0);
    let dy = numbers(rows * width, 3, 0.0);
    let mask = no_mask();
    let rotation = Rotation::new(&llama, 10, 1, DType::F64).unwrap();
    let shape: &[usize] = &[rows, width];
    let (y, gradients) =
        oracle(&[("x", &x, shape), ("n.weight", &w, &[width])], &dy, |parameters| {
            let model = Llama {
                config: &config,
                llama: &llama,
                parameters,
                mask: &mask,
                rotation: &rotation,
            };
            model.norm("n", &parameters["x"])
        });
    let x = as_type::<T>(&x);
    let w = as_type::<T>(&w);
    let dy = as_type::<T>(&dy);
    let mut found = vec![T::ZERO; rows * width];
    let mut inverses = vec![T::ZERO; rows];
    rms_norm::forward(&mut found, &mut inverses, &x, &w, llama.norm_epsilon);
    agree("y", &found, &y);
    let mut dx = vec![T::ZERO; rows * width];
    let mut dw = vec![T::ZERO; width];
    let sums = &mut RowSums::new(&Allocator::host(), rows, width);
    rms_norm::backward(&mut dx, &mut dw, &dy, (&inverses, &x), &w, sums);
    agree("dx", &dx, &gradients["x"]);
    agree("dw", &dw, &gradients["n.weight"]);
}

fn swiglus<T: Float>() {
    let (rows, width) = (18, 37);
    let gate_up = numbers(rows * 2 * width, 1, 0.0);
    let dy = numbers(rows * width, 2, 0.0);
    let named = [("x", &gate_up[..], &[rows, 2 * width][..])];
    let (y, gradients) = oracle(&named, &dy, |parameters| swiglu(&parameters["x"]));
    let mut gate_up = as_type::<T>(&gate_up);
    let dy = as_type::<T>(&dy);
    let mut found = vec![T::ZERO; rows * width];
    ops::swiglu::forward(&mut found, &gate_up, width);
    agree("y", &found, &y);
    ops::swiglu::recompute(&mut found, &mut gate_up, width);
    agree("y recomputed", &found, &y);
    ops::swiglu::backward(&mut gate_up, &dy, width);
    agree("dx", &gate_up, &gradients["x"]);
}

fn rotations<T: Float>() {
    let (config, llama) = model();
    let sequences = 2;
    let tokens = 23;
    let heads = 8;
    let head_width = config.head_width();
    let columns = config.qkv_width();
    let elements = sequences * tokens * columns;
    let qkv = numbers(elements, 1, 0.0);
    let dy = numbers(elements, 2, 0.0);
    let named = [("x", &qkv[..], &[sequences, tokens, columns][..])];
    let rotation = Rotation::new(&llama, head_width, tokens, DType::F64).unwrap();
    let (y, gradients) = oracle(&named, &dy, |parameters| {
        let by_heads = parameters["x"].reshape((sequences, tokens, (), head_width))?;
        let by_heads = by_heads.transpose(1, 2)?;
        let rotated = rotation.apply(&by_heads.narrow(1, 0, heads)?)?;
        let values = by_heads.narrow(1, heads, by_heads.dim(1)? - heads)?;
        Tensor::cat(&[&rotated, &values], 1)?.transpose(1, 2)?.flatten_from(2)
    });
    let mut qkv = as_type::<T>(&qkv);
    let mut dqkv = as_type::<T>(&dy);
    let tables = rope::Tables::new(&Allocator::host(), &llama.angles_per_token(head_width), tokens);
    let shape = rope::Shape { columns, heads };
    rope::forward(&mut qkv, &tables, shape);
    agree("y", &qkv, &y);
    rope::backward(&mut dqkv, &tables, shape);
    agree("dx", &dqkv, &gradients["x"]);
}

#[test]
fn in_f64() {
    norms::<f64>();
    swiglus::<f64>();
    rotations::<f64>();
}

#[test]
fn in_f32() {
    norms::<f32>();
    swiglus::<f32>();
    rotations::<f32>();
}
