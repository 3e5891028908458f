//! A warp for each row forward; parts of the rows backward.
#![allow(unsafe_code)] // launches

use device::cuda::{Cuda, Error, Grid, Kernel};
use device::{View, ViewMut};

use crate::ops::kernels::{self, CudaElement};
use crate::ops::norm::{NormBackward, NormSaved, NormShape};
use crate::ops::row_sums::{self, cuda::Partials};

/// The compiled kernels.
#[derive(Debug)]
pub(crate) struct RmsNorm {
    forward: Kernel,
    apply: Kernel,
    backward: Kernel,
    /// Added to the mean square.
    epsilon: f64,
}

impl RmsNorm {
    pub(crate) fn new<E: CudaElement>(device: &Cuda, epsilon: f64) -> Result<Self, Error> {
        let module = kernels::load(device, &kernels::RMS_NORM, E::FORMAT)?;
        Ok(Self {
            forward: module.kernel("rms_norm_forward")?,
            apply: module.kernel("rms_norm_apply")?,
            backward: module.kernel("rms_norm_backward")?,
            epsilon,
        })
    }

    /// Writes `y` (N, C), and 1 / root mean square to `stats` (N).
    pub(crate) fn forward<E: CudaElement>(
        &self,
        mut y: ViewMut<'_, E>,
        mut stats: ViewMut<'_, f32>,
        x: View<'_, E>,
        weight: View<'_, E>,
        shape: NormShape,
    ) -> Result<(), Error> {
        shape.check(&[y.len(), x.len()], stats.len(), 1);
        let launch = self.forward.launch(shape.grid()).writes(&mut y).writes(&mut stats).reads(x);
        let launch = launch.reads(weight).float(self.epsilon);
        // SAFETY: rms_norm_forward(y, stats, x, weight, epsilon, rows, width); the lengths were
        // checked.
        unsafe { launch.int(shape.rows).int(shape.width).run() }
    }

    /// Writes `y` (N, C), recomputed from `x` and the `stats` of [`forward`](Self::forward).
    pub(crate) fn apply<E: CudaElement>(
        &self,
        mut y: ViewMut<'_, E>,
        stats: View<'_, f32>,
        x: View<'_, E>,
        weight: View<'_, E>,
        shape: NormShape,
    ) -> Result<(), Error> {
        shape.check(&[y.len(), x.len()], stats.len(), 1);
        let launch = self.apply.launch(shape.grid()).writes(&mut y).reads(stats).reads(x);
        // SAFETY: rms_norm_apply(y, stats, x, weight, rows, width); the lengths were checked.
        unsafe { launch.reads(weight).int(shape.rows).int(shape.width).run() }
    }

    /// Adds to `dx` (N, C), or writes it, and writes the parts of the weight's gradient.
    pub(crate) fn backward<E: CudaElement>(
        &self,
        operands: NormBackward<'_, E>,
        partials: &mut Partials,
        shape: NormShape,
    ) -> Result<(), Error> {
        operands.check(shape, 1);
        let NormBackward { mut dx, accumulate, dy, saved, weight } = operands;
        let NormSaved { input: x, stats } = saved;
        let parts = row_sums::cuda::parts(shape.rows);
        let (mut first, _) = partials.two(parts, shape.width);
        let launch = self.backward.launch(Grid::row(parts, 256)).writes(&mut dx);
        let launch = launch.writes(&mut first).reads(dy).reads(x).reads(stats).reads(weight);
        let launch = launch.int(shape.rows).int(shape.width);
        // SAFETY: rms_norm_backward(dx, weight partials, dy, x, stats, weight, rows, width,
        // accumulate), one part a block; the lengths were checked.
        unsafe { launch.flag(accumulate).run() }
    }
}
