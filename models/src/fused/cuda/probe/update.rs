//! The operations of an optimizer's step.

use device::cuda::Cuda;
use device::{Allocator, Device, DeviceBuffer, View};
use half::bf16;

use super::randomize;
use crate::Error;
use crate::ops::adamw::AdamW;
use crate::ops::step::{self, AdamWViews, StepOps, UpdatedViews};
use crate::workload::Compute;

/// Late in a run, with a rate at which nothing changes much.
const ADAMW: AdamW = AdamW {
    learning_rate: 1e-6,
    beta1: 0.9,
    beta2: 0.95,
    epsilon: 1e-8,
    weight_decay: 0.1,
    correction1: 1.0,
    correction2: 1.0,
    gradient_scale: 1.0,
};

/// Weights and moments.
#[derive(Debug)]
pub(super) struct Update {
    ops: Box<dyn StepOps>,
    weights: DeviceBuffer<f32>,
    working: Option<DeviceBuffer<bf16>>,
    exp_avg: DeviceBuffer<f32>,
    exp_avg_sq: DeviceBuffer<f32>,
    /// Two sums.
    squares: DeviceBuffer<f64>,
}

impl Update {
    pub(super) fn new(
        allocator: &Allocator,
        device: &Cuda,
        len: usize,
        compute: Compute,
    ) -> Result<Self, Error> {
        Ok(Self {
            ops: step::on(&Device::Cuda(device.clone()))?,
            weights: allocator.zeros(len),
            working: (compute == Compute::Bf16).then(|| allocator.zeros(len)),
            exp_avg: allocator.zeros(len),
            exp_avg_sq: allocator.zeros(len),
            squares: allocator.zeros(2),
        })
    }

    pub(super) fn randomize(&mut self, device: &Cuda) -> Result<(), Error> {
        randomize(device, self.weights.view_mut())
    }

    /// Elements that are updated.
    pub(super) fn len(&self) -> usize {
        self.weights.len()
    }

    /// Bytes of a working weight, beside the master weight.
    pub(super) fn working_bytes(&self) -> usize {
        if self.working.is_some() { size_of::<bf16>() } else { 0 }
    }

    pub(super) fn gradient_norm(&mut self, gradients: View<'_, f32>) -> Result<(), Error> {
        Ok(self.ops.add_squares(self.squares.view_mut().slice(0..1), gradients)?)
    }

    pub(super) fn adamw(&mut self, gradients: View<'_, f32>) -> Result<(), Error> {
        let Self { ops, weights, working, exp_avg, exp_avg_sq, .. } = self;
        let views = AdamWViews {
            weights: weights.view_mut(),
            working: working.as_mut().map(DeviceBuffer::view_mut),
            gradients,
            exp_avg: exp_avg.view_mut(),
            exp_avg_sq: exp_avg_sq.view_mut(),
        };
        Ok(ops.adamw(views, &ADAMW)?)
    }

    pub(super) fn update_norm(&mut self) -> Result<(), Error> {
        let views = UpdatedViews {
            weights: self.weights.view(),
            exp_avg: self.exp_avg.view(),
            exp_avg_sq: self.exp_avg_sq.view(),
        };
        Ok(self.ops.add_update_squares(self.squares.view_mut(), views, &ADAMW)?)
    }
}
