//! The products of a linear layer as calls of the blocked driver.

#![allow(unsafe_code)]

use rayon::prelude::*;

use super::product::{Product, Strided};
use super::{Shape, Workspace};
use crate::ops::{COLUMN_CHUNK, Float, simd};

/// Y = X W^T + b: writes `y` (N, O) from `x` (N, I), `weight` (O, I) and `bias` (O).
///
/// # Panics
/// When a slice is shorter or longer than its shape.
pub fn forward<T: Float>(
    y: &mut [T],
    x: &[T],
    weight: &[T],
    bias: Option<&[T]>,
    shape: Shape,
    workspace: &mut Workspace<T>,
) {
    let Shape { rows, inputs, outputs } = shape;
    check(shape, y, x, weight);
    if let Some(bias) = bias {
        assert_eq!(bias.len(), outputs, "bias (O)");
        y.par_chunks_exact_mut(outputs).for_each(|row| row.copy_from_slice(bias));
    }
    let product = Product {
        shape: (rows, outputs, inputs),
        left: Strided::dense(x, inputs),
        right: Strided::dense(weight, inputs).transposed(),
        output: y.as_mut_ptr(),
        output_row: outputs,
        accumulate: bias.is_some(),
    };
    // SAFETY: the lengths were checked; `y` is borrowed mutably, so it overlaps nothing.
    unsafe { product.run_parallel(&mut workspace.packs) };
}

/// dX = dY W: writes `dx` (N, I) from `dy` (N, O) and `weight` (O, I).
///
/// # Panics
/// When a slice is shorter or longer than its shape.
pub fn backward_input<T: Float>(
    dx: &mut [T],
    dy: &[T],
    weight: &[T],
    shape: Shape,
    workspace: &mut Workspace<T>,
) {
    let Shape { rows, inputs, outputs } = shape;
    check(shape, dy, dx, weight);
    let product = Product {
        shape: (rows, inputs, outputs),
        left: Strided::dense(dy, outputs),
        right: Strided::dense(weight, inputs),
        output: dx.as_mut_ptr(),
        output_row: inputs,
        accumulate: false,
    };
    // SAFETY: the lengths were checked; `dx` is borrowed mutably, so it overlaps nothing.
    unsafe { product.run_parallel(&mut workspace.packs) };
}

/// dW += dY^T X: adds to `dweight` (O, I) from `dy` (N, O) and `x` (N, I).
///
/// # Panics
/// When a slice is shorter or longer than its shape.
pub fn backward_weight<T: Float>(
    dweight: &mut [T],
    dy: &[T],
    x: &[T],
    shape: Shape,
    workspace: &mut Workspace<T>,
) {
    let Shape { rows, inputs, outputs } = shape;
    check(shape, dy, x, dweight);
    let product = Product {
        shape: (outputs, inputs, rows),
        left: Strided::dense(dy, outputs).transposed(),
        right: Strided::dense(x, inputs),
        output: dweight.as_mut_ptr(),
        output_row: inputs,
        accumulate: true,
    };
    // SAFETY: the lengths were checked; `dweight` is borrowed mutably, so it overlaps nothing.
    unsafe { product.run_parallel(&mut workspace.packs) };
}

/// db += the column sums of dY: adds to `dbias` (O) from `dy` (N, O).
///
/// # Panics
/// When `dy` is not a whole number of rows.
pub fn backward_bias<T: Float>(dbias: &mut [T], dy: &[T]) {
    let outputs = dbias.len();
    assert!(dy.len().is_multiple_of(outputs), "dY (N, O) with O = {outputs}");
    dbias.par_chunks_mut(COLUMN_CHUNK).enumerate().for_each(|(chunk, dbias)| {
        simd::vectorize(
            #[inline(always)]
            || {
                let mut sums = [T::ZERO; COLUMN_CHUNK];
                let sums = &mut sums[..dbias.len()];
                for row in dy.chunks_exact(outputs) {
                    let row = &row[chunk * COLUMN_CHUNK..][..sums.len()];
                    for (sum, &value) in sums.iter_mut().zip(row) {
                        *sum += value;
                    }
                }
                for (total, &sum) in dbias.iter_mut().zip(&*sums) {
                    *total += sum;
                }
            },
        );
    });
}

fn check<T>(shape: Shape, y: &[T], x: &[T], weight: &[T]) {
    let Shape { rows, inputs, outputs } = shape;
    assert_eq!(y.len(), rows * outputs, "Y (N, O) of {shape:?}");
    assert_eq!(x.len(), rows * inputs, "X (N, I) of {shape:?}");
    assert_eq!(weight.len(), outputs * inputs, "W (O, I) of {shape:?}");
}
