//! Products against plain loops, gradients against finite differences, bits against threads.

use device::Allocator;
use half::bf16;

use super::{Epilogue, Shape, Sums, backward_bias, backward_input, backward_weight, forward};
use crate::ops::matmul::Workspace;
use crate::ops::matmul::kernels::{self, pairs, singles};
use crate::ops::matmul::tile::Kernel;
use crate::ops::testing::{check_gradient, inner, on_threads, relative_error, uniform};
use crate::ops::{Element, Float};

mod exceptional;
mod memory;

/// Around every tile, panel and block boundary, also of pairs.
const SHAPES: [Shape; 17] = [
    shape(1, 1, 1),
    shape(5, 3, 2),
    shape(6, 16, 64),
    shape(7, 17, 65),
    shape(13, 24, 37),
    shape(50, 64, 48),
    shape(49, 385, 63),
    shape(70, 400, 129),
    shape(100, 33, 450),
    shape(97, 768, 31),
    shape(130, 70, 391),
    shape(3, 1000, 200),
    shape(5, 1541, 70),
    shape(331, 1700, 67),
    shape(600, 200, 530),
    shape(777, 67, 35),
    shape(260, 770, 710),
];

const fn shape(rows: usize, inputs: usize, outputs: usize) -> Shape {
    Shape { rows, inputs, outputs }
}

fn naive(shape: Shape, x: &[f64], weight: &[f64]) -> Vec<f64> {
    let rows = x.chunks(shape.inputs);
    rows.flat_map(|x| weight.chunks(shape.inputs).map(|weight| inner(x, weight))).collect()
}

fn transpose(x: &[f64], columns: usize) -> Vec<f64> {
    (0..columns).flat_map(|c| x.iter().skip(c).step_by(columns).copied()).collect()
}

fn wide<E: Element>(x: &[E]) -> Vec<f64> {
    x.iter().map(|x| x.widen().to_f64()).collect()
}

fn elements<E: Element>(len: usize, seed: u64) -> Vec<E> {
    uniform::<E::Wide>(len, seed).into_iter().map(E::narrow).collect()
}

/// Largest relative errors in the Euclidean norm of what is stored and of what stays wide.
struct Bounds {
    stored: f64,
    sums: f64,
}

/// bf16 rounds to 8 bits: by at most 2^-8 of each stored element.
const BF16: Bounds = Bounds { stored: 3.91e-3, sums: 1e-6 };
const F32: Bounds = Bounds { stored: 1e-6, sums: 1e-6 };
const F64: Bounds = Bounds { stored: 1e-14, sums: 1e-14 };

/// A linear layer's operands, and the exact products of them.
struct Layer<E> {
    shape: Shape,
    x: Vec<E>,
    weight: Vec<E>,
    dy: Vec<E>,
}

impl<E: Element> Layer<E> {
    fn new(shape: Shape) -> Self {
        let Shape { rows, inputs, outputs } = shape;
        let x = elements(rows * inputs, 1);
        let weight = elements(outputs * inputs, 2);
        Self { shape, x, weight, dy: elements(rows * outputs, 4) }
    }

    fn y(&self) -> Vec<f64> {
        naive(self.shape, &wide(&self.x), &wide(&self.weight))
    }

    fn dx(&self) -> Vec<f64> {
        let Shape { rows, inputs, outputs } = self.shape;
        let flipped = Shape { rows, inputs: outputs, outputs: inputs };
        naive(flipped, &wide(&self.dy), &transpose(&wide(&self.weight), inputs))
    }

    fn dweight(&self) -> Vec<f64> {
        let Shape { rows, inputs, outputs } = self.shape;
        let flipped = Shape { rows: outputs, inputs: rows, outputs: inputs };
        let dy = transpose(&wide(&self.dy), outputs);
        let x = transpose(&wide(&self.x), inputs);
        naive(flipped, &dy, &x)
    }
}

fn stored<E: Element>(len: usize) -> Vec<E> {
    vec![E::narrow(E::Wide::from_f64(f64::NAN)); len]
}

fn agrees<E: Element>(what: &str, found: &[E], exact: &[f64], bound: f64) {
    let found: Vec<f64> = wide(found);
    let error = relative_error(&found, exact);
    assert!(error < bound, "{what}: relative error {error:e}");
}

fn agrees_with_plain_loops<E: Element>(
    threads: usize,
    kernel: &'static Kernel<E::Wide>,
    bounds: &Bounds,
) {
    let mut workspace = Workspace::<E>::with_kernel(&Allocator::host(), threads, kernel);
    for shape in SHAPES {
        let layer = Layer::<E>::new(shape);
        let shape = layer.shape;
        let what = format!("{:?} with {kernel:?}", layer.shape);
        let Shape { rows, outputs, .. } = shape;

        let exact = layer.y();
        let mut y = stored::<E>(exact.len());
        let plain = (None, Epilogue::Store);
        forward(&mut y, &layer.x, &layer.weight, plain, shape, &mut workspace);
        agrees(&format!("Y of {what}"), &y, &exact, bounds.stored);

        let exact = layer.dx();
        let mut dx = stored::<E>(exact.len());
        backward_input(&mut dx, &layer.dy, &layer.weight, None, shape, &mut workspace);
        agrees(&format!("dX of {what}"), &dx, &exact, bounds.stored);

        let exact = layer.dweight();
        let mut dweight: Vec<E::Wide> = stored(exact.len());
        let dy = &layer.dy;
        let x = &layer.x;
        backward_weight(&mut dweight, dy, x, Sums::Write, shape, &mut workspace);
        agrees(&format!("dW of {what}"), &dweight, &exact, bounds.sums);
        backward_weight(&mut dweight, dy, x, Sums::Add, shape, &mut workspace);
        let twice: Vec<f64> = exact.iter().map(|sum| 2.0 * sum).collect();
        agrees(&format!("2 dW of {what}"), &dweight, &twice, bounds.sums);

        let mut dbias: Vec<E::Wide> = stored(outputs);
        backward_bias(&mut dbias, dy, Sums::Write);
        let ones = Shape { rows: 1, inputs: rows, outputs };
        let exact = naive(ones, &vec![1.0; rows], &transpose(&wide(dy), outputs));
        agrees(&format!("db of {what}"), &dbias, &exact, bounds.sums);
    }
}

#[test]
fn f32_agrees_with_plain_loops_with_every_kernel() {
    for (kernel, threads) in singles().iter().zip([1, 2, 3].into_iter().cycle()) {
        agrees_with_plain_loops::<f32>(threads, kernel, &F32);
    }
}

/// Pairs as they are, and widened.
#[test]
fn bf16_agrees_with_plain_loops_with_every_kernel() {
    let kernels = pairs().iter().chain(pairs().first()).chain(singles());
    for (kernel, threads) in kernels.zip([1, 2, 4, 3].into_iter().cycle()) {
        agrees_with_plain_loops::<bf16>(threads, kernel, &BF16);
    }
}

#[test]
fn f64_agrees_with_plain_loops() {
    for threads in [2, 3] {
        agrees_with_plain_loops::<f64>(threads, kernels::double(), &F64);
    }
}

/// Each epilogue on one block of k and on several, with edges.
fn epilogues<E: Element>(kernel: &'static Kernel<E::Wide>, bound: f64) {
    let mut workspace = Workspace::<E>::with_kernel(&Allocator::host(), 2, kernel);
    for shape in [shape(13, 24, 37), shape(9, 1700, 70), shape(9, 70, 1700), shape(40, 500, 500)] {
        let layer = Layer::<E>::new(shape);
        let x = &layer.x;
        let weight = &layer.weight;
        let shape = layer.shape;
        let bias: Vec<E> = elements(shape.outputs, 5);
        let residual: Vec<E> = elements(layer.dy.len(), 6);
        let mut exact = layer.y();
        for row in exact.chunks_mut(shape.outputs) {
            row.iter_mut().zip(wide(&bias)).for_each(|(y, bias)| *y += bias);
        }
        let mut y = stored::<E>(exact.len());
        let bias = Some(bias.as_slice());
        forward(&mut y, x, weight, (bias, Epilogue::Store), shape, &mut workspace);
        agrees("bias", &y, &exact, bound);

        let mut activation = stored::<E>(exact.len());
        let gelu = Epilogue::Gelu(&mut activation);
        let before = wide(&y);
        forward(&mut y, x, weight, (bias, gelu), shape, &mut workspace);
        assert!(wide(&y) == before, "GELU changes its input");
        let root = (2.0 / std::f64::consts::PI).sqrt();
        let tanh = |x: f64| (root * (x + 0.044715 * x * x * x)).tanh();
        let exact_gelu = |&x: &f64| 0.5 * x * (1.0 + tanh(x));
        agrees("GELU", &activation, &before.iter().map(exact_gelu).collect::<Vec<_>>(), bound);

        let sums = Epilogue::Residual(&residual);
        forward(&mut y, x, weight, (bias, sums), shape, &mut workspace);
        exact.iter_mut().zip(wide(&residual)).for_each(|(y, residual)| *y += residual);
        agrees("residual", &y, &exact, bound);

        let mut dx = stored::<E>(x.len());
        let mut before = elements::<E>(x.len(), 7);
        let u = wide(&before);
        backward_input(&mut dx, &layer.dy, weight, Some(&mut before), shape, &mut workspace);
        let slope = |x: f64| {
            let slope_of_u = root * (1.0 + 3.0 * 0.044715 * x * x);
            0.5 * (1.0 + tanh(x)) + 0.5 * x * (1.0 - tanh(x).powi(2)) * slope_of_u
        };
        let products = layer.dx().into_iter().zip(&u).map(|(dx, &x)| dx * slope(x));
        agrees("GELU's derivative", &dx, &products.collect::<Vec<_>>(), bound);
        agrees("GELU recomputed", &before, &u.iter().map(exact_gelu).collect::<Vec<_>>(), bound);
    }
}

#[test]
fn epilogues_agree_with_plain_loops() {
    epilogues::<f64>(kernels::double(), F64.stored);
    for kernel in singles() {
        epilogues::<f32>(kernel, F32.stored);
    }
    for kernel in pairs().iter().chain(singles()) {
        epilogues::<bf16>(kernel, BF16.stored);
    }
}

/// Sums of 4096 equal products: bf16 sums would stop at 256.
#[test]
fn bf16_is_summed_in_f32_over_all_of_k() {
    let shape = Shape { rows: 7, inputs: 4096, outputs: 66 };
    let x = vec![bf16::ONE; 7 * 4096];
    let weight = vec![bf16::ONE; 66 * 4096];
    for kernel in pairs().iter().chain(singles()) {
        let mut y = vec![bf16::ZERO; 7 * 66];
        let mut workspace = Workspace::with_kernel(&Allocator::host(), 1, kernel);
        forward(&mut y, &x, &weight, (None, Epilogue::Store), shape, &mut workspace);
        assert!(y.iter().all(|y| y.to_f32() == 4096.0), "{kernel:?}");
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    let shape = Shape { rows: 5, inputs: 7, outputs: 9 };
    let x: Vec<f64> = uniform(35, 1);
    let weight: Vec<f64> = uniform(63, 2);
    let bias: Vec<f64> = uniform(9, 3);
    let dy: Vec<f64> = uniform(45, 4);
    let loss = |x: &[f64], weight: &[f64], bias: &[f64]| {
        let mut y = vec![0.0; 45];
        let epilogue = (Some(bias), Epilogue::Store);
        forward(&mut y, x, weight, epilogue, shape, &mut Workspace::new(&Allocator::host(), 1));
        inner(&y, &dy)
    };
    let mut workspace = Workspace::new(&Allocator::host(), 1);
    let mut dx = vec![0.0; 35];
    let mut dweight = vec![0.0; 63];
    let mut dbias = vec![0.0; 9];
    backward_input(&mut dx, &dy, &weight, None, shape, &mut workspace);
    backward_weight(&mut dweight, &dy, &x, Sums::Add, shape, &mut workspace);
    backward_bias(&mut dbias, &dy, Sums::Add);
    check_gradient("x", &x, &dx, |x| loss(x, &weight, &bias));
    check_gradient("weight", &weight, &dweight, |weight| loss(&x, weight, &bias));
    check_gradient("bias", &bias, &dbias, |bias| loss(&x, &weight, bias));
}

fn threads_do_not_change_bits<E: Element + PartialEq>(shape: Shape) {
    let layer = Layer::<E>::new(shape);
    let x = &layer.x;
    let weight = &layer.weight;
    let shape = layer.shape;
    let run = |threads| {
        on_threads(threads, || {
            let mut workspace = Workspace::new(&Allocator::host(), threads);
            let mut y = stored::<E>(layer.dy.len());
            let epilogue = (None, Epilogue::Residual(&layer.dy));
            forward(&mut y, x, weight, epilogue, shape, &mut workspace);
            let mut dx = stored::<E>(x.len());
            backward_input(&mut dx, &y, weight, None, shape, &mut workspace);
            let mut dweight: Vec<E::Wide> = stored(weight.len());
            backward_weight(&mut dweight, &y, x, Sums::Write, shape, &mut workspace);
            let mut dbias: Vec<E::Wide> = stored(shape.outputs);
            backward_bias(&mut dbias, &y, Sums::Write);
            ([y, dx], [dweight, dbias])
        })
    };
    let one = run(1);
    for threads in [2, 3, 4] {
        assert!(run(threads) == one, "{threads} threads");
    }
}

#[test]
fn the_number_of_threads_does_not_change_bits() {
    for shape in [shape(130, 1700, 391), shape(130, 700, 391), shape(777, 67, 35)] {
        threads_do_not_change_bits::<f32>(shape);
        threads_do_not_change_bits::<bf16>(shape);
    }
}

#[test]
fn registers_are_released_after_a_product() {
    fn is_released<E: Element>() -> bool {
        let layer = Layer::<E>::new(shape(70, 40, 50));
        on_threads(1, || {
            let mut y = stored(layer.dy.len());
            let plain = (None, Epilogue::Store);
            forward(
                &mut y,
                &layer.x,
                &layer.weight,
                plain,
                layer.shape,
                &mut Workspace::new(&Allocator::host(), 1),
            );
            kernels::is_released()
        })
    }
    assert!(is_released::<bf16>());
    assert!(is_released::<f32>());
}
