//! Flash attention on tensor cores: bf16, heads of 64 or 128. By `mma.sync`, or on Hopper by
//! `wgmma`.
#![allow(unsafe_code)] // launches

use device::cuda::{ComputeCapability, Cuda, Error, Grid, Kernel, Module};
use device::{View, ViewMut};

use super::{BackwardInputs, launch};
use crate::ops::attention::Shape;
use crate::ops::kernels::{self, CudaElement, Format, KernelSource};

/// The compute capability that has `wgmma`; later ones do not.
const HOPPER: ComputeCapability = ComputeCapability { major: 9, minor: 0 };

/// The compiled kernels.
#[derive(Debug)]
pub(super) struct Flash {
    forward: BlockKernel,
    backward_queries: BlockKernel,
    backward_keys: BlockKernel,
}

/// A kernel whose blocks compute some rows of a head.
#[derive(Debug)]
struct BlockKernel {
    kernel: Kernel,
    block: Block,
}

/// Size of a block.
#[derive(Debug, Clone, Copy)]
struct Block {
    /// Queries, or keys for their gradient.
    rows: usize,
    threads: u32,
    /// Dynamic shared memory, as the comments of the kernels define it.
    shared_bytes: u32,
}

impl Flash {
    /// Returns whether there are kernels for this format and width.
    pub(super) fn computes<E: CudaElement>(head_width: usize) -> bool {
        E::FORMAT == Format::Bf16 && matches!(head_width, 64 | 128)
    }

    /// The kernels by `mma.sync`, for every device.
    pub(super) fn new<E: CudaElement>(device: &Cuda, head_width: usize) -> Result<Self, Error> {
        let module = load::<E>(device, &kernels::FLASH_ATTENTION, head_width)?;
        let capability = device.properties().compute_capability;
        let kernel = |name, block| BlockKernel::new(&module, name, block);
        Ok(Self {
            forward: kernel("flash_forward", forward_block(head_width))?,
            backward_queries: kernel(
                "flash_backward_queries",
                queries_block(head_width, capability),
            )?,
            backward_keys: kernel("flash_backward_keys", keys_block(head_width))?,
        })
    }

    /// The kernels by `wgmma`.
    ///
    /// # Errors
    /// Fails on devices other than Hopper's.
    pub(super) fn wgmma<E: CudaElement>(device: &Cuda, head_width: usize) -> Result<Self, Error> {
        let properties = device.properties();
        if properties.compute_capability != HOPPER {
            return Err(Error::OtherArchitecture {
                name: properties.name.clone(),
                found: properties.compute_capability,
                what: "run.attention = wgmma",
                needed: HOPPER,
                instead: "run.attention = flash",
            });
        }
        let module = load::<E>(device, &kernels::WGMMA_ATTENTION, head_width)?;
        let kernel = |name, block| BlockKernel::new(&module, name, block);
        Ok(Self {
            forward: kernel("wgmma_forward", wgmma_forward_block(head_width))?,
            backward_queries: kernel("wgmma_backward_queries", wgmma_queries_block(head_width))?,
            backward_keys: kernel("wgmma_backward_keys", wgmma_keys_block(head_width))?,
        })
    }

    /// Writes `output` and `log_sums`, whose lengths the caller checked.
    pub(super) fn forward<E: CudaElement>(
        &self,
        mut output: ViewMut<'_, E>,
        mut log_sums: ViewMut<'_, f32>,
        qkv: View<'_, E>,
        shape: Shape,
    ) -> Result<(), Error> {
        let BlockKernel { kernel, .. } = &self.forward;
        let grid = self.forward.grid(&shape, shape.heads);
        let launch = launch::forward(kernel, grid, &mut output, &mut log_sums, qkv, &shape);
        // SAFETY: both forward kernels have these arguments; the lengths were checked.
        unsafe { launch.run() }
    }

    /// Writes `dqkv`; the caller checked all lengths.
    pub(super) fn backward<E: CudaElement>(
        &self,
        mut dqkv: ViewMut<'_, E>,
        inputs: BackwardInputs<'_, E>,
        shape: Shape,
    ) -> Result<(), Error> {
        let kernels = [
            (&self.backward_queries, shape.heads, shape.heads),
            (&self.backward_keys, shape.key_value_heads, 2 * shape.key_value_heads),
        ];
        for (kernel, heads, written_heads) in kernels {
            let grid = kernel.grid(&shape, heads);
            let kernel = &kernel.kernel;
            let launch = launch::backward(kernel, grid, &mut dqkv, written_heads, inputs, &shape);
            // SAFETY: all backward kernels have these arguments; the lengths were checked.
            unsafe { launch.run() }?;
        }
        Ok(())
    }
}

impl BlockKernel {
    fn new(module: &Module, name: &'static str, block: Block) -> Result<Self, Error> {
        let kernel = module.kernel(name)?.with_dynamic_shared(block.shared_bytes)?;
        Ok(Self { kernel, block })
    }

    /// Blocks for all rows of so many heads of each sequence.
    fn grid(&self, shape: &Shape, heads: usize) -> Grid {
        let Block { rows, threads, .. } = self.block;
        Grid::of([heads, shape.sequences, shape.tokens.div_ceil(rows)], threads)
    }
}

fn load<E: CudaElement>(
    device: &Cuda,
    source: &KernelSource,
    head_width: usize,
) -> Result<Module, Error> {
    let width = format!("-DHEAD_WIDTH={head_width}");
    kernels::load_with(device, source, E::FORMAT, &[&width])
}

fn forward_block(head_width: usize) -> Block {
    Block { rows: 128, threads: 128, shared_bytes: bytes_of_rows(128 + 2 * 64, head_width) }
}

fn queries_block(head_width: usize, capability: ComputeCapability) -> Block {
    let ComputeCapability { major, minor } = capability;
    let has_little = matches!((major, minor), (8, 6 | 9)) || major >= 12;
    let keys = if head_width == 64 && !has_little { 64 } else { 32 };
    let shared_bytes = bytes_of_rows(2 * 128 + 4 * keys, head_width);
    Block { rows: 128, threads: 128, shared_bytes }
}

/// Beside tiles, 16 bytes for each of 32 queries: two tiles of log sums and deltas.
fn keys_block(head_width: usize) -> Block {
    let rows = 8192 / head_width;
    let shared_bytes = bytes_of_rows(2 * rows + 4 * 32, head_width) + 32 * 16;
    Block { rows, threads: 128, shared_bytes }
}

/// Two tiles of keys and of values.
fn wgmma_forward_block(head_width: usize) -> Block {
    wgmma_block(bytes_of_rows(128 + 4 * head_width, head_width))
}

/// Three tiles of keys and two of values.
fn wgmma_queries_block(head_width: usize) -> Block {
    wgmma_block(bytes_of_rows(2 * 128 + 5 * 64, head_width))
}

/// Three tiles of queries and of gradients, and 16 bytes for each of their queries.
fn wgmma_keys_block(head_width: usize) -> Block {
    let queries = 4096 / head_width;
    wgmma_block(bytes_of_rows(2 * 128 + 6 * queries, head_width) + 16 * queries as u32)
}

fn wgmma_block(shared_bytes: u32) -> Block {
    Block { rows: 128, threads: 256, shared_bytes }
}

/// Rows of heads in bf16.
fn bytes_of_rows(rows: usize, head_width: usize) -> u32 {
    (rows * head_width * 2) as u32
}
