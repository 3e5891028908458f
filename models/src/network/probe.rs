//! Products by the engine's own means, for measuring the rate that they reach.

use std::time::Duration;

use device::cuda::Cuda;
use device::{Allocator, Device, DeviceBuffer, ViewMut};
use half::bf16;
use rayon::prelude::*;

use super::linear::Linear;
use super::options::Options;
use super::size::Size;
use crate::layout::head_rows;
use crate::ops::kernels::CudaElement;
use crate::ops::matmul::cuda::{Blas, Epilogue, Epilogues, Extras, LinearProducts};
use crate::ops::matmul::{self, Shape, Workspace};
use crate::ops::{Element, Float};
use crate::rng::{Purpose, Stream};
use crate::workload::Compute;
use crate::{Error, MicroBatch, ModelConfig};

/// Seed of the numbers in the matrices: they do not depend on a run.
const SEED: u64 = 0;
/// Random numbers that a matrix on a device repeats.
const PATTERN: usize = 1 << 20;

/// Products to probe on one kind of device.
struct Limits {
    /// Sides of the square products.
    sides: &'static [usize],
    /// Bound on the elements of a product's three matrices.
    elements_max: usize,
}

/// Matrices of at most 16 MiB in f32.
const ON_HOST: Limits = Limits { sides: &[512, 1024], elements_max: 4 << 20 };
/// Matrices of at most 800 MiB in f32: large devices reach their rate only with large products.
const ON_CUDA: Limits = Limits { sides: &[256, 1024, 4096, 8192], elements_max: 200 << 20 };

/// The products whose best rate is the matmul rate of a workload, from the smallest: squares, and
/// the largest product of its own, so that the workload cannot be faster than what was measured.
pub fn probe_shapes(config: &ModelConfig, micro_batch: MicroBatch, options: Options) -> Vec<Shape> {
    let Limits { sides, elements_max } = if options.on_cuda { ON_CUDA } else { ON_HOST };
    let squares = sides.iter().map(|&side| Shape { rows: side, inputs: side, outputs: side });
    let size = Size::new(config, micro_batch, options);
    let layers = Linear::ALL.map(|linear| size.linear(linear));
    let products = layers.into_iter().chain([head(&size, options)]);
    let largest = products.max_by(|a, b| flops(*a).total_cmp(&flops(*b)));
    let largest = largest.map(|shape| bounded(shape, elements_max));
    let mut shapes: Vec<Shape> = squares.chain(largest).collect();
    shapes.sort_by(|a, b| flops(*a).total_cmp(&flops(*b)));
    shapes
}

/// The logits of one chunk: on the host the head computes them as W H^T.
fn head(size: &Size, options: Options) -> Shape {
    let Size { width: inputs, vocabulary, .. } = *size;
    if !options.on_cuda {
        // In bf16 too, so that rates compare with those of earlier versions.
        return Shape { rows: vocabulary, inputs, outputs: size.chunk_tokens::<f32>() };
    }
    let rows = match options.compute {
        Compute::F32 => size.chunk_tokens::<f32>(),
        Compute::Bf16 => size.chunk_tokens::<bf16>(),
    };
    Shape { rows, inputs, outputs: head_rows(vocabulary) }
}

/// Halves the largest dimension, mostly the rows, until the matrices are small enough for a short
/// probe. A product is computed block by block, so its rate does not depend on how many blocks
/// there are. Dimensions stay multiples of 8, which cuBLASLt needs.
fn bounded(mut shape: Shape, elements_max: usize) -> Shape {
    let Shape { rows, inputs, outputs } = &mut shape;
    while *rows * *inputs + *outputs * *inputs + *rows * *outputs > elements_max {
        let largest = (*rows).max(*inputs).max(*outputs);
        for side in [&mut *rows, inputs, outputs] {
            if *side == largest {
                *side = side.div_ceil(2);
                break;
            }
        }
    }
    for side in [rows, inputs, outputs] {
        *side = side.next_multiple_of(8);
    }
    shape
}

fn flops(Shape { rows, inputs, outputs }: Shape) -> f64 {
    2.0 * rows as f64 * inputs as f64 * outputs as f64
}

/// Y = X W^T in a format, on a device.
#[derive(Debug)]
pub struct ProbeProduct {
    shape: Shape,
    device: Device,
    operands: Box<dyn Multiply>,
}

/// Operands of any format on any device.
trait Multiply: std::fmt::Debug {
    /// Computes the product, or starts to.
    fn multiply(&mut self) -> Result<(), Error>;
}

impl ProbeProduct {
    /// Matrices of random numbers on the allocator's device, where products are computed. On the
    /// host multiply inside a rayon pool of so many threads.
    ///
    /// # Errors
    /// Those of the device, such as too little memory.
    pub fn new(
        allocator: &Allocator,
        compute: Compute,
        shape: Shape,
        threads: usize,
    ) -> Result<Self, Error> {
        let device = allocator.device();
        let operands: Box<dyn Multiply> = match (&device, compute) {
            (Device::Host, Compute::F32) => {
                Box::new(HostOperands::<f32>::new(allocator, shape, threads))
            }
            (Device::Host, Compute::Bf16) => {
                Box::new(HostOperands::<bf16>::new(allocator, shape, threads))
            }
            (Device::Cuda(_), Compute::F32) => {
                Box::new(CudaOperands::<f32>::new(allocator, shape)?)
            }
            (Device::Cuda(_), Compute::Bf16) => {
                Box::new(CudaOperands::<bf16>::new(allocator, shape)?)
            }
        };
        Ok(Self { shape, device, operands })
    }

    /// Memory of a product's matrices on a CUDA device, and of its library's workspace.
    pub fn bytes_on_cuda(compute: Compute, shape: Shape) -> u64 {
        let allocator = Allocator::counting();
        match compute {
            Compute::F32 => drop(Matrices::<f32>::new(&allocator, shape)),
            Compute::Bf16 => drop(Matrices::<bf16>::new(&allocator, shape)),
        }
        drop(Blas::workspace(&allocator));
        allocator.total_bytes()
    }

    /// Computes the product, and returns its time.
    ///
    /// # Errors
    /// Those of the device.
    pub fn time(&mut self) -> Result<Duration, Error> {
        let Self { device, operands, .. } = self;
        device.time(|| operands.multiply())
    }

    /// FLOPs of one product, multiplications and additions.
    pub fn flops(&self) -> f64 {
        flops(self.shape)
    }
}

/// The three matrices.
#[derive(Debug)]
struct Matrices<E: Element> {
    /// X (N, I).
    left: DeviceBuffer<E>,
    /// W (O, I).
    right: DeviceBuffer<E>,
    /// Y (N, O).
    product: DeviceBuffer<E>,
}

impl<E: Element> Matrices<E> {
    /// Matrices of zeros.
    fn new(allocator: &Allocator, shape: Shape) -> Self {
        let Shape { rows, inputs, outputs } = shape;
        Self {
            left: allocator.zeros(rows * inputs),
            right: allocator.zeros(outputs * inputs),
            product: allocator.zeros(rows * outputs),
        }
    }
}

/// The numbers of one of the factors.
fn numbers(factor: u64) -> Stream {
    Stream::new(SEED, Purpose::Test).child(factor)
}

/// Operands of the host's kernels.
#[derive(Debug)]
struct HostOperands<E: Element> {
    shape: Shape,
    matrices: Matrices<E>,
    workspace: Workspace<E>,
}

impl<E: Element> HostOperands<E> {
    fn new(allocator: &Allocator, shape: Shape, threads: usize) -> Self {
        let [forward, ..] = shape.products();
        let Matrices { left, right, product } = Matrices::<E>::new(allocator, shape);
        let left = left.filled(|left| randomize(left, numbers(0)));
        let right = right.filled(|right| randomize(right, numbers(1)));
        Self {
            shape,
            matrices: Matrices { left, right, product },
            workspace: Workspace::for_products(allocator, threads, &[forward]),
        }
    }
}

impl<E: Element> Multiply for HostOperands<E> {
    fn multiply(&mut self) -> Result<(), Error> {
        let Self { shape, matrices, workspace } = self;
        let Matrices { left, right, product } = matrices;
        let epilogue = (None, matmul::Epilogue::Store);
        let product = product.host_mut();
        matmul::forward(product, left.host(), right.host(), epilogue, *shape, workspace);
        Ok(())
    }
}

/// Operands of cuBLASLt.
#[derive(Debug)]
struct CudaOperands<E: CudaElement> {
    matrices: Matrices<E>,
    blas: Blas,
    products: LinearProducts,
}

impl<E: CudaElement> CudaOperands<E> {
    fn new(allocator: &Allocator, shape: Shape) -> Result<Self, Error> {
        let Device::Cuda(device) = allocator.device() else {
            unreachable!("operands on a CUDA device")
        };
        let mut matrices = Matrices::new(allocator, shape);
        let workspace = Blas::workspace(allocator);
        allocator.outcome()?;
        randomize_on(&device, matrices.left.view_mut(), numbers(0))?;
        randomize_on(&device, matrices.right.view_mut(), numbers(1))?;
        let blas = Blas::new(&device, workspace)?;
        let epilogues = Epilogues { forward: Epilogue::None, input: Epilogue::None };
        let products = LinearProducts::new::<E>(&blas, shape, epilogues)?;
        Ok(Self { matrices, blas, products })
    }
}

impl<E: CudaElement> Multiply for CudaOperands<E> {
    fn multiply(&mut self) -> Result<(), Error> {
        let Self { matrices, blas, products } = self;
        let Matrices { left, right, product } = matrices;
        let product: ViewMut<'_, E> = product.view_mut();
        Ok(products.forward(blas, product, left.view(), right.view(), Extras::default())?)
    }
}

/// Numbers uniform in [-1, 1): some processors multiply constants faster.
fn randomize<E: Element>(numbers: &mut [E], stream: Stream) {
    numbers.par_iter_mut().enumerate().for_each(|(index, number)| {
        *number = E::narrow(E::Wide::from_f64(stream.signed(index as u64)));
    });
}

/// The same on a device, which repeats a pattern: what is copied to it is small.
fn randomize_on<E: Element>(
    device: &Cuda,
    mut numbers: ViewMut<'_, E>,
    stream: Stream,
) -> Result<(), Error> {
    let mut pattern = vec![E::ZERO; numbers.len().min(PATTERN)];
    randomize(&mut pattern, stream);
    let mut done = pattern.len();
    device.write(numbers.reborrow().slice(0..done), &pattern)?;
    while done < numbers.len() {
        let (written, rest) = numbers.reborrow().split_at(done);
        let len = done.min(rest.len());
        device.copy(rest.slice(0..len), written.into_view().slice(0..len))?;
        done += len;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::LOGITS_BYTES_ON_CUDA;
    use crate::ops::cross_entropy::LOGITS_BYTES;
    use crate::ops::testing::{inner, relative_error, widened};
    use crate::presets;

    const SHAPE: Shape = Shape { rows: 33, inputs: 35, outputs: 31 };

    /// The relative error of the product, and how many values each operand has at least.
    fn error_and_values<E: Element>() -> (f64, usize) {
        let mut operands = HostOperands::<E>::new(&Allocator::host(), SHAPE, 2);
        operands.multiply().unwrap();
        let operands = operands.matrices;
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
        for ((error, values), bound) in
            [(error_and_values::<f32>(), 1e-6), (error_and_values::<bf16>(), 4e-3)]
        {
            assert!(error < bound, "{error:e}");
            assert!(values > SHAPE.inputs * SHAPE.outputs / 2, "{values} values");
        }
    }

    #[test]
    fn a_probe_allocates_what_is_counted() {
        for compute in [Compute::F32, Compute::Bf16] {
            let [host, counting] = [Allocator::host(), Allocator::counting()].map(|allocator| {
                let mut probe = ProbeProduct::new(&allocator, compute, SHAPE, 2).unwrap();
                if !allocator.is_counting() {
                    probe.time().unwrap();
                }
                allocator.total_bytes()
            });
            assert_eq!(host, counting, "{compute}");
        }
    }

    /// Shapes of a preset that are no squares of the host's or a device's.
    fn probed(name: &str, on_cuda: bool) -> Shape {
        let workload = presets::load(name).unwrap();
        let logits_bytes = if on_cuda { LOGITS_BYTES_ON_CUDA } else { LOGITS_BYTES };
        let options = Options { on_cuda, logits_bytes, threads: 1, ..Compute::F32.into() };
        let shapes = probe_shapes(&workload.model, workload.batch.micro_batch(), options);
        assert!(shapes.is_sorted_by(|a, b| flops(*a) <= flops(*b)), "{shapes:?}");
        let Limits { sides, elements_max } = if on_cuda { ON_CUDA } else { ON_HOST };
        let is_square = |shape: &Shape| {
            sides.contains(&shape.rows) && shape.rows == shape.inputs && shape.rows == shape.outputs
        };
        let mut others = shapes.iter().filter(|shape| !is_square(shape));
        assert_eq!(shapes.len(), sides.len() + 1);
        let shape = *others.next().unwrap();
        let Shape { rows, inputs, outputs } = shape;
        let elements = rows * inputs + outputs * inputs + rows * outputs;
        assert!(elements <= elements_max + elements_max / 100, "{shape:?}");
        shape
    }

    /// Of GPT-2 124M the logits of a chunk, of which the vocabulary is the largest dimension; of
    /// the smoke workload the last layer of a block.
    #[test]
    fn the_largest_product_of_a_workload_is_probed_with_its_largest_dimension_bounded() {
        let gpt = probed("gpt2-124m", false);
        assert_eq!((gpt.rows, gpt.inputs), (1576, 768));
        let gpt = probed("gpt2-124m", true);
        assert_eq!((gpt.inputs, gpt.outputs), (768, 50304 / 2));
        probed("llama3-70b", false);
        probed("llama3-70b", true);
        let workload = presets::load("smoke").unwrap();
        let contract =
            Shape { rows: workload.batch.micro_batch().rows(), inputs: 512, outputs: 128 };
        assert_eq!(probed("smoke", false), contract, "small enough as it is");
    }
}

/// Need a CUDA device, real or emulated.
#[cfg(test)]
mod cuda_tests {
    use super::*;

    #[test]
    fn a_large_matrix_repeats_a_pattern_to_its_end() {
        let device = Cuda::open(0).unwrap();
        let allocator = Allocator::cuda(&device);
        let mut numbers = allocator.zeros::<f32>(3 * PATTERN + 5);
        randomize_on(&device, numbers.view_mut(), super::numbers(0)).unwrap();
        let mut found = vec![0.0; numbers.len()];
        device.read(numbers.view(), &mut found).unwrap();
        let (pattern, rest) = found.split_at(PATTERN);
        assert!(pattern.iter().all(|number| *number != 0.0));
        assert!(rest.chunks(PATTERN).all(|part| *part == pattern[..part.len()]));
    }
}
