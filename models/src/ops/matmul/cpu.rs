//! The products of a linear layer as calls of the blocked driver.

#![allow(unsafe_code)]

use rayon::prelude::*;

use super::output::{Narrow, Output, Then};
use super::product::{Product, Right};
use super::strided::Strided;
use super::weight::Form;
use super::{Shape, Weight, Workspace};
use crate::ops::{COLUMN_CHUNK, Element, simd};

/// What forward does with a sum before it is rounded once and stored.
#[derive(Debug)]
pub enum Epilogue<'a, E> {
    /// Y = X W^T + b.
    Store,
    /// Y = X W^T + b + R, with R (N, O).
    Residual(&'a [E]),
    /// Y = X W^T + b, and A = gelu(Y) of what is stored in Y, with A (N, O).
    Gelu(&'a mut [E]),
}

/// What becomes of sums over the rows of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sums {
    /// They replace what is there.
    Write,
    /// They are added to it.
    Add,
}

/// Y = X W^T + b, and what the epilogue says: writes `y` (N, O) from `x` (N, I), `weight` (O, I)
/// and `bias` (O).
///
/// # Panics
/// When a slice is shorter or longer than its shape.
pub fn forward<'a, E: Element>(
    y: &mut [E],
    x: &[E],
    weight: impl Into<Weight<'a, E>>,
    (bias, epilogue): (Option<&[E]>, Epilogue<'_, E>),
    shape: Shape,
    workspace: &mut Workspace<E>,
) {
    let Shape { rows, inputs, outputs } = shape;
    check(shape, y.len(), x.len());
    assert!(bias.is_none_or(|bias| bias.len() == outputs), "b (O) of {shape:?}");
    let then = match epilogue {
        Epilogue::Store => Then::Store,
        Epilogue::Residual(residual) => {
            assert_eq!(residual.len(), y.len(), "R (N, O) of {shape:?}");
            Then::Add(residual.as_ptr())
        }
        Epilogue::Gelu(activation) => {
            assert_eq!(activation.len(), y.len(), "A (N, O) of {shape:?}");
            Then::Gelu(activation.as_mut_ptr())
        }
    };
    let bias = bias.map(<[E]>::as_ptr);
    let product = Product {
        shape: (rows, outputs, inputs),
        left: Strided::dense(x, inputs),
        right: weight.into().right(Form::Forward, (outputs, inputs), workspace.packs[0].kernel),
        output: Output::Narrow(Narrow { start: y.as_mut_ptr(), row: outputs, bias, then }),
    };
    // SAFETY: the lengths were checked; outputs are borrowed mutably, so they overlap nothing.
    unsafe { product.run_parallel(&mut workspace.packs) };
}

/// dX = dY W: writes `dx` (N, I) from `dy` (N, O) and `weight` (O, I).
///
/// Where the layer's input was gelu(U), `before` is U (N, I): dX is that of U then, and gelu(U), as
/// forward wrote it, takes U's place. One exponential gives both, so that forward need not keep it.
///
/// # Panics
/// When a slice is shorter or longer than its shape.
pub fn backward_input<'a, E: Element>(
    dx: &mut [E],
    dy: &[E],
    weight: impl Into<Weight<'a, E>>,
    before: Option<&mut [E]>,
    shape: Shape,
    workspace: &mut Workspace<E>,
) {
    let Shape { rows, inputs, outputs } = shape;
    check(shape, dy.len(), dx.len());
    assert!(before.as_ref().is_none_or(|u| u.len() == dx.len()), "U (N, I) of {shape:?}");
    let then = before.map_or(Then::Store, |before| Then::GeluBackward(before.as_mut_ptr()));
    let product = Product {
        shape: (rows, inputs, outputs),
        left: Strided::dense(dy, outputs),
        right: weight.into().right(Form::Backward, (outputs, inputs), workspace.packs[0].kernel),
        output: Output::Narrow(Narrow { start: dx.as_mut_ptr(), row: inputs, bias: None, then }),
    };
    // SAFETY: the lengths were checked; outputs are borrowed mutably, so they overlap nothing.
    unsafe { product.run_parallel(&mut workspace.packs) };
}

/// dW = dY^T X or dW += dY^T X: `dweight` (O, I) from `dy` (N, O) and `x` (N, I).
///
/// # Panics
/// When a slice is shorter or longer than its shape.
pub fn backward_weight<E: Element>(
    dweight: &mut [E::Wide],
    dy: &[E],
    x: &[E],
    sums: Sums,
    shape: Shape,
    workspace: &mut Workspace<E>,
) {
    let Shape { rows, inputs, outputs } = shape;
    check(shape, dy.len(), x.len());
    assert_eq!(dweight.len(), outputs * inputs, "dW (O, I) of {shape:?}");
    let accumulate = sums == Sums::Add;
    let product = Product {
        shape: (outputs, inputs, rows),
        left: Strided::dense(dy, outputs).transposed(),
        right: Right::Plain(Strided::dense(x, inputs)),
        output: Output::Wide { start: dweight.as_mut_ptr(), row: inputs, accumulate },
    };
    // SAFETY: the lengths were checked; `dweight` is borrowed mutably, so it overlaps nothing.
    unsafe { product.run_parallel(&mut workspace.packs) };
}

/// db = or += the column sums of dY: `dbias` (O) from `dy` (N, O).
///
/// # Panics
/// When `dy` is not a whole number of rows.
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
