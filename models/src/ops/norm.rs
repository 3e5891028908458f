//! Operands of the backward of LayerNorm and RMSNorm, and both norms on CUDA: a warp for each row
//! forward, parts of the rows backward.
#![allow(unsafe_code)] // launches

use device::cuda::{Cuda, Error, Grid, Kernel, Launch};
use device::{View, ViewMut};

use super::kernels::{self, CudaElement};
use super::row_sums::cuda::{NormPartials, Partials};
use super::{Affine, Element, layer_norm};

/// The compiled kernels of one of the norms.
#[derive(Debug)]
pub(crate) struct NormKernels {
    forward: Kernel,
    backward: Kernel,
    /// Added to the variance or the mean square.
    epsilon: f64,
    stats_per_row: usize,
    has_bias: bool,
}

/// Shape of a norm's input.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NormShape {
    /// N.
    pub(crate) rows: usize,
    /// C.
    pub(crate) width: usize,
}

/// The operands of a norm's backward.
#[derive(Debug)]
pub(crate) struct NormBackward<'a, E: Element> {
    /// (N, C): the gradient of the input.
    pub(crate) dx: ViewMut<'a, E>,
    /// `dx` is added to; otherwise it is written.
    pub(crate) accumulate: bool,
    /// (N, C): the gradient of the output.
    pub(crate) dy: View<'a, E>,
    /// Input and statistics of forward.
    pub(crate) saved: NormSaved<'a, E>,
    /// (C).
    pub(crate) weight: View<'a, E>,
}

/// Values of a norm's forward that backward needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NormSaved<'a, E: Element> {
    /// (N, C).
    pub(crate) input: View<'a, E>,
    /// (N, 1 or 2).
    pub(crate) stats: View<'a, E::Wide>,
}

impl NormKernels {
    /// LayerNorm with bias. Saves mean and 1 / standard deviation.
    pub(crate) fn layer_norm<E: CudaElement>(device: &Cuda) -> Result<Self, Error> {
        let module = kernels::load(device, &kernels::LAYER_NORM, E::FORMAT)?;
        Ok(Self {
            forward: module.kernel("layer_norm_forward")?,
            backward: module.kernel("layer_norm_backward")?,
            epsilon: layer_norm::EPSILON,
            stats_per_row: 2,
            has_bias: true,
        })
    }

    /// RMSNorm without bias. Saves 1 / root mean square.
    pub(crate) fn rms_norm<E: CudaElement>(device: &Cuda, epsilon: f64) -> Result<Self, Error> {
        let module = kernels::load(device, &kernels::RMS_NORM, E::FORMAT)?;
        Ok(Self {
            forward: module.kernel("rms_norm_forward")?,
            backward: module.kernel("rms_norm_backward")?,
            epsilon,
            stats_per_row: 1,
            has_bias: false,
        })
    }

    /// Writes `y` (N, C) and the statistics of each row.
    pub(crate) fn forward<E: CudaElement>(
        &self,
        mut y: ViewMut<'_, E>,
        mut stats: ViewMut<'_, f32>,
        x: View<'_, E>,
        parameters: Affine<'_, E>,
        shape: NormShape,
    ) -> Result<(), Error> {
        shape.check(&[y.len(), x.len()], stats.len(), self.stats_per_row);
        let launch = self.forward.launch(shape.grid()).writes(&mut y).writes(&mut stats).reads(x);
        let launch = self.reads_parameters(launch, parameters, shape).float(self.epsilon);
        // SAFETY: *_norm_forward(y, stats, x, weight, bias if there is one, epsilon, rows, width);
        // the lengths were checked.
        unsafe { launch.int(shape.rows).int(shape.width).run() }
    }

    /// Adds to `dx` (N, C), or writes it, and writes the parts of the parameters' gradients; in
    /// LayerNorm also those of the sums over rows of what `dx` is then.
    pub(crate) fn backward<E: CudaElement>(
        &self,
        operands: NormBackward<'_, E>,
        partials: &mut Partials,
        shape: NormShape,
    ) -> Result<(), Error> {
        operands.check(shape, self.stats_per_row);
        let NormBackward { mut dx, accumulate, dy, saved, weight } = operands;
        let NormPartials { weight: mut weight_sums, mut bias, dx: mut dx_sums } =
            partials.of_norm(shape.rows, shape.width);
        let parts = weight_sums.len() / shape.width;
        let grid = Grid::row(parts, shape.backward_threads::<E>());
        let launch = self.backward.launch(grid);
        let launch = if accumulate { launch.updates(&mut dx) } else { launch.writes(&mut dx) };
        let launch = launch.writes(&mut weight_sums);
        let launch = match self.has_bias {
            true => launch.writes(&mut bias).writes(&mut dx_sums),
            false => launch,
        };
        let launch = launch.reads(dy).reads(saved.input).reads(saved.stats).reads(weight);
        // SAFETY: *_norm_backward(dx, weight partials, those of bias and dx if there is a bias, dy,
        // x, stats, weight, rows, width, accumulate), one part a block; the lengths were checked.
        unsafe { launch.int(shape.rows).int(shape.width).flag(accumulate).run() }
    }

    fn reads_parameters<'a, E: CudaElement>(
        &self,
        launch: Launch<'a>,
        parameters: Affine<'_, E>,
        shape: NormShape,
    ) -> Launch<'a> {
        let Affine { weight, bias } = parameters;
        assert_eq!(weight.len(), shape.width, "weight (C) of {shape:?}");
        let bias_width = self.has_bias.then_some(shape.width);
        assert_eq!(bias.map(|bias| bias.len()), bias_width, "bias of {shape:?}");
        let launch = launch.reads(weight);
        match bias {
            Some(bias) => launch.reads(bias),
            None => launch,
        }
    }
}

impl NormShape {
    /// A warp for each row, four in a block.
    fn grid(self) -> Grid {
        Grid::row(self.rows.div_ceil(4), 128)
    }

    /// Threads of a block of backward: one for each 16 bytes of a row, up to 512.
    fn backward_threads<E: CudaElement>(self) -> u32 {
        let packs = (self.width * size_of::<E>()).div_ceil(16);
        packs.next_multiple_of(32).min(512) as u32
    }

    /// Panics unless matrices are (N, C) and statistics (N, `stats_per_row`).
    fn check(self, matrices: &[usize], stats: usize, stats_per_row: usize) {
        let expected = self.rows * self.width;
        assert!(matrices.iter().all(|&len| len == expected), "{matrices:?} elements of {self:?}");
        assert_eq!(stats, self.rows * stats_per_row, "statistics of {self:?}");
    }
}

impl<E: CudaElement> NormBackward<'_, E> {
    /// Panics unless all lengths are those of a shape.
    fn check(&self, shape: NormShape, stats_per_row: usize) {
        let NormSaved { input, stats } = self.saved;
        shape.check(&[self.dx.len(), self.dy.len(), input.len()], stats.len(), stats_per_row);
        assert_eq!(self.weight.len(), shape.width, "weight (C) of {shape:?}");
    }
}
