//! Against the plain formula, finite differences, causality, and numbers of threads.

use device::Allocator;
use half::bf16;

use super::{Shape, Workspace, backward, forward};
use crate::ops::matmul::kernels::{self, pairs, singles};
use crate::ops::matmul::tile::Kernel;
use crate::ops::testing::{check_gradient, inner, on_threads, relative_error, uniform};
use crate::ops::{Element, Float};

type Outcome<E> = (Vec<E>, Vec<<E as Element>::Wide>);

fn not_a_number<E: Element>(len: usize) -> Vec<E> {
    vec![E::narrow(E::Wide::from_f64(f64::NAN)); len]
}

fn run<E: Element>(qkv: &[E], shape: Shape, mut workspace: Workspace<E>) -> Outcome<E> {
    let mut output = not_a_number(shape.rows() * shape.width());
    let mut log_sums = not_a_number(shape.rows() * shape.heads);
    forward(&mut output, &mut log_sums, qkv, shape, &mut workspace);
    (output, log_sums)
}

fn gradient<E: Element>(
    qkv: &[E],
    doutput: &[E],
    shape: Shape,
    workspace: impl Fn() -> Workspace<E>,
) -> Vec<E> {
    let (output, log_sums) = run(qkv, shape, workspace());
    let mut dqkv = not_a_number(qkv.len());
    backward(&mut dqkv, doutput, qkv, (&output, &log_sums), shape, &mut workspace());
    dqkv
}

/// The formula with whole rows of S.
fn naive(qkv: &[f64], shape: Shape) -> Vec<f64> {
    let Shape { tokens, heads, head_width, .. } = shape;
    let mut output = vec![0.0; shape.rows() * shape.width()];
    for (sequence, head) in (0..shape.sequences).flat_map(|s| (0..heads).map(move |h| (s, h))) {
        let row = |column: usize, token: usize| {
            let start = (sequence * tokens + token) * shape.qkv_width();
            &qkv[start + column * head_width..][..head_width]
        };
        let shared = head / shape.group();
        let key_head = heads + shared;
        let value_head = heads + shape.key_value_heads + shared;
        for query in 0..tokens {
            let scale = (head_width as f64).sqrt();
            let scores = (0..=query).map(|key| inner(row(head, query), row(key_head, key)) / scale);
            let powers: Vec<f64> = scores.map(f64::exp).collect();
            let sum: f64 = powers.iter().sum();
            let start = (sequence * tokens + query) * shape.width() + head * head_width;
            for (key, power) in powers.iter().enumerate() {
                for (column, value) in row(value_head, key).iter().enumerate() {
                    output[start + column] += power / sum * value;
                }
            }
        }
    }
    output
}

const fn shape(
    sequences: usize,
    tokens: usize,
    (heads, key_value_heads): (usize, usize),
    head_width: usize,
) -> Shape {
    Shape { sequences, tokens, heads, key_value_heads, head_width }
}

/// Shapes below, at and above a block of tokens, with odd head widths and grouped queries.
const SHAPES: [Shape; 8] = [
    shape(2, 7, (3, 3), 8),
    shape(1, 64, (2, 2), 16),
    shape(1, 65, (1, 1), 5),
    shape(1, 130, (2, 2), 64),
    shape(3, 1, (2, 2), 96),
    shape(2, 67, (6, 2), 17),
    shape(1, 129, (4, 1), 33),
    shape(2, 64, (4, 2), 128),
];

fn qkv(shape: Shape) -> Vec<f64> {
    let qkv: Vec<f64> = uniform(shape.rows() * shape.qkv_width(), 1);
    qkv.iter().map(|x| 3.0 * x).collect()
}

fn rounded<E: Element>(values: &[f64]) -> Vec<E> {
    values.iter().map(|&value| E::narrow(E::Wide::from_f64(value))).collect()
}

fn wide<E: Element>(values: &[E]) -> Vec<f64> {
    values.iter().map(|value| value.widen().to_f64()).collect()
}

/// Output and gradient against f64 on the same rounded inputs.
fn agrees_with_f64<E: Element>(kernel: &'static Kernel<E::Wide>, bounds: (f64, f64)) {
    for shape in SHAPES {
        let input: Vec<E> = rounded(&qkv(shape));
        let exact = wide(&input);
        let workspace = || Workspace::with_kernel(&Allocator::host(), 2, &shape, kernel);
        let expected = naive(&exact, shape);
        let error = relative_error(&wide(&run(&input, shape, workspace()).0), &expected);
        assert!(error < bounds.0, "out of {shape:?} with {kernel:?}: {error:e}");

        let doutput: Vec<E> = rounded(&uniform(shape.rows() * shape.width(), 2));
        let expected = gradient(&exact, &wide(&doutput), shape, || {
            Workspace::new(&Allocator::host(), 1, &shape)
        });
        let found = gradient(&input, &doutput, shape, workspace);
        let error = relative_error(&wide(&found), &expected);
        assert!(error < bounds.1, "dqkv of {shape:?} with {kernel:?}: {error:e}");
    }
}

#[test]
fn f64_and_f32_agree_with_the_formula() {
    agrees_with_f64::<f64>(kernels::double(), (1e-13, 1e-13));
    for kernel in singles() {
        agrees_with_f64::<f32>(kernel, (3e-6, 3e-6));
    }
}

/// Outputs are rounded once, probabilities and their gradients once before: by 2^-8 each at most.
#[test]
fn bf16_agrees_with_the_formula_as_pairs_and_widened() {
    for kernel in pairs().iter().chain(singles()) {
        agrees_with_f64::<bf16>(kernel, (4e-3, 8e-3));
    }
}

#[test]
fn backward_agrees_with_finite_differences() {
    for shape in [
        shape(2, 7, (3, 3), 8),
        shape(1, 70, (1, 1), 3),
        shape(1, 9, (6, 2), 5),
        shape(1, 66, (2, 1), 3),
    ] {
        let qkv: Vec<f64> = uniform(shape.rows() * shape.qkv_width(), 1);
        let doutput: Vec<f64> = uniform(shape.rows() * shape.width(), 2);
        let dqkv =
            gradient(&qkv, &doutput, shape, || Workspace::new(&Allocator::host(), 2, &shape));
        let output = |qkv: &[f64]| run(qkv, shape, Workspace::new(&Allocator::host(), 1, &shape)).0;
        check_gradient("qkv", &qkv, &dqkv, |qkv| inner(&output(qkv), &doutput));
    }
}

fn is_causal_and_independent_of_threads<E: Element + PartialEq>(shape: Shape) {
    let before: Vec<E> = rounded(&uniform(shape.rows() * shape.qkv_width(), 1));
    let mut after = before.clone();
    let first_changed = 70;
    after[first_changed * shape.qkv_width()..].fill(E::narrow(E::Wide::from_f64(1e30)));
    let on = |threads| Workspace::new(&Allocator::host(), threads, &shape);
    let (before_out, _) = run(&before, shape, on(1));
    let (after_out, _) = run(&after, shape, on(3));
    let same = first_changed * shape.width();
    assert!(before_out[..same] == after_out[..same]);
    assert!(before_out[same..] != after_out[same..]);
    let doutput: Vec<E> = rounded(&uniform(shape.rows() * shape.width(), 2));
    let one = gradient(&before, &doutput, shape, || on(1));
    assert!(gradient(&before, &doutput, shape, || on(2)) == one);
    assert!(gradient(&before, &doutput, shape, || on(3)) == one);
}

#[test]
fn later_tokens_have_no_influence_and_threads_none_on_bits() {
    for shape in [shape(1, 100, (3, 3), 8), shape(1, 101, (6, 3), 9)] {
        is_causal_and_independent_of_threads::<f32>(shape);
        is_causal_and_independent_of_threads::<bf16>(shape);
    }
}

fn releases_registers<E: Element>() {
    let shape = shape(1, 70, (2, 2), 8);
    let on_one = || Workspace::new(&Allocator::host(), 1, &shape);
    let qkv: Vec<E> = rounded(&uniform(shape.rows() * shape.qkv_width(), 1));
    let doutput: Vec<E> = rounded(&uniform(shape.rows() * shape.width(), 2));
    let after = on_threads(1, || {
        run(&qkv, shape, on_one());
        let forward = kernels::is_released();
        gradient(&qkv, &doutput, shape, on_one);
        [forward, kernels::is_released()]
    });
    assert_eq!(after, [true, true], "forward and backward");
}

#[test]
fn registers_are_released_after_forward_and_backward() {
    releases_registers::<bf16>();
    releases_registers::<f32>();
}
