//! A warp for each row forward; parts of the rows backward.
#![allow(unsafe_code)] // launches

use device::cuda::{Cuda, Error, Grid, Kernel};
use device::{View, ViewMut};

use super::EPSILON;
use crate::ops::kernels::{self, CudaElement};
use crate::ops::norm::{NormBackward, NormSaved, NormShape};
use crate::ops::row_sums::{self, cuda::Partials};

/// The compiled kernels.
#[derive(Debug)]
pub(crate) struct LayerNorm {
    forward: Kernel,
    apply: Kernel,
    backward: Kernel,
}

/// Weight and bias (C).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parameters<'a, E: CudaElement> {
    pub(crate) weight: View<'a, E>,
    pub(crate) bias: View<'a, E>,
}

impl LayerNorm {
    pub(crate) fn new<E: CudaElement>(device: &Cuda) -> Result<Self, Error> {
        let module = kernels::load(device, &kernels::LAYER_NORM, E::FORMAT)?;
        Ok(Self {
            forward: module.kernel("layer_norm_forward")?,
            apply: module.kernel("layer_norm_apply")?,
            backward: module.kernel("layer_norm_backward")?,
        })
    }

    /// Writes `y` (N, C), and mean and 1 / standard deviation to `stats` (N, 2).
    pub(crate) fn forward<E: CudaElement>(
        &self,
        mut y: ViewMut<'_, E>,
        mut stats: ViewMut<'_, f32>,
        x: View<'_, E>,
        parameters: Parameters<'_, E>,
        shape: NormShape,
    ) -> Result<(), Error> {
        shape.check(&[y.len(), x.len()], stats.len(), 2);
        let launch = self.forward.launch(shape.grid()).writes(&mut y).writes(&mut stats).reads(x);
        let launch = launch.reads(parameters.weight).reads(parameters.bias).float(EPSILON);
        // SAFETY: layer_norm_forward(y, stats, x, weight, bias, epsilon, rows, width); the lengths
        // were checked.
        unsafe { launch.int(shape.rows).int(shape.width).run() }
    }

    /// Writes `y` (N, C), recomputed from `x` and the `stats` of [`forward`](Self::forward).
    pub(crate) fn apply<E: CudaElement>(
        &self,
        mut y: ViewMut<'_, E>,
        stats: View<'_, f32>,
        x: View<'_, E>,
        parameters: Parameters<'_, E>,
        shape: NormShape,
    ) -> Result<(), Error> {
        shape.check(&[y.len(), x.len()], stats.len(), 2);
        let launch = self.apply.launch(shape.grid()).writes(&mut y).reads(stats).reads(x);
        let launch = launch.reads(parameters.weight).reads(parameters.bias);
        // SAFETY: layer_norm_apply(y, stats, x, weight, bias, rows, width); the lengths were
        // checked.
        unsafe { launch.int(shape.rows).int(shape.width).run() }
    }

    /// Adds to `dx` (N, C), or writes it, and writes the parts of both parameters' gradients.
    pub(crate) fn backward<E: CudaElement>(
        &self,
        operands: NormBackward<'_, E>,
        partials: &mut Partials,
        shape: NormShape,
    ) -> Result<(), Error> {
        operands.check(shape, 2);
        let NormBackward { mut dx, accumulate, dy, saved, weight } = operands;
        let NormSaved { input: x, stats } = saved;
        let parts = row_sums::cuda::parts(shape.rows);
        let (mut first, mut second) = partials.two(parts, shape.width);
        let launch = self.backward.launch(Grid::row(parts, 256)).writes(&mut dx);
        let launch = launch.writes(&mut first).writes(&mut second).reads(dy).reads(x);
        let launch = launch.reads(stats).reads(weight).int(shape.rows).int(shape.width);
        // SAFETY: layer_norm_backward(dx, weight partials, bias partials, dy, x, stats, weight,
        // rows, width, accumulate), one part a block; the lengths were checked.
        unsafe { launch.flag(accumulate).run() }
    }
}
