//! Ops of an update, behind one trait for all devices: the trainer's changes to gradients, weights
//! and moments, on any device.
//!
//! Results stay where the operands are: sums and indices are written to elements of the device,
//! and the trainer reads them once a step. On a device other than the host an op is only started
//! when it returns.

mod cpu;
mod cuda;

use std::fmt::Debug;

use device::cuda::Error;
use device::{Device, View, ViewMut};
use half::bf16;

use super::adamw::AdamW;
use crate::Weights;

/// Result of [`StepOps::first_non_finite`] where every element is finite.
pub const ALL_FINITE: u64 = u64::MAX;

/// The elements that AdamW updates, views of one length.
#[derive(Debug)]
pub struct AdamWViews<'a> {
    /// Master weights.
    pub weights: ViewMut<'a, f32>,
    /// Rounded weights, written in the same pass, where the engine computes in bf16.
    pub working: Option<ViewMut<'a, bf16>>,
    /// Gradients, read.
    pub gradients: View<'a, f32>,
    /// First moments.
    pub exp_avg: ViewMut<'a, f32>,
    /// Second moments.
    pub exp_avg_sq: ViewMut<'a, f32>,
}

/// The elements of one call that decay.
#[derive(Debug, Clone, Copy)]
pub struct Decays<'a> {
    /// For every [`ALIGN`](crate::layout::ALIGN) elements of the flat buffers 1 if they decay, else
    /// 0.
    pub blocks: View<'a, u8>,
    /// Position of the call's first element in the flat buffers.
    pub first: usize,
}

/// Elements that AdamW has updated, views of one length.
#[derive(Debug, Clone, Copy)]
pub struct UpdatedViews<'a> {
    /// Master weights.
    pub weights: View<'a, f32>,
    /// First moments.
    pub exp_avg: View<'a, f32>,
    /// Second moments.
    pub exp_avg_sq: View<'a, f32>,
}

/// The ops of an update on one device. Views are of that device.
///
/// Every method panics when lengths do not fit together, and fails where the device does.
#[allow(missing_docs, reason = "each says what it does; all fail alike")]
#[allow(clippy::missing_errors_doc, reason = "above")]
pub trait StepOps: Debug + Send {
    /// Sets all elements to zero.
    fn clear(&self, values: ViewMut<'_, f64>) -> Result<(), Error>;

    /// Sets all elements to [`ALL_FINITE`].
    fn clear_search(&self, first: ViewMut<'_, u64>) -> Result<(), Error>;

    /// Sets gradients to zero.
    fn clear_gradients(&self, gradients: ViewMut<'_, f32>) -> Result<(), Error>;

    /// Adds gradients to their sums.
    fn add_gradients(&self, sums: ViewMut<'_, f32>, x: View<'_, f32>) -> Result<(), Error>;

    /// Copies all elements.
    fn copy(&self, to: ViewMut<'_, f32>, from: View<'_, f32>) -> Result<(), Error>;

    /// Writes the weights rounded.
    fn narrow(&self, working: ViewMut<'_, bf16>, weights: View<'_, f32>) -> Result<(), Error>;

    /// One step of AdamW, as in [`super::adamw`], where weights decay only as `decays` says.
    fn adamw(&self, views: AdamWViews<'_>, decays: Decays<'_>, adamw: &AdamW) -> Result<(), Error>;

    /// Adds the sums of [`ElementSums`](super::gradient_norm::ElementSums) to two f64: the weighted
    /// sum, then that of the squares. The first element has position `first`. Gradients and moments
    /// are in the format of master weights.
    fn add_sums(
        &mut self,
        sums: ViewMut<'_, f64>,
        x: Weights<'_>,
        first: usize,
    ) -> Result<(), Error>;

    /// Adds the sums of [`UpdateSquares`](super::update_norm::UpdateSquares) to two f64, over
    /// elements that were updated with these parameters: of the weights, then of their update.
    fn add_update_squares(
        &mut self,
        sums: ViewMut<'_, f64>,
        views: UpdatedViews<'_>,
        adamw: &AdamW,
    ) -> Result<(), Error>;

    /// Lowers an index to that of the first element that is infinite or not a number, if there is
    /// one.
    fn first_non_finite(&self, first: ViewMut<'_, u64>, x: View<'_, f32>) -> Result<(), Error>;
}

/// The ops on a device.
///
/// # Errors
/// Fails if the kernels cannot be compiled or loaded.
pub fn on(device: &Device) -> Result<Box<dyn StepOps>, Error> {
    Ok(match device {
        Device::Host => Box::new(cpu::Host),
        Device::Cuda(device) => Box::new(cuda::OnCuda::new(device)?),
    })
}
