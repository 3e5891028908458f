//! A square product by the kernels of the engine, for whoever measures what they reach.

use half::bf16;
use rayon::prelude::*;

use crate::ops::matmul::{self, Epilogue, Shape, Workspace};
use crate::ops::{Element, Float};
use crate::rng::{Purpose, Stream};
use crate::workload::Compute;

/// Of the numbers in the matrices: they do not depend on a run.
const SEED: u64 = 0;

/// Y = X W^T of square matrices in a format.
#[derive(Debug)]
pub struct SquareProduct {
    side: usize,
    operands: Formats,
}

#[derive(Debug)]
enum Formats {
    F32(Operands<f32>),
    Bf16(Operands<bf16>),
}

#[derive(Debug)]
struct Operands<E: Element> {
    left: Vec<E>,
    right: Vec<E>,
    product: Vec<E>,
    workspace: Workspace<E>,
}

impl SquareProduct {
    /// Matrices of `side` rows and columns, for the threads of the rayon pool that this is called
    /// in.
    pub fn new(compute: Compute, side: usize) -> Self {
        let operands = match compute {
            Compute::F32 => Formats::F32(Operands::new(side)),
            Compute::Bf16 => Formats::Bf16(Operands::new(side)),
        };
        Self { side, operands }
    }

    /// Computes the product.
    pub fn multiply(&mut self) {
        match &mut self.operands {
            Formats::F32(operands) => operands.multiply(self.side),
            Formats::Bf16(operands) => operands.multiply(self.side),
        }
    }

    /// FLOPs of one product, multiplications and additions.
    pub fn flops(&self) -> f64 {
        2.0 * (self.side as f64).powi(3)
    }

    /// What one allocates, on so many threads.
    pub fn planned_bytes(compute: Compute, side: usize, threads: usize) -> usize {
        let [forward, ..] = shape(side).products(false);
        let room = match compute {
            Compute::F32 => Workspace::<f32>::planned_bytes(threads, &[forward]),
            Compute::Bf16 => Workspace::<bf16>::planned_bytes(threads, &[forward]),
        };
        3 * side * side * compute.bytes() + room
    }
}

fn shape(side: usize) -> Shape {
    Shape { rows: side, inputs: side, outputs: side }
}

/// Numbers uniform in [-1, 1): of a constant the parts that f32 is split into are mostly zeros,
/// which some processors multiply faster.
fn numbers<E: Element>(stream: Stream, len: usize) -> Vec<E> {
    let number = |index| E::narrow(E::Wide::from_f64(stream.signed(index)));
    (0..len as u64).into_par_iter().map(number).collect()
}

impl<E: Element> Operands<E> {
    fn new(side: usize) -> Self {
        let matrix = |index| numbers(Stream::new(SEED, Purpose::Test).child(index), side * side);
        Self {
            left: matrix(0),
            right: matrix(1),
            product: vec![E::ZERO; side * side],
            workspace: Workspace::new(rayon::current_num_threads()),
        }
    }

    fn multiply(&mut self, side: usize) {
        let Self { left, right, product, workspace } = self;
        let epilogue = (None, Epilogue::Store);
        matmul::forward(product, left, &right[..], epilogue, shape(side), workspace);
    }
}

#[cfg(test)]
mod tests {
    use super::{Formats, Operands, SquareProduct};
    use crate::ops::Element;
    use crate::ops::testing::{inner, relative_error, widened};
    use crate::workload::Compute;

    const SIDE: usize = 33;

    /// How far the product is off, and how many values each operand has at least.
    fn error_and_values<E: Element>(operands: &Operands<E>) -> (f64, usize) {
        let [left, right] = [&operands.left, &operands.right].map(|matrix| widened(matrix));
        let rows = left.chunks(SIDE);
        let exact: Vec<f64> =
            rows.flat_map(|row| right.chunks(SIDE).map(|column| inner(row, column))).collect();
        let found: Vec<E::Wide> = operands.product.iter().map(|value| value.widen()).collect();
        let error = relative_error(&found, &exact);
        let values = [left, right].map(|mut values| {
            values.sort_by(f64::total_cmp);
            values.dedup();
            values.len()
        });
        (error, values[0].min(values[1]))
    }

    #[test]
    fn multiplies_numbers_in_both_formats() {
        for (compute, bound) in [(Compute::F32, 1e-6), (Compute::Bf16, 4e-3)] {
            let mut square = SquareProduct::new(compute, SIDE);
            square.multiply();
            let (error, values) = match &square.operands {
                Formats::F32(operands) => error_and_values(operands),
                Formats::Bf16(operands) => error_and_values(operands),
            };
            assert!(error < bound, "{compute}: {error:e}");
            assert!(values > SIDE * SIDE / 2, "{compute}: {values} values");
        }
    }
}
