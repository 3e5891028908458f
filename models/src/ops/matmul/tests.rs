//! Products against plain loops, gradients against finite differences, bits against threads.

use super::{Shape, Workspace, backward_bias, backward_input, backward_weight, forward};
use crate::ops::Float;
use crate::ops::testing::{check_gradient, inner, on_threads, relative_error, uniform};

/// Shapes around every tile, panel and block boundary.
const SHAPES: [(usize, usize, usize); 12] = [
    (1, 1, 1),
    (5, 3, 2),
    (6, 16, 64),
    (7, 17, 65),
    (13, 24, 37),
    (50, 64, 48),
    (49, 385, 63),
    (70, 400, 129),
    (100, 33, 450),
    (97, 768, 31),
    (130, 70, 391),
    (3, 1000, 200),
];

fn naive(shape: Shape, x: &[f64], weight: &[f64], bias: &[f64]) -> Vec<f64> {
    let mut y = Vec::new();
    for x in x.chunks(shape.inputs) {
        for (weight, bias) in weight.chunks(shape.inputs).zip(bias) {
            y.push(bias + inner(x, weight));
        }
    }
    y
}

fn transpose(x: &[f64], columns: usize) -> Vec<f64> {
    (0..columns).flat_map(|c| x.iter().skip(c).step_by(columns).copied()).collect()
}

fn wide<T: Float>(x: &[T]) -> Vec<f64> {
    x.iter().map(|x| x.to_f64()).collect()
}

fn agrees_with_plain_loops<T: Float>(threads: usize, tolerance: f64) {
    let mut workspace = Workspace::new(threads);
    for (rows, inputs, outputs) in SHAPES {
        let shape = Shape { rows, inputs, outputs };
        let x: Vec<T> = uniform(rows * inputs, 1);
        let weight: Vec<T> = uniform(outputs * inputs, 2);
        let bias: Vec<T> = uniform(outputs, 3);
        let dy: Vec<T> = uniform(rows * outputs, 4);
        let zeros = vec![0.0; outputs.max(inputs)];

        let mut y = vec![T::from_f64(f64::NAN); rows * outputs];
        forward(&mut y, &x, &weight, Some(&bias), shape, &mut workspace);
        let exact = naive(shape, &wide(&x), &wide(&weight), &wide(&bias));
        assert!(relative_error(&y, &exact) < tolerance, "Y of {shape:?}");
        y.fill(T::from_f64(f64::NAN));
        forward(&mut y, &x, &weight, None, shape, &mut workspace);
        let exact = naive(shape, &wide(&x), &wide(&weight), &zeros[..outputs]);
        assert!(relative_error(&y, &exact) < tolerance, "Y of {shape:?} without bias");

        let mut dx = vec![T::from_f64(f64::NAN); rows * inputs];
        backward_input(&mut dx, &dy, &weight, shape, &mut workspace);
        let flipped = Shape { rows, inputs: outputs, outputs: inputs };
        let columns = transpose(&wide(&weight), inputs);
        let exact = naive(flipped, &wide(&dy), &columns, &zeros[..inputs]);
        assert!(relative_error(&dx, &exact) < tolerance, "dX of {shape:?}");

        let mut dweight = vec![T::ONE; outputs * inputs];
        backward_weight(&mut dweight, &dy, &x, shape, &mut workspace);
        let flipped = Shape { rows: outputs, inputs: rows, outputs: inputs };
        let (dy, x) = (transpose(&wide(&dy), outputs), transpose(&wide(&x), inputs));
        let exact = naive(flipped, &dy, &x, &vec![1.0; inputs]);
        assert!(relative_error(&dweight, &exact) < tolerance, "dW of {shape:?}");
    }
}

#[test]
fn f32_agrees_with_plain_loops() {
    agrees_with_plain_loops::<f32>(1, 1e-6);
}

#[test]
fn f64_agrees_with_plain_loops() {
    for threads in [2, 3] {
        agrees_with_plain_loops::<f64>(threads, 1e-14);
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    let shape = Shape { rows: 5, inputs: 7, outputs: 9 };
    let (x, weight): (Vec<f64>, Vec<f64>) = (uniform(35, 1), uniform(63, 2));
    let (bias, dy): (Vec<f64>, Vec<f64>) = (uniform(9, 3), uniform(45, 4));
    let loss = |x: &[f64], weight: &[f64], bias: &[f64]| {
        let mut y = vec![0.0; 45];
        forward(&mut y, x, weight, Some(bias), shape, &mut Workspace::new(1));
        inner(&y, &dy)
    };
    let mut workspace = Workspace::new(1);
    let (mut dx, mut dweight, mut dbias) = (vec![0.0; 35], vec![0.0; 63], vec![0.0; 9]);
    backward_input(&mut dx, &dy, &weight, shape, &mut workspace);
    backward_weight(&mut dweight, &dy, &x, shape, &mut workspace);
    backward_bias(&mut dbias, &dy);
    check_gradient("x", &x, &dx, |x| loss(x, &weight, &bias));
    check_gradient("weight", &weight, &dweight, |weight| loss(&x, weight, &bias));
    check_gradient("bias", &bias, &dbias, |bias| loss(&x, &weight, bias));
}

#[test]
fn the_number_of_threads_does_not_change_a_bit() {
    let shape = Shape { rows: 130, inputs: 500, outputs: 391 };
    let (x, weight): (Vec<f32>, Vec<f32>) = (uniform(130 * 500, 1), uniform(391 * 500, 2));
    let run = |threads| {
        on_threads(threads, || {
            let mut workspace = Workspace::new(threads);
            let mut y = vec![0.0_f32; 130 * 391];
            forward(&mut y, &x, &weight, None, shape, &mut workspace);
            let (mut dx, mut dweight) = (vec![0.0; x.len()], vec![0.0; weight.len()]);
            backward_input(&mut dx, &y, &weight, shape, &mut workspace);
            backward_weight(&mut dweight, &y, &x, shape, &mut workspace);
            let mut dbias = vec![0.0; 391];
            backward_bias(&mut dbias, &y);
            [y, dx, dweight, dbias]
        })
    };
    let one = run(1);
    for threads in [2, 3, 4] {
        assert!(run(threads) == one, "{threads} threads");
    }
}
