//! Against the plain formula, finite differences, causality, and numbers of threads.

use super::{Shape, Workspace, backward, forward};
use crate::ops::Float;
use crate::ops::testing::{check_gradient, inner, relative_error, uniform};

fn run<T: Float>(qkv: &[T], shape: Shape, threads: usize) -> (Vec<T>, Vec<T>) {
    let mut output = vec![T::from_f64(f64::NAN); qkv.len() / 3];
    let mut log_sums = vec![T::from_f64(f64::NAN); shape.rows() * shape.heads];
    let mut workspace = Workspace::new(threads, shape.head_width);
    forward(&mut output, &mut log_sums, qkv, shape, &mut workspace);
    (output, log_sums)
}

fn gradient<T: Float>(qkv: &[T], doutput: &[T], shape: Shape, threads: usize) -> Vec<T> {
    let (output, log_sums) = run(qkv, shape, threads);
    let mut dqkv = vec![T::from_f64(f64::NAN); qkv.len()];
    let mut workspace = Workspace::new(threads, shape.head_width);
    backward(&mut dqkv, doutput, qkv, (&output, &log_sums), shape, &mut workspace);
    dqkv
}

/// The formula with whole rows of S.
fn naive(qkv: &[f64], shape: Shape) -> Vec<f64> {
    let (width, tokens, heads) = (shape.width(), shape.tokens, shape.heads);
    let mut output = vec![0.0; shape.rows() * width];
    for (sequence, head) in (0..shape.sequences).flat_map(|s| (0..heads).map(move |h| (s, h))) {
        let third = |index: usize, token: usize| {
            let start = (sequence * tokens + token) * 3 * width + index * width;
            &qkv[start + head * shape.head_width..][..shape.head_width]
        };
        for query in 0..tokens {
            let scale = (shape.head_width as f64).sqrt();
            let scores = (0..=query).map(|key| inner(third(0, query), third(1, key)) / scale);
            let powers: Vec<f64> = scores.map(f64::exp).collect();
            let sum: f64 = powers.iter().sum();
            let start = (sequence * tokens + query) * width + head * shape.head_width;
            for (key, power) in powers.iter().enumerate() {
                for (column, value) in third(2, key).iter().enumerate() {
                    output[start + column] += power / sum * value;
                }
            }
        }
    }
    output
}

/// Shapes below, at and above a block of tokens, with odd head widths.
const SHAPES: [Shape; 5] = [
    Shape { sequences: 2, tokens: 7, heads: 3, head_width: 8 },
    Shape { sequences: 1, tokens: 64, heads: 2, head_width: 16 },
    Shape { sequences: 1, tokens: 65, heads: 1, head_width: 5 },
    Shape { sequences: 1, tokens: 130, heads: 2, head_width: 64 },
    Shape { sequences: 3, tokens: 1, heads: 2, head_width: 96 },
];

#[test]
fn forward_agrees_with_the_formula() {
    for shape in SHAPES {
        let exact: Vec<f64> = uniform(shape.rows() * shape.width() * 3, 1);
        let exact: Vec<f64> = exact.iter().map(|x| 3.0 * x).collect();
        let single: Vec<f32> = exact.iter().map(|&x| x as f32).collect();
        let expected = naive(&exact, shape);
        assert!(relative_error(&run(&exact, shape, 1).0, &expected) < 1e-13, "{shape:?}");
        assert!(relative_error(&run(&single, shape, 2).0, &expected) < 3e-6, "{shape:?}");
    }
}

#[test]
fn backward_agrees_with_finite_differences() {
    for shape in [
        Shape { sequences: 2, tokens: 7, heads: 3, head_width: 8 },
        Shape { sequences: 1, tokens: 70, heads: 1, head_width: 3 },
    ] {
        let qkv: Vec<f64> = uniform(shape.rows() * shape.width() * 3, 1);
        let doutput: Vec<f64> = uniform(shape.rows() * shape.width(), 2);
        let dqkv = gradient(&qkv, &doutput, shape, 2);
        check_gradient("qkv", &qkv, &dqkv, |qkv| inner(&run(qkv, shape, 1).0, &doutput));
    }
}

#[test]
fn gradients_in_f32_agree_with_f64() {
    for shape in SHAPES {
        let qkv: Vec<f64> = uniform(shape.rows() * shape.width() * 3, 1);
        let doutput: Vec<f64> = uniform(shape.rows() * shape.width(), 2);
        let single = |x: &[f64]| x.iter().map(|&x| x as f32).collect::<Vec<f32>>();
        let exact = gradient(&qkv, &doutput, shape, 1);
        let found = gradient(&single(&qkv), &single(&doutput), shape, 2);
        assert!(relative_error(&found, &exact) < 3e-6, "{shape:?}");
    }
}

#[test]
fn the_future_has_no_influence_and_threads_none_on_bits() {
    let shape = Shape { sequences: 1, tokens: 100, heads: 3, head_width: 8 };
    let before: Vec<f32> = uniform(shape.rows() * 3 * shape.width(), 1);
    let mut after = before.clone();
    let cut = 70;
    after[cut * 3 * shape.width()..].fill(1e30);
    let (before_out, _) = run(&before, shape, 1);
    let (after_out, _) = run(&after, shape, 3);
    let same = cut * shape.width();
    assert!(before_out[..same] == after_out[..same]);
    assert!(before_out[same..] != after_out[same..]);
    let doutput: Vec<f32> = uniform(shape.rows() * shape.width(), 2);
    let one = gradient(&before, &doutput, shape, 1);
    assert!(gradient(&before, &doutput, shape, 2) == one);
    assert!(gradient(&before, &doutput, shape, 3) == one);
}
