//! Few numbers that a step computes on its device and the host reads once, at the vote.

use device::{Allocator, Device, DeviceBuffer, ViewMut};
use models::ops::step::{ALL_FINITE, StepOps};
use models::ops::update_norm::UpdateSquares;

use crate::failure::Outcome;

/// Results of backward and the norm, in one buffer, which is read at once.
#[derive(Debug)]
pub(crate) struct Scalars {
    /// Sum of the losses, sum of the squares of the reduced gradients, those of the weights and of
    /// their last update, and for each bucket the first element that is not finite in this rank's
    /// own gradients, an integer.
    words: DeviceBuffer<f64>,
    /// Words that the host has read.
    host: Vec<f64>,
}

const LOSS: usize = 0;
const SQUARES: usize = 1;
/// Position of the squares of the weights; those of their last update follow.
const UPDATE: usize = 2;
/// Position of the buckets.
const NON_FINITE: usize = 4;

/// Output of backward, in two independent parts.
pub(super) struct ScalarsMut<'a> {
    pub(super) loss: ViewMut<'a, f64>,
    pub(super) non_finite: ViewMut<'a, u64>,
}

impl Scalars {
    /// Allocates the scalars for so many buckets.
    pub(super) fn new(buckets: usize, allocator: &Allocator) -> Self {
        let len = NON_FINITE + buckets;
        Self { words: allocator.zeros(len), host: vec![0.0; len] }
    }

    /// Prepares for backward: sums are zero, and nothing was found.
    pub(super) fn clear(&mut self, ops: &dyn StepOps) -> Outcome<()> {
        let (sums, non_finite) = self.words.view_mut().split_at(NON_FINITE);
        ops.clear(sums)?;
        Ok(ops.clear_search(non_finite.into_words())?)
    }

    /// Returns the parts that backward writes.
    pub(super) fn views_mut(&mut self) -> ScalarsMut<'_> {
        let (sums, non_finite) = self.words.view_mut().split_at(NON_FINITE);
        ScalarsMut { loss: sums.slice(LOSS..LOSS + 1), non_finite: non_finite.into_words() }
    }

    /// Returns the sum of the squares, to be added to.
    pub(super) fn squares(&mut self) -> ViewMut<'_, f64> {
        self.words.view_mut().slice(SQUARES..SQUARES + 1)
    }

    /// Returns the sums of the squares of the weights and of their last update, to be added to.
    pub(super) fn update_squares(&mut self) -> ViewMut<'_, f64> {
        self.words.view_mut().slice(UPDATE..UPDATE + 2)
    }

    /// Waits for the device and reads everything.
    pub(super) fn read(&mut self, device: &Device) -> Outcome<()> {
        Ok(device.read(self.words.view(), &mut self.host)?)
    }

    /// Returns the sum of the losses that was read.
    pub(super) fn loss_sum(&self) -> f64 {
        self.host[LOSS]
    }

    /// Returns the sum of the squares that was read.
    pub(super) fn sum_of_squares(&self) -> f64 {
        self.host[SQUARES]
    }

    /// Returns the sums of the squares of the weights and of their last update that were read.
    pub(super) fn sums_of_update(&self) -> UpdateSquares {
        UpdateSquares { weights: self.host[UPDATE], update: self.host[UPDATE + 1] }
    }

    /// Returns the first bucket whose own gradients are not all finite, and the element in it.
    pub(super) fn first_non_finite(&self) -> Option<(usize, usize)> {
        let found = |(bucket, word): (usize, &f64)| {
            let element = word.to_bits();
            (element != ALL_FINITE).then_some((bucket, element as usize))
        };
        self.host[NON_FINITE..].iter().enumerate().find_map(found)
    }
}
