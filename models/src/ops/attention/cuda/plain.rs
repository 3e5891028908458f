//! A warp for each query in forward and for its gradient, and a warp for each key's and value's. In
//! any format, for any even head width.
#![allow(unsafe_code)] // launches

use device::cuda::{Cuda, Error, Grid, Kernel, Module};
use device::{View, ViewMut};

use super::{BackwardInputs, launch};
use crate::ops::attention::Shape;
use crate::ops::kernels::{self, CudaElement};

/// Rows of a block: one for each of its warps.
const ROWS: usize = 4;
/// Threads of a block.
const THREADS: u32 = 32 * ROWS as u32;

/// The kernel of the row sums of dout out.
pub(super) const DELTA: &str = "attention_delta";

/// The compiled kernels.
#[derive(Debug)]
pub(super) struct Plain {
    forward: Kernel,
    backward_queries: Kernel,
    backward_keys: Kernel,
}

/// Compiles the kernels for heads of a width.
pub(super) fn load<E: CudaElement>(device: &Cuda, head_width: usize) -> Result<Module, Error> {
    let options: &[&str] = if in_packs::<E>(head_width) { &[] } else { &["-DPAIR_ACCESS"] };
    kernels::load_with(device, &kernels::ATTENTION, E::FORMAT, options)
}

/// Returns whether heads start at multiples of 16 bytes.
fn in_packs<E: CudaElement>(head_width: usize) -> bool {
    head_width.is_multiple_of(E::PACK)
}

impl Plain {
    pub(super) fn new(module: &Module) -> Result<Self, Error> {
        Ok(Self {
            forward: module.kernel("attention_forward")?,
            backward_queries: module.kernel("attention_backward_queries")?,
            backward_keys: module.kernel("attention_backward_keys")?,
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
        let grid = grid(&shape, shape.heads);
        let launch = launch::forward(&self.forward, grid, &mut output, &mut log_sums, qkv, &shape);
        // SAFETY: attention_forward has these arguments and the head width; the lengths were
        // checked.
        unsafe { launch.int(shape.head_width).run() }
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
            let grid = grid(&shape, heads);
            let launch = launch::backward(kernel, grid, &mut dqkv, written_heads, inputs, &shape);
            // SAFETY: attention_backward_* have these arguments and the head width; the lengths
            // were checked.
            unsafe { launch.int(shape.head_width).run() }?;
        }
        Ok(())
    }
}

/// The grid of [`DELTA`]: as many lanes share a row as read it in one access each.
pub(super) fn delta_grid<E: CudaElement>(shape: &Shape) -> Grid {
    let piece = if in_packs::<E>(shape.head_width) { E::PACK } else { 2 };
    let lanes = shape.head_width.div_ceil(piece).next_power_of_two().min(32);
    let rows = ROWS * 32 / lanes;
    Grid::of([shape.tokens.div_ceil(rows), shape.heads, shape.sequences], THREADS)
}

/// A block for [`ROWS`] rows of each of so many heads of each sequence.
fn grid(shape: &Shape, heads: usize) -> Grid {
    Grid::of([shape.tokens.div_ceil(ROWS), heads, shape.sequences], THREADS)
}
