//! A block for each row of logits, which becomes its gradient.
#![allow(unsafe_code)] // launches

use device::cuda::{Cuda, Error, Grid, Kernel};
use device::{View, ViewMut};

use crate::ops::kernels::{self, CudaElement};

/// The compiled kernels.
#[derive(Debug)]
pub(crate) struct CrossEntropy {
    cross_entropy: Kernel,
    loss_sum: Kernel,
}

/// Logits of some tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogitsShape {
    /// Rows.
    pub(crate) tokens: usize,
    /// V: columns that count.
    pub(crate) vocabulary: usize,
    /// Columns of a row, a multiple of 8.
    pub(crate) stride: usize,
}

impl LogitsShape {
    /// Elements of all rows, padding included.
    pub(crate) fn elements(self) -> usize {
        self.tokens * self.stride
    }
}

impl CrossEntropy {
    pub(crate) fn new<E: CudaElement>(device: &Cuda) -> Result<Self, Error> {
        let module = kernels::load(device, &kernels::CROSS_ENTROPY, E::FORMAT)?;
        Ok(Self {
            cross_entropy: module.kernel("cross_entropy")?,
            loss_sum: module.kernel("loss_sum")?,
        })
    }

    /// Writes the loss of each token, and with a scale replaces the logits by the gradient of the
    /// scaled sum of the losses.
    pub(crate) fn run<E: CudaElement>(
        &self,
        mut losses: ViewMut<'_, f32>,
        mut logits: ViewMut<'_, E>,
        targets: View<'_, u32>,
        shape: LogitsShape,
        gradient_scale: Option<f32>,
    ) -> Result<(), Error> {
        let LogitsShape { tokens, vocabulary, stride } = shape;
        assert_eq!(logits.len(), tokens * stride, "logits of {shape:?}");
        assert_eq!([losses.len(), targets.len()], [tokens; 2], "losses and targets of {shape:?}");
        // Large blocks, so that the rows in flight stay in the cache: each is read twice.
        let launch = self.cross_entropy.launch(Grid::row(tokens, 1024));
        let launch = launch.writes(&mut losses);
        let launch = match gradient_scale {
            Some(_) => launch.updates(&mut logits),
            None => launch.reads(logits.as_view()),
        };
        let launch = launch.reads(targets);
        let launch = launch.int(vocabulary).int(stride);
        let launch = launch.float(gradient_scale.unwrap_or(0.0).into());
        // SAFETY: cross_entropy(losses, logits, targets, vocabulary, stride, scale,
        // write_gradient), a row for each block; targets are below V, which the caller checked.
        unsafe { launch.flag(gradient_scale.is_some()).run() }
    }

    /// Adds the losses of tokens to `loss`.
    pub(crate) fn add_losses(
        &self,
        mut loss: ViewMut<'_, f64>,
        losses: View<'_, f32>,
    ) -> Result<(), Error> {
        let launch = self.loss_sum.launch(Grid::row(1, 256)).updates(&mut loss);
        // SAFETY: loss_sum(sum, losses, count), in one block.
        unsafe { launch.reads(losses).int(losses.len()).run() }
    }
}
