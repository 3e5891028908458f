//! The few numbers that a step computes on its device and the host reads once, at the vote.

use device::{Allocator, Device, DeviceBuffer, ViewMut};
use models::ops::step::{ALL_FINITE, StepOps};
use models::ops::update_norm::UpdateSquares;

use crate::failure::Outcome;

/// Where backward and the norm write what they find: one buffer, so that it is read at once.
#[derive(Debug)]
pub(crate) struct Scalars {
    /// The sum of the losses, the sum of the squares of the reduced gradients, those of the weights
    /// and of their last update, and of each bucket the first element that is not finite in this
    /// rank's own gradients, an integer.
    words: DeviceBuffer<f64>,
    /// What the host has read.
    host: Vec<f64>,
}

const LOSS: usize = 0;
const SQUARES: usize = 1;
/// Of the weights, and behind it of their last update.
const UPDATE: usize = 2;
/// Where the buckets start.
const NON_FINITE: usize = 4;

/// What backward writes, in two parts that are independent of each other.
pub(super) struct ScalarsMut<'a> {
    pub(super) loss: ViewMut<'a, f64>,
    pub(super) non_finite: ViewMut<'a, u64>,
}

impl Scalars {
    /// For so many buckets.
    pub(super) fn new(buckets: usize, allocator: &Allocator) -> Self {
        let len = NON_FINITE + buckets;
        Self { words: allocator.zeros(len), host: vec![0.0; len] }
    }

    /// Before backward: sums are zero, and nothing was found.
    pub(super) fn clear(&mut self, ops: &dyn StepOps) -> Outcome<()> {
        let (sums, non_finite) = self.words.view_mut().split_at(NON_FINITE);
        ops.clear(sums)?;
        Ok(ops.clear_search(non_finite.into_words())?)
    }

    /// What backward writes.
    pub(super) fn views_mut(&mut self) -> ScalarsMut<'_> {
        let (sums, non_finite) = self.words.view_mut().split_at(NON_FINITE);
        ScalarsMut { loss: sums.slice(LOSS..LOSS + 1), non_finite: non_finite.into_words() }
    }

    /// The sum of the squares, to be added to.
    pub(super) fn squares(&mut self) -> ViewMut<'_, f64> {
        self.words.view_mut().slice(SQUARES..SQUARES + 1)
    }

    /// The sums of the squares of the weights and of their last update, to be added to.
    pub(super) fn update_squares(&mut self) -> ViewMut<'_, f64> {
        self.words.view_mut().slice(UPDATE..UPDATE + 2)
    }

    /// Waits for the device and reads everything.
    pub(super) fn read(&mut self, device: &Device) -> Outcome<()> {
        Ok(device.read(self.words.view(), &mut self.host)?)
    }

    /// The sum of the losses that was read.
    pub(super) fn loss_sum(&self) -> f64 {
        self.host[LOSS]
    }

    /// The sum of the squares that was read.
    pub(super) fn sum_of_squares(&self) -> f64 {
        self.host[SQUARES]
    }

    /// The sums of the squares of the weights and of their last update that were read.
    pub(super) fn sums_of_update(&self) -> UpdateSquares {
        UpdateSquares { weights: self.host[UPDATE], update: self.host[UPDATE + 1] }
    }

    /// The first bucket whose own gradients are not all finite, and the element in it.
    pub(super) fn first_non_finite(&self) -> Option<(usize, usize)> {
        let found = |(bucket, word): (usize, &f64)| {
            let element = word.to_bits();
            (element != ALL_FINITE).then_some((bucket, element as usize))
        };
        self.host[NON_FINITE..].iter().enumerate().find_map(found)
    }
}
