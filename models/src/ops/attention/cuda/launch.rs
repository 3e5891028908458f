//! The arguments that the flash and the plain kernels have in common.

use device::cuda::{Grid, Kernel, Launch};
use device::{View, ViewMut};

use super::{BackwardInputs, scale};
use crate::ops::attention::Shape;
use crate::ops::kernels::CudaElement;

/// Output, log sums, qkv, tokens, heads, key-value heads, scale.
pub(super) fn forward<'a, E: CudaElement>(
    kernel: &'a Kernel,
    grid: Grid,
    output: &mut ViewMut<'_, E>,
    log_sums: &mut ViewMut<'_, f32>,
    qkv: View<'_, E>,
    shape: &Shape,
) -> Launch<'a> {
    with_shape(kernel.launch(grid).writes(output).writes(log_sums).reads(qkv), shape)
}

/// Dqkv, doutput, qkv, log sums, delta, tokens, heads, key-value heads, scale: of the queries'
/// kernel and of the keys', which write so many heads of dqkv.
pub(super) fn backward<'a, E: CudaElement>(
    kernel: &'a Kernel,
    grid: Grid,
    dqkv: &mut ViewMut<'_, E>,
    heads: usize,
    inputs: BackwardInputs<'_, E>,
    shape: &Shape,
) -> Launch<'a> {
    let BackwardInputs { doutput, qkv, log_sums, delta } = inputs;
    let written = shape.rows() * heads * shape.head_width;
    let launch = kernel.launch(grid).writes_part(dqkv, written).reads(doutput).reads(qkv);
    with_shape(launch.reads(log_sums).reads(delta), shape)
}

fn with_shape<'a>(launch: Launch<'a>, shape: &Shape) -> Launch<'a> {
    let launch = launch.int(shape.tokens).int(shape.heads).int(shape.key_value_heads);
    launch.float(scale(shape))
}
