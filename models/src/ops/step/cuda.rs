//! Ops of an update on a CUDA device, in the order of the compute stream.
#![allow(unsafe_code)] // launches

use device::cuda::{Cuda, Error, Grid, Kernel};
use device::{Allocator, DeviceBuffer, View, ViewMut};
use half::bf16;

use super::{ALL_FINITE, AdamWViews, Decays, StepOps, UpdatedViews};
use crate::Weights;
use crate::layout::ALIGN;
use crate::ops::adamw::AdamW;
use crate::ops::kernels::{self, Format};
use crate::ops::update_norm::Factors;

/// Threads of a block of all kernels here.
const THREADS: u32 = 256;
/// Largest number of partial sums of a sum, and of blocks that compute them.
const PARTS_MAX: usize = 512;

/// Returns the number of partial sums over so many elements, four a thread where that suffices. It
/// does not depend on the device, and so neither does the order of a sum.
fn parts(elements: usize) -> usize {
    elements.div_ceil(4 * THREADS as usize).clamp(1, PARTS_MAX)
}

/// The compiled kernels of an update.
#[derive(Debug)]
pub(super) struct OnCuda {
    device: Cuda,
    adamw: Kernel,
    narrow: Kernel,
    sums_partials: Kernel,
    sums_partials_bf16: Kernel,
    add_partials: Kernel,
    add_gradients: Kernel,
    first_non_finite: Kernel,
    update_partials: Kernel,
    /// Partial sums of two sums.
    partials: DeviceBuffer<f64>,
    blocks_max: usize,
}

impl OnCuda {
    pub(super) fn new(device: &Cuda) -> Result<Self, Error> {
        let adamw = kernels::load(device, &kernels::ADAMW, Format::None)?;
        let norm = kernels::load(device, &kernels::GRADIENT_NORM, Format::F32)?;
        let norm_bf16 = kernels::load(device, &kernels::GRADIENT_NORM, Format::Bf16)?;
        let sum = kernels::load(device, &kernels::GRADIENT_SUM, Format::None)?;
        let update_norm = kernels::load(device, &kernels::UPDATE_NORM, Format::None)?;
        let allocator = Allocator::cuda(device);
        let partials = allocator.zeros(2 * PARTS_MAX);
        allocator.outcome()?;
        Ok(Self {
            adamw: adamw.kernel("adamw")?,
            narrow: adamw.kernel("narrow")?,
            sums_partials: norm.kernel("sums_partials")?,
            sums_partials_bf16: norm_bf16.kernel("sums_partials")?,
            add_partials: norm.kernel("add_partials")?,
            add_gradients: sum.kernel("add_gradients")?,
            first_non_finite: norm.kernel("first_non_finite")?,
            update_partials: update_norm.kernel("update_partials")?,
            partials,
            blocks_max: kernels::blocks_max(device),
            device: device.clone(),
        })
    }

    /// Adds the partial sums that were written last, so many of each, to two sums.
    fn add_partials(&self, mut sums: ViewMut<'_, f64>, parts: usize) -> Result<(), Error> {
        assert_eq!(sums.len(), 2, "a sum for each of the partial sums");
        let launch = self.add_partials.launch(Grid::row(2, THREADS));
        let launch = launch.updates(&mut sums).reads(self.partials.view()).int(parts);
        // SAFETY: add_partials(sums, partials, parts), a block for each sum.
        unsafe { launch.run() }
    }

    /// Blocks for four elements a thread.
    fn grid(&self, elements: usize) -> Grid {
        Grid::covering(elements.div_ceil(4), THREADS, self.blocks_max)
    }
}

impl StepOps for OnCuda {
    fn clear(&self, values: ViewMut<'_, f64>) -> Result<(), Error> {
        self.device.clear(values)
    }

    fn clear_search(&self, first: ViewMut<'_, u64>) -> Result<(), Error> {
        debug_assert_eq!(ALL_FINITE, u64::MAX, "all bits one");
        self.device.fill(first, 0xff)
    }

    fn clear_gradients(&self, gradients: ViewMut<'_, f32>) -> Result<(), Error> {
        self.device.clear(gradients)
    }

    fn add_gradients(&self, mut sums: ViewMut<'_, f32>, x: View<'_, f32>) -> Result<(), Error> {
        assert_eq!(sums.len(), x.len(), "a sum for each element");
        let elements = x.len();
        if elements == 0 {
            return Ok(());
        }
        let launch = self.add_gradients.launch(self.grid(elements)).updates(&mut sums).reads(x);
        // SAFETY: add_gradients(sums, x, elements), which strides over the elements.
        unsafe { launch.long(elements).run() }
    }

    fn copy(&self, to: ViewMut<'_, f32>, from: View<'_, f32>) -> Result<(), Error> {
        self.device.copy(to, from)
    }

    fn narrow(&self, mut working: ViewMut<'_, bf16>, weights: View<'_, f32>) -> Result<(), Error> {
        assert_eq!(working.len(), weights.len(), "working weights as long as weights");
        let elements = weights.len();
        if elements == 0 {
            return Ok(());
        }
        let launch = self.narrow.launch(self.grid(elements)).writes(&mut working).reads(weights);
        // SAFETY: narrow(working, weights, elements), which strides over the elements.
        unsafe { launch.long(elements).run() }
    }

    fn adamw(&self, views: AdamWViews<'_>, decays: Decays<'_>, adamw: &AdamW) -> Result<(), Error> {
        let AdamWViews { mut weights, working, gradients, mut exp_avg, mut exp_avg_sq } = views;
        let elements = weights.len();
        let others = [gradients.len(), exp_avg.len(), exp_avg_sq.len()];
        assert_eq!(others, [elements; 3], "gradients and moments as long as weights");
        let Decays { blocks, first } = decays;
        assert!(first + elements <= blocks.len() * ALIGN, "a block for each element");
        assert!(first.is_multiple_of(4), "four elements are of one block");
        if elements == 0 {
            return Ok(());
        }
        let launch = self.adamw.launch(self.grid(elements)).updates(&mut weights);
        let launch = match working {
            None => launch.null(),
            Some(mut working) => {
                assert_eq!(working.len(), elements, "working weights as long as weights");
                launch.writes(&mut working)
            }
        };
        let launch = launch.reads(gradients).updates(&mut exp_avg).updates(&mut exp_avg_sq);
        let launch = launch
            .reads_part(blocks, elements.div_ceil(ALIGN))
            .long(first)
            .long(elements)
            .float(adamw.gradient_scale)
            .float(adamw.beta1)
            .float(adamw.beta2)
            .float(1.0 - adamw.beta1)
            .float(1.0 - adamw.beta2)
            .float(adamw.epsilon)
            .float(adamw.learning_rate / adamw.correction1)
            .float(1.0 / adamw.correction2.sqrt())
            .float(1.0 - adamw.learning_rate * adamw.weight_decay);
        // SAFETY: adamw(weights, working, gradients, first moments, second moments, decay blocks,
        // first, elements, factors), which strides over the elements.
        unsafe { launch.run() }
    }

    fn add_sums(
        &mut self,
        sums: ViewMut<'_, f64>,
        x: Weights<'_>,
        first: usize,
    ) -> Result<(), Error> {
        let Self { sums_partials, sums_partials_bf16, partials, .. } = self;
        let parts = parts(x.len());
        let grid = Grid::row(parts, THREADS);
        let launch = match x {
            Weights::F32(x) => {
                let launch = sums_partials.launch(grid).writes(&mut partials.view_mut());
                launch.reads(x).long(first).long(x.len())
            }
            Weights::Bf16(x) => {
                let launch = sums_partials_bf16.launch(grid).writes(&mut partials.view_mut());
                launch.reads(x).long(first).long(x.len())
            }
        };
        // SAFETY: sums_partials(partials, x, first, elements), two partial sums a block.
        unsafe { launch.run() }?;
        self.add_partials(sums, parts)
    }

    fn add_update_squares(
        &mut self,
        sums: ViewMut<'_, f64>,
        views: UpdatedViews<'_>,
        adamw: &AdamW,
    ) -> Result<(), Error> {
        let UpdatedViews { weights, exp_avg, exp_avg_sq } = views;
        let elements = weights.len();
        let moments = [exp_avg.len(), exp_avg_sq.len()];
        assert_eq!(moments, [elements; 2], "moments as long as weights");
        let factors = Factors::new(adamw);
        let parts = parts(elements);
        let launch = self.update_partials.launch(Grid::row(parts, THREADS));
        let launch = launch
            .writes(&mut self.partials.view_mut())
            .reads(weights)
            .reads(exp_avg)
            .reads(exp_avg_sq)
            .long(elements)
            .float(factors.decay)
            .float(factors.rate)
            .float(factors.root_correction)
            .float(factors.epsilon);
        // SAFETY: update_partials(partials, weights, first moments, second moments, elements,
        // factors), two partial sums a block.
        unsafe { launch.run() }?;
        self.add_partials(sums, parts)
    }

    fn first_non_finite(&self, mut first: ViewMut<'_, u64>, x: View<'_, f32>) -> Result<(), Error> {
        let elements = x.len();
        let launch = self.first_non_finite.launch(self.grid(elements));
        // SAFETY: first_non_finite(first, x, elements), which strides over the elements.
        unsafe { launch.writes(&mut first).reads(x).long(elements).run() }
    }
}
