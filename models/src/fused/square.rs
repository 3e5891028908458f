//! A square product by the kernels of the engine, for whoever measures what they reach.

use half::bf16;

use crate::ops::Element;
use crate::ops::matmul::{self, Epilogue, Shape, Workspace};
use crate::workload::Compute;

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
            Compute::F32 => Formats::F32(Operands::new(side, |value| value)),
            Compute::Bf16 => Formats::Bf16(Operands::new(side, bf16::from_f32)),
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

impl<E: Element> Operands<E> {
    fn new(side: usize, element: impl Fn(f32) -> E) -> Self {
        let matrix = |value| vec![element(value); side * side];
        let workspace = Workspace::new(rayon::current_num_threads());
        Self { left: matrix(0.5), right: matrix(0.25), product: matrix(0.0), workspace }
    }

    fn multiply(&mut self, side: usize) {
        let Self { left, right, product, workspace } = self;
        let epilogue = (None, Epilogue::Store);
        matmul::forward(product, left, &right[..], epilogue, shape(side), workspace);
    }
}

#[cfg(test)]
mod tests {
    use super::{Formats, SquareProduct};
    use crate::workload::Compute;

    #[test]
    fn multiplies_in_both_formats() {
        let side = 33;
        for compute in [Compute::F32, Compute::Bf16] {
            let mut square = SquareProduct::new(compute, side);
            square.multiply();
            let product: Vec<f32> = match &square.operands {
                Formats::F32(operands) => operands.product.clone(),
                Formats::Bf16(operands) => {
                    operands.product.iter().map(|value| value.to_f32()).collect()
                }
            };
            let exact = 0.125 * side as f32; // which bf16 holds as well
            assert!(product.iter().all(|&value| value == exact), "{compute}: {product:?}");
        }
    }
}
