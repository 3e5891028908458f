//! Products by the kernels of the engine, for measuring the rate that they reach.

use device::{Allocator, DeviceBuffer};
use half::bf16;
use rayon::prelude::*;

use super::linear::Linear;
use super::options::Options;
use super::size::Size;
use crate::ops::matmul::{self, Epilogue, Shape, Workspace};
use crate::ops::{Element, Float};
use crate::rng::{Purpose, Stream};
use crate::workload::Compute;
use crate::{MicroBatch, ModelConfig};

/// Of the numbers in the matrices: they do not depend on a run.
const SEED: u64 = 0;
/// Sides of the square products.
const SIDES: [usize; 2] = [512, 1024];
/// Bound on the elements of a product's three matrices: 16 MiB in f32.
const ELEMENTS_MAX: usize = 4 << 20;

/// The products whose best rate is the matmul rate of a workload: squares, and the largest product
/// of its own, so that the workload cannot be faster than what was measured.
pub fn probe_shapes(config: &ModelConfig, micro_batch: MicroBatch) -> Vec<Shape> {
    let squares = SIDES.map(|side| Shape { rows: side, inputs: side, outputs: side });
    let compute = Compute::F32;
    let options = Options { threads: 1, ..compute.into() };
    let size = Size::new(config, micro_batch, options);
    let layers = Linear::ALL.map(|linear| size.linear(linear));
    let products = layers.into_iter().chain([head(&size)]);
    let largest = products.max_by(|a, b| flops(*a).total_cmp(&flops(*b)));
    squares.into_iter().chain(largest.map(bounded)).collect()
}

/// The logits of one chunk, which the head computes as W H^T.
fn head(size: &Size) -> Shape {
    Shape { rows: size.vocabulary, inputs: size.width, outputs: size.chunk_tokens::<f32>() }
}

/// Halves the largest dimension, mostly the rows, until the matrices are small enough for a short
/// probe. A product is computed block by block, so its rate does not depend on how many blocks
/// there are.
fn bounded(mut shape: Shape) -> Shape {
    while elements(shape) > ELEMENTS_MAX {
        let Shape { rows, inputs, outputs } = &mut shape;
        let largest = rows.max(inputs).max(outputs);
        *largest = largest.div_ceil(2);
    }
    shape
}

/// Of all three matrices.
fn elements(Shape { rows, inputs, outputs }: Shape) -> usize {
    rows * inputs + outputs * inputs + rows * outputs
}

fn flops(Shape { rows, inputs, outputs }: Shape) -> f64 {
    2.0 * rows as f64 * inputs as f64 * outputs as f64
}

/// Y = X W^T in a format.
#[derive(Debug)]
pub struct ProbeProduct {
    shape: Shape,
    operands: Formats,
}

#[derive(Debug)]
enum Formats {
    F32(Operands<f32>),
    Bf16(Operands<bf16>),
}

impl ProbeProduct {
    /// Matrices of random numbers. Multiply inside a rayon pool of so many threads.
    pub fn new(allocator: &Allocator, compute: Compute, shape: Shape, threads: usize) -> Self {
        let operands = match compute {
            Compute::F32 => Formats::F32(Operands::new(allocator, shape, threads)),
            Compute::Bf16 => Formats::Bf16(Operands::new(allocator, shape, threads)),
        };
        Self { shape, operands }
    }

    /// Computes the product.
    pub fn multiply(&mut self) {
        match &mut self.operands {
            Formats::F32(operands) => operands.multiply(self.shape),
            Formats::Bf16(operands) => operands.multiply(self.shape),
        }
    }

    /// FLOPs of one product, multiplications and additions.
    pub fn flops(&self) -> f64 {
        flops(self.shape)
    }
}

#[derive(Debug)]
struct Operands<E: Element> {
    /// X (N, I).
    left: DeviceBuffer<E>,
    /// W (O, I).
    right: DeviceBuffer<E>,
    /// Y (N, O).
    product: DeviceBuffer<E>,
    workspace: Workspace<E>,
}

impl<E: Element> Operands<E> {
    fn new(allocator: &Allocator, shape: Shape, threads: usize) -> Self {
        let Shape { rows, inputs, outputs } = shape;
        let [forward, ..] = shape.products();
        let stream = |index| Stream::new(SEED, Purpose::Test).child(index);
        Self {
            left: allocator.zeros(rows * inputs).filled(|left| randomize(left, stream(0))),
            right: allocator.zeros(outputs * inputs).filled(|right| randomize(right, stream(1))),
            product: allocator.zeros(rows * outputs),
            workspace: Workspace::for_products(allocator, threads, &[forward]),
        }
    }

    fn multiply(&mut self, shape: Shape) {
        let Self { left, right, product, workspace } = self;
        let epilogue = (None, Epilogue::Store);
        matmul::forward(product.host_mut(), left.host(), right.host(), epilogue, shape, workspace);
    }
}

/// Numbers uniform in [-1, 1): some processors multiply constants faster.
fn randomize<E: Element>(numbers: &mut [E], stream: Stream) {
    numbers.par_iter_mut().enumerate().for_each(|(index, number)| {
        *number = E::narrow(E::Wide::from_f64(stream.signed(index as u64)));
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{inner, relative_error, widened};
    use crate::presets;

    const SHAPE: Shape = Shape { rows: 33, inputs: 35, outputs: 31 };

    /// The relative error of the product, and how many values each operand has at least.
    fn error_and_values<E: Element>(operands: &Operands<E>) -> (f64, usize) {
        let [left, right] = [&operands.left, &operands.right].map(|matrix| widened(matrix.host()));
        let rows = left.chunks(SHAPE.inputs);
        let columns = || right.chunks(SHAPE.inputs);
        let exact: Vec<f64> =
            rows.flat_map(|row| columns().map(move |column| inner(row, column))).collect();
        let found: Vec<E::Wide> =
            operands.product.host().iter().map(|value| value.widen()).collect();
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
            let mut probe = ProbeProduct::new(&Allocator::host(), compute, SHAPE, 2);
            probe.multiply();
            let (error, values) = match &probe.operands {
                Formats::F32(operands) => error_and_values(operands),
                Formats::Bf16(operands) => error_and_values(operands),
            };
            assert!(error < bound, "{compute}: {error:e}");
            assert!(values > SHAPE.inputs * SHAPE.outputs / 2, "{compute}: {values} values");
        }
    }

    #[test]
    fn a_probe_allocates_what_is_counted() {
        for compute in [Compute::F32, Compute::Bf16] {
            let [host, counting] = [Allocator::host(), Allocator::counting()].map(|allocator| {
                let mut probe = ProbeProduct::new(&allocator, compute, SHAPE, 2);
                if !allocator.is_counting() {
                    probe.multiply();
                }
                allocator.total_bytes()
            });
            assert_eq!(host, counting, "{compute}");
        }
    }

    /// Of GPT-2 124M the logits of a chunk, of which the vocabulary is the largest dimension; of
    /// Llama 3 70B the layer before SwiGLU.
    #[test]
    fn the_largest_product_of_a_workload_is_probed_with_its_largest_dimension_bounded() {
        let probed = |name: &str| {
            let workload = presets::load(name).unwrap();
            let shapes = probe_shapes(&workload.model, workload.batch.micro_batch());
            assert_eq!(shapes.len(), SIDES.len() + 1);
            shapes[SIDES.len()]
        };
        let gpt = probed("gpt2-124m");
        assert_eq!(gpt.inputs, 768);
        assert_eq!(gpt.rows, 50257_usize.div_ceil(32));
        let llama = probed("llama3-70b");
        for shape in [gpt, llama] {
            assert!((ELEMENTS_MAX / 4..=ELEMENTS_MAX).contains(&elements(shape)), "{shape:?}");
        }
        let smoke = presets::load("smoke").unwrap();
        let contract = Shape { rows: smoke.batch.micro_batch().rows(), inputs: 512, outputs: 128 };
        let shapes = probe_shapes(&smoke.model, smoke.batch.micro_batch());
        assert_eq!(shapes[SIDES.len()], contract, "small enough as it is");
        let sides =
            shapes[..SIDES.len()].iter().map(|shape| [shape.rows, shape.inputs, shape.outputs]);
        assert!(sides.eq(SIDES.map(|side| [side; 3])));
    }
}
