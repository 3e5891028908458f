//! The products of a linear layer.

#![allow(unsafe_code)]

use rayon::prelude::*;

use super::blocked::{Extent, NarrowOutput, Output, PostOp, Product, ProductShape, Workspace};
use super::tile::{Strided, Target};
use crate::ops::{COLUMN_CHUNK, Element, simd};

#[cfg(test)]
mod tests;

/// Shape of one linear layer over N rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// N.
    pub rows: usize,
    /// I, columns of X.
    pub inputs: usize,
    /// O, columns of Y.
    pub outputs: usize,
}

impl Shape {
    /// Its products: Y, dX and dW.
    pub fn products(self) -> [Extent; 3] {
        let y = Extent { shape: self.y(), left_has_contiguous_rows: true, output_is_narrow: true };
        let dx = Extent { shape: self.dx(), ..y };
        let dw =
            Extent { shape: self.dw(), left_has_contiguous_rows: false, output_is_narrow: false };
        [y, dx, dw]
    }

    fn y(self) -> ProductShape {
        ProductShape { m: self.rows, n: self.outputs, k: self.inputs }
    }

    fn dx(self) -> ProductShape {
        ProductShape { m: self.rows, n: self.inputs, k: self.outputs }
    }

    fn dw(self) -> ProductShape {
        ProductShape { m: self.outputs, n: self.inputs, k: self.rows }
    }
}

/// Operation of forward on a sum before it is rounded once and stored.
#[derive(Debug)]
pub enum Epilogue<'a, E> {
    /// Y = X W^T + b.
    Store,
    /// Y = X W^T + b + R, with R (N, O).
    Residual(&'a [E]),
    /// Y = X W^T + b, and A = gelu(Y) of what is stored in Y, with A (N, O).
    Gelu(&'a mut [E]),
}

/// Replaces or accumulates sums over the rows of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sums {
    /// Replaces the destination.
    Write,
    /// Adds to the destination.
    Add,
}

/// Computes Y = X W^T + b with the epilogue: writes `y` (N, O) from `x` (N, I), `weight` (O, I) and
/// `bias` (O).
///
/// # Panics
/// Panics if a slice is shorter or longer than its shape.
pub fn forward<E: Element>(
    y: &mut [E],
    x: &[E],
    weight: &[E],
    (bias, epilogue): (Option<&[E]>, Epilogue<'_, E>),
    shape: Shape,
    workspace: &mut Workspace<E>,
) {
    let Shape { inputs, outputs, .. } = shape;
    check(shape, y.len(), x.len());
    assert_eq!(weight.len(), outputs * inputs, "W (O, I) of {shape:?}");
    assert!(bias.is_none_or(|bias| bias.len() == outputs), "b (O) of {shape:?}");
    let post_op = match epilogue {
        Epilogue::Store => PostOp::None,
        Epilogue::Residual(residual) => {
            assert_eq!(residual.len(), y.len(), "R (N, O) of {shape:?}");
            PostOp::Add(residual.as_ptr())
        }
        Epilogue::Gelu(activation) => {
            assert_eq!(activation.len(), y.len(), "A (N, O) of {shape:?}");
            PostOp::Gelu(activation.as_mut_ptr())
        }
    };
    let bias = bias.map(<[E]>::as_ptr);
    let product = Product {
        shape: shape.y(),
        left: Strided::dense(x, inputs),
        right: Strided::dense(weight, inputs).transposed(),
        output: Output::Narrow(NarrowOutput {
            start: y.as_mut_ptr(),
            row_stride: outputs,
            bias,
            post_op,
        }),
    };
    // SAFETY: the lengths were checked; outputs are borrowed mutably, so they overlap nothing.
    unsafe { product.run(workspace) };
}

/// dX = dY W: writes `dx` (N, I) from `dy` (N, O) and `weight` (O, I).
///
/// If the layer's input was gelu(U), `before` is U (N, I): `dx` is then the gradient of U, and
/// gelu(U), as forward wrote it, replaces U. One exponential gives both, so that forward need not
/// keep it.
///
/// # Panics
/// Panics if a slice is shorter or longer than its shape.
pub fn backward_input<E: Element>(
    dx: &mut [E],
    dy: &[E],
    weight: &[E],
    before: Option<&mut [E]>,
    shape: Shape,
    workspace: &mut Workspace<E>,
) {
    let Shape { inputs, outputs, .. } = shape;
    check(shape, dy.len(), dx.len());
    assert_eq!(weight.len(), outputs * inputs, "W (O, I) of {shape:?}");
    assert!(before.as_ref().is_none_or(|u| u.len() == dx.len()), "U (N, I) of {shape:?}");
    let post_op = before.map_or(PostOp::None, |before| PostOp::GeluBackward(before.as_mut_ptr()));
    let product = Product {
        shape: shape.dx(),
        left: Strided::dense(dy, outputs),
        right: Strided::dense(weight, inputs),
        output: Output::Narrow(NarrowOutput {
            start: dx.as_mut_ptr(),
            row_stride: inputs,
            bias: None,
            post_op,
        }),
    };
    // SAFETY: the lengths were checked; outputs are borrowed mutably, so they overlap nothing.
    unsafe { product.run(workspace) };
}

/// dW = dY^T X or dW += dY^T X: `dweight` (O, I) from `dy` (N, O) and `x` (N, I).
///
/// # Panics
/// Panics if a slice is shorter or longer than its shape.
pub fn backward_weight<E: Element>(
    dweight: &mut [E::Wide],
    dy: &[E],
    x: &[E],
    sums: Sums,
    shape: Shape,
    workspace: &mut Workspace<E>,
) {
    let Shape { inputs, outputs, .. } = shape;
    check(shape, dy.len(), x.len());
    assert_eq!(dweight.len(), outputs * inputs, "dW (O, I) of {shape:?}");
    let product = Product {
        shape: shape.dw(),
        left: Strided::dense(dy, outputs).transposed(),
        right: Strided::dense(x, inputs),
        output: Output::Wide(Target {
            start: dweight.as_mut_ptr(),
            row_stride: inputs,
            accumulate: sums == Sums::Add,
        }),
    };
    // SAFETY: the lengths were checked; `dweight` is borrowed mutably, so it overlaps nothing.
    unsafe { product.run(workspace) };
}

/// db = or += the column sums of dY: `dbias` (O) from `dy` (N, O).
///
/// # Panics
/// Panics if `dy` is not a whole number of rows.
pub fn backward_bias<E: Element>(dbias: &mut [E::Wide], dy: &[E], sums: Sums) {
    let outputs = dbias.len();
    assert!(dy.len().is_multiple_of(outputs), "dY (N, O) with O = {outputs}");
    dbias.par_chunks_mut(COLUMN_CHUNK).enumerate().for_each(|(chunk, dbias)| {
        simd::vectorize(
            #[inline(always)]
            || {
                let mut totals = [E::Wide::ZERO; COLUMN_CHUNK];
                let totals = &mut totals[..dbias.len()];
                for row in dy.chunks_exact(outputs) {
                    let row = &row[chunk * COLUMN_CHUNK..][..totals.len()];
                    for (total, &value) in totals.iter_mut().zip(row) {
                        *total += value.widen();
                    }
                }
                for (sum, &total) in dbias.iter_mut().zip(&*totals) {
                    *sum = if sums == Sums::Add { *sum + total } else { total };
                }
            },
        );
    });
}

fn check(shape: Shape, y: usize, x: usize) {
    assert_eq!(y, shape.rows * shape.outputs, "Y (N, O) of {shape:?}");
    assert_eq!(x, shape.rows * shape.inputs, "X (N, I) of {shape:?}");
}
