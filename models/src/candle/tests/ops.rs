//! Op by op: the functions of [`crate::ops`] against the oracle's differentiable formulations.
//!
//! In f64 both must agree to rounding, so the formulas are the same; f32 is then judged by the f64
//! oracle. Inputs are numbers that f32 holds exactly.

use std::collections::HashMap;

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_nn::Optimizer;
use device::Allocator;

use crate::ModelConfig;
use crate::candle::gpt::{Gpt, gelu};
use crate::candle::parts::{Parameters, causal_mask};
use crate::config::Family;
use crate::ops::testing::relative_error;
use crate::ops::{
    Float, RowSums, adamw, attention, cross_entropy, embedding, gradient_norm, layer_norm, matmul,
};
use crate::rng::{Purpose, Stream};

/// Named inputs: values and shape.
type Inputs<'a> = [(&'a str, &'a [f64], &'a [usize])];

/// The f64 oracle's output and, by input, the gradient of its inner product with `dy`.
pub(super) fn oracle(
    inputs: &Inputs<'_>,
    dy: &[f64],
    compute: impl Fn(&Parameters) -> Result<Tensor>,
) -> (Vec<f64>, HashMap<String, Vec<f64>>) {
    let variables: HashMap<String, Var> = inputs
        .iter()
        .map(|(name, values, shape)| {
            ((*name).to_owned(), Var::from_slice(values, *shape, &Device::Cpu).unwrap())
        })
        .collect();
    let tensors = variables.iter().map(|(name, v)| (name.clone(), v.as_tensor().clone()));
    let y = compute(&tensors.collect()).unwrap();
    let dy = Tensor::from_slice(dy, y.shape(), &Device::Cpu).unwrap();
    let gradients = (&y * dy).unwrap().sum_all().unwrap().backward().unwrap();
    let flat = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f64>().unwrap();
    let gradients =
        variables.iter().map(|(name, v)| (name.clone(), flat(gradients.get(v).unwrap())));
    (flat(&y), gradients.collect())
}

/// `len` numbers around `center`, exact in f32.
pub(super) fn numbers(len: usize, seed: u64, center: f64) -> Vec<f64> {
    let stream = Stream::new(seed, Purpose::Test);
    (0..len as u64).map(|index| f64::from((center + stream.normal(index)) as f32)).collect()
}

pub(super) fn as_type<T: Float>(values: &[f64]) -> Vec<T> {
    values.iter().map(|value| T::from_f64(*value)).collect()
}

/// Largest relative L2 error that rounding explains.
fn tolerance<T>() -> f64 {
    if size_of::<T>() == 8 { 1e-13 } else { 2e-6 }
}

pub(super) fn agree<T: Float>(what: &str, found: &[T], exact: &[f64]) {
    let error = relative_error(found, exact);
    assert!(error < tolerance::<T>(), "{what}: relative error {error:e}");
}

/// A model of which only the dimensions that one op needs are true.
pub(super) fn dimensions(width: usize, heads: usize) -> ModelConfig {
    ModelConfig {
        family: Family::Gpt,
        layers: 1,
        width,
        heads,
        feed_forward: 4 * width,
        vocabulary: 2,
        context: 1,
    }
}

pub(super) fn no_mask() -> Tensor {
    causal_mask(1, DType::F64).unwrap()
}

/// Calls a generic test in both types.
macro_rules! in_both_types {
    ($($name:ident),*) => {$(
        mod $name {
            #[test]
            fn in_f64() {
                super::$name::<f64>();
            }

            #[test]
            fn in_f32() {
                super::$name::<f32>();
            }
        }
    )*};
}

in_both_types!(linear, layer_norms, gelus, attentions, embeddings, heads, optimizer);

fn linear<T: Float>() {
    let (rows, inputs, outputs) = (37, 19, 23);
    let x = numbers(rows * inputs, 1, 0.0);
    let w = numbers(outputs * inputs, 2, 0.0);
    let b = numbers(outputs, 3, 0.0);
    let dy = numbers(rows * outputs, 4, 0.0);
    let named: &Inputs<'_> = &[
        ("x", &x, &[rows, inputs]),
        ("fc.weight", &w, &[outputs, inputs]),
        ("fc.bias", &b, &[outputs]),
    ];
    let config = dimensions(inputs, 1);
    let mask = no_mask();
    let (y, gradients) = oracle(named, &dy, |parameters| {
        Gpt { config: &config, parameters, mask: &mask }.linear("fc", &parameters["x"])
    });
    let shape = matmul::Shape { rows, inputs, outputs };
    let mut workspace = matmul::Workspace::new(&Allocator::host(), 2);
    let x = as_type::<T>(&x);
    let w = as_type(&w);
    let b = as_type(&b);
    let dy = as_type(&dy);
    let mut found = vec![T::ZERO; rows * outputs];
    let epilogue = (Some(b.as_slice()), matmul::Epilogue::Store);
    matmul::forward(&mut found, &x, &w, epilogue, shape, &mut workspace);
    agree("y", &found, &y);
    let mut dx = vec![T::ZERO; rows * inputs];
    matmul::backward_input(&mut dx, &dy, &w, None, shape, &mut workspace);
    agree("dx", &dx, &gradients["x"]);
    let mut dw = vec![T::ZERO; outputs * inputs];
    matmul::backward_weight(&mut dw, &dy, &x, matmul::Sums::Add, shape, &mut workspace);
    agree("dw", &dw, &gradients["fc.weight"]);
    let mut db = vec![T::ZERO; outputs];
    matmul::backward_bias(&mut db, &dy, matmul::Sums::Add);
    agree("db", &db, &gradients["fc.bias"]);
}

fn layer_norms<T: Float>() {
    let (rows, width) = (21, 45);
    let x = numbers(rows * width, 1, 0.5);
    let w = numbers(width, 2, 1.0);
    let b = numbers(width, 3, 0.0);
    let dy = numbers(rows * width, 4, 0.0);
    let named: &Inputs<'_> =
        &[("x", &x, &[rows, width]), ("ln.weight", &w, &[width]), ("ln.bias", &b, &[width])];
    let config = dimensions(width, 1);
    let mask = no_mask();
    let (y, gradients) = oracle(named, &dy, |parameters| {
        Gpt { config: &config, parameters, mask: &mask }.layer_norm("ln", &parameters["x"])
    });
    let x = as_type::<T>(&x);
    let w = as_type(&w);
    let b = as_type(&b);
    let dy = as_type(&dy);
    let mut found = vec![T::ZERO; rows * width];
    let mut stats = vec![[T::ZERO; 2]; rows];
    let parameters = layer_norm::Parameters { weight: &w, bias: &b };
    layer_norm::forward(&mut found, &mut stats, &x, parameters);
    agree("y", &found, &y);
    let mut dx = vec![T::ZERO; rows * width];
    let mut dw = vec![T::ZERO; width];
    let mut db = vec![T::ZERO; width];
    let into = layer_norm::Gradients { weight: &mut dw, bias: &mut db };
    let sums = &mut RowSums::new(&Allocator::host(), rows, 2 * width);
    layer_norm::backward(&mut dx, into, &dy, (&stats, &x), &w, sums);
    agree("dx", &dx, &gradients["x"]);
    agree("dw", &dw, &gradients["ln.weight"]);
    agree("db", &db, &gradients["ln.bias"]);
}

/// GELU as the epilogue of a product with one weight, 1.
fn gelus<T: Float>() {
    let len = 501;
    let x: Vec<f64> = numbers(len, 1, 0.0).iter().map(|x| 2.0 * x).collect();
    let dy = numbers(len, 2, 0.0);
    let (y, gradients) = oracle(&[("x", &x, &[len])], &dy, |inputs| gelu(&inputs["x"]));
    let mut x = as_type::<T>(&x);
    let dy = as_type::<T>(&dy);
    let shape = matmul::Shape { rows: len, inputs: 1, outputs: 1 };
    let mut dx = vec![T::ZERO; len];
    let workspace = &mut matmul::Workspace::new(&Allocator::host(), 2);
    matmul::backward_input(&mut dx, &dy, &[T::ONE][..], Some(&mut x), shape, workspace);
    agree("y", &x, &y);
    agree("dx", &dx, &gradients["x"]);
}

fn attentions<T: Float>() {
    // Below, at and above one block of keys; odd head widths.
    for (sequences, tokens, heads, head_width) in [(2, 7, 3, 5), (1, 64, 1, 8), (2, 131, 2, 13)] {
        let key_value_heads = heads;
        let shape = attention::Shape { sequences, tokens, heads, key_value_heads, head_width };
        let width = heads * head_width;
        let elements = sequences * tokens * width;
        let qkv = numbers(3 * elements, 1, 0.0);
        let dy = numbers(elements, 2, 0.0);
        let dimensions_of_qkv: &[usize] = &[sequences, tokens, 3 * width];
        let config = dimensions(width, heads);
        let mask = causal_mask(tokens, DType::F64).unwrap();
        let (y, gradients) = oracle(&[("qkv", &qkv, dimensions_of_qkv)], &dy, |parameters| {
            Gpt { config: &config, parameters, mask: &mask }.attention(&parameters["qkv"])
        });
        let qkv = as_type::<T>(&qkv);
        let dy = as_type::<T>(&dy);
        let mut workspace = attention::Workspace::new(&Allocator::host(), 2, &shape);
        let mut found = vec![T::ZERO; elements];
        let mut log_sums = vec![T::ZERO; sequences * heads * tokens];
        attention::forward(&mut found, &mut log_sums, &qkv, shape, &mut workspace);
        agree(&format!("y of {shape:?}"), &found, &y);
        let mut dqkv = vec![T::ZERO; 3 * elements];
        let kept = (found.as_slice(), log_sums.as_slice());
        attention::backward(&mut dqkv, &dy, &qkv, kept, shape, &mut workspace);
        agree(&format!("dqkv of {shape:?}"), &dqkv, &gradients["qkv"]);
    }
}

/// Token ids with repetitions.
fn ids(len: usize, vocabulary: u64) -> Vec<u32> {
    let stream = Stream::new(9, Purpose::Test);
    (0..len as u64).map(|index| stream.below(index, vocabulary) as u32).collect()
}

fn embeddings<T: Float>() {
    let (sequences, tokens, width, vocabulary, context) = (3, 10, 12, 17, 11);
    let wte = numbers(vocabulary * width, 1, 0.0);
    let wpe = numbers(context * width, 2, 0.0);
    let dx = numbers(sequences * tokens * width, 3, 0.0);
    let ids = ids(sequences * tokens, vocabulary as u64);
    let inputs = Tensor::from_slice(&ids, (sequences, tokens), &Device::Cpu).unwrap();
    let named: &Inputs<'_> =
        &[("wte.weight", &wte, &[vocabulary, width]), ("wpe.weight", &wpe, &[context, width])];
    let config = dimensions(width, 1);
    let mask = no_mask();
    let (x, gradients) = oracle(named, &dx, |parameters| {
        Gpt { config: &config, parameters, mask: &mask }.embed(&inputs)
    });
    let wte = as_type::<T>(&wte);
    let wpe = as_type::<T>(&wpe);
    let dx = as_type::<T>(&dx);
    let mut found = vec![T::ZERO; dx.len()];
    embedding::forward(&mut found, &ids, (&wte, Some(&wpe)), (tokens, width));
    agree("x", &found, &x);
    let mut dwte = vec![T::ZERO; wte.len()];
    let mut dwpe = vec![T::ZERO; wpe.len()];
    embedding::backward(&mut dwte, Some(&mut dwpe), &dx, &ids, (tokens, width));
    agree("dwte", &dwte, &gradients["wte.weight"]);
    agree("dwpe", &dwpe, &gradients["wpe.weight"]);
}

fn heads<T: Float>() {
    let (tokens, width, vocabulary) = (29, 14, 103);
    let x = numbers(tokens * width, 1, 0.0);
    let wte = numbers(vocabulary * width, 2, 0.0);
    let ids = ids(tokens, vocabulary as u64);
    let targets = Tensor::from_slice(&ids, (tokens, 1), &Device::Cpu).unwrap();
    let named: &Inputs<'_> =
        &[("x", &x, &[tokens, width]), ("wte.weight", &wte, &[vocabulary, width])];
    let config = dimensions(width, 1);
    let mask = no_mask();
    let (losses, gradients) = oracle(named, &vec![0.25; tokens], |parameters| {
        Gpt { config: &config, parameters, mask: &mask }.cross_entropy(&parameters["x"], &targets)
    });
    let x = as_type::<T>(&x);
    let wte = as_type::<T>(&wte);
    let shape = cross_entropy::Shape { tokens, width, vocabulary };
    let workspace = &mut cross_entropy::Workspace::new(&Allocator::host(), tokens, vocabulary);
    let products = &mut matmul::Workspace::new(&Allocator::host(), 2);
    cross_entropy::logits(workspace, &x, &wte, shape, products);
    let loss = cross_entropy::loss(workspace, &ids, shape);
    agree("loss", &[T::from_f64(loss)], &[losses.iter().sum()]);
    cross_entropy::to_gradient(workspace, &ids, T::from_f64(0.25), shape);
    let mut dx = vec![T::ZERO; x.len()];
    cross_entropy::hidden_gradient(&mut dx, &wte, shape, workspace, products);
    let mut dwte = vec![T::ZERO; wte.len()];
    let sums = matmul::Sums::Add;
    cross_entropy::table_gradient(&mut dwte, sums, &x, shape, workspace, products);
    agree("dx", &dx, &gradients["x"]);
    agree("dwte", &dwte, &gradients["wte.weight"]);
}

#[test]
fn squares() {
    let len = 1003;
    let a = numbers(len, 1, 0.0);
    let (square, _) = oracle(&[("a", &a, &[len])], &[1.0], |inputs| inputs["a"].sqr()?.sum_all());
    agree("|a|^2", &[gradient_norm::sums(&as_type::<f32>(&a), 0).squares], &square);
}

/// Five steps of candle's AdamW on the loss sum(g w), whose gradient is g.
fn optimizer<T: Float>() {
    let (len, rate, decay) = (257, 0.05, 0.1);
    let start = numbers(len, 1, 0.0);
    let slope = numbers(len, 2, 0.0);
    let w = Var::from_slice(&start, len, &Device::Cpu).unwrap();
    let g = Tensor::from_slice(&slope, len, &Device::Cpu).unwrap();
    let parameters = candle_nn::ParamsAdamW {
        lr: rate,
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-8,
        weight_decay: decay,
    };
    let mut exact = candle_nn::AdamW::new(vec![w.clone()], parameters).unwrap();
    let mut weights = as_type::<T>(&start);
    let half = as_type::<T>(&slope);
    let mut first = vec![T::ZERO; len];
    let mut second = vec![T::ZERO; len];
    for step in 1..=5 {
        let factor = f64::from(step);
        exact.backward_step(&((&g * factor).unwrap() * &*w).unwrap().sum_all().unwrap()).unwrap();
        let adamw = adamw::AdamW {
            learning_rate: rate,
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
            weight_decay: decay,
            correction1: 1.0 - 0.9_f64.powi(step),
            correction2: 1.0 - 0.95_f64.powi(step),
            gradient_scale: factor,
        };
        adamw::update::<T>(&mut weights, None, &half, &mut first, &mut second, &adamw);
        agree("weights", &weights, &w.to_vec1::<f64>().unwrap());
    }
}
