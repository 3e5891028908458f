//! Flash attention on tensor cores: bf16, heads of 64 or 128.
#![allow(unsafe_code)] // launches

use device::cuda::{ComputeCapability, Cuda, Error, Grid, Kernel};
use device::{View, ViewMut};

use super::{BackwardInputs, launch};
use crate::ops::attention::Shape;
use crate::ops::kernels::{self, CudaElement, Format};

/// Threads of a block.
const THREADS: u32 = 128;
/// Queries of a block, forward and for their gradient.
const QUERIES: usize = 128;
/// Elements of the keys of a block, for their gradient.
const KEY_ELEMENTS: usize = 8192;

/// The compiled kernels.
#[derive(Debug)]
pub(super) struct Flash {
    forward: Kernel,
    backward_queries: Kernel,
    backward_keys: Kernel,
}

/// Dynamic shared memory of a block of each kernel.
struct SharedBytes {
    forward: u32,
    backward_queries: u32,
    backward_keys: u32,
}

impl Flash {
    /// Returns whether there are kernels for this format and width.
    pub(super) fn computes<E: CudaElement>(head_width: usize) -> bool {
        E::FORMAT == Format::Bf16 && matches!(head_width, 64 | 128)
    }

    pub(super) fn new<E: CudaElement>(device: &Cuda, head_width: usize) -> Result<Self, Error> {
        let width = format!("-DHEAD_WIDTH={head_width}");
        let module = kernels::load_with(device, &kernels::FLASH_ATTENTION, E::FORMAT, &[&width])?;
        let shared = shared_bytes(head_width, device.properties().compute_capability);
        let kernel = |name, bytes| module.kernel(name)?.with_dynamic_shared(bytes);
        Ok(Self {
            forward: kernel("flash_forward", shared.forward)?,
            backward_queries: kernel("flash_backward_queries", shared.backward_queries)?,
            backward_keys: kernel("flash_backward_keys", shared.backward_keys)?,
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
        let blocks = shape.tokens.div_ceil(QUERIES);
        let grid = grid(&shape, shape.heads, blocks);
        let launch = launch::forward(&self.forward, grid, &mut output, &mut log_sums, qkv, &shape);
        // SAFETY: flash_forward has these arguments; the lengths were checked.
        unsafe { launch.run() }
    }

    /// Writes `dqkv`; the caller checked all lengths.
    pub(super) fn backward<E: CudaElement>(
        &self,
        mut dqkv: ViewMut<'_, E>,
        inputs: BackwardInputs<'_, E>,
        shape: Shape,
    ) -> Result<(), Error> {
        let queries = grid(&shape, shape.heads, shape.tokens.div_ceil(QUERIES));
        let key_blocks = (shape.tokens * shape.head_width).div_ceil(KEY_ELEMENTS);
        let keys = grid(&shape, shape.key_value_heads, key_blocks);
        let kernels = [
            (&self.backward_queries, queries, shape.heads),
            (&self.backward_keys, keys, 2 * shape.key_value_heads),
        ];
        for (kernel, grid, heads) in kernels {
            let launch = launch::backward(kernel, grid, &mut dqkv, heads, inputs, &shape);
            // SAFETY: flash_backward_* have these arguments; the lengths were checked.
            unsafe { launch.run() }?;
        }
        Ok(())
    }
}

/// Dynamic shared memory, as the comments of the kernels define it. Kernels for keys have 16 bytes
/// for each of 32 queries beside their tiles: two tiles of log sums and deltas.
fn shared_bytes(head_width: usize, capability: ComputeCapability) -> SharedBytes {
    let width = head_width as u32;
    let ComputeCapability { major, minor } = capability;
    let has_little = matches!((major, minor), (8, 6 | 9)) || major >= 12;
    let keys = if head_width == 64 && !has_little { 64 } else { 32 };
    let key_rows = KEY_ELEMENTS as u32 / width;
    SharedBytes {
        forward: 512 * width,
        backward_queries: (2 * QUERIES as u32 + 4 * keys) * width * 2,
        backward_keys: (2 * key_rows + 128) * width * 2 + 512,
    }
}

/// Blocks of some rows of each of so many heads of each sequence.
fn grid(shape: &Shape, heads: usize, blocks: usize) -> Grid {
    Grid::of([heads, shape.sequences, blocks], THREADS)
}
