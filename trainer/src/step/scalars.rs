//! Few numbers that a step computes on its device and the host reads once, at the vote.

use device::{Allocator, Device, DeviceBuffer, ViewMut};
use models::ops::gradient_norm::ElementSums;
use models::ops::step::{ALL_FINITE, StepOps};
use models::ops::update_norm::UpdateSquares;

use crate::failure::Outcome;

/// Results of a step, in one buffer, which is read at once.
#[derive(Debug)]
pub(crate) struct Scalars {
    words: DeviceBuffer<f64>,
    /// Words that the host has read.
    host: Vec<f64>,
    buckets: usize,
}

/// Gradients of a bucket that are added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    /// This rank's own, before they are reduced.
    Local,
    /// This rank's part of the reduced gradients.
    Reduced,
    /// Those of a check: of any rank, or of fixed tokens.
    Recomputed,
}

/// Buffers that replicas may have in common: weights, both moments and master weights.
pub(crate) const REPLICA_BUFFERS: usize = 4;

/// Sums over each of these buffers; zeros if it is not common. They are apart, as a sum with large
/// weights would not change with a small moment.
pub(crate) type ReplicaSums = [ElementSums; REPLICA_BUFFERS];

/// Position of the sum of the losses.
const LOSS: usize = 0;
/// Position of the loss of the micro-batches of a check.
const RECOMPUTED_LOSS: usize = 1;
/// Position of the squares of the weights; those of their last update follow.
const UPDATE: usize = 2;
/// Position of the sums over the buffers that replicas have in common.
const REPLICA: usize = 4;
/// Position of the buckets, each with sums over three gradients.
const BUCKETS: usize = REPLICA + REPLICA_BUFFERS * SUMS;
/// Words of the sums over elements.
const SUMS: usize = 2;
const WORDS_OF_BUCKET: usize = 3 * SUMS;

impl Scalars {
    /// Allocates the scalars for so many buckets.
    pub(super) fn new(buckets: usize, allocator: &Allocator) -> Self {
        let len = BUCKETS + buckets * (WORDS_OF_BUCKET + 1);
        Self { words: allocator.zeros(len), host: vec![0.0; len], buckets }
    }

    /// Position of the elements that are not finite, a word for each bucket.
    fn non_finite(&self) -> usize {
        BUCKETS + self.buckets * WORDS_OF_BUCKET
    }

    /// Position of sums over a bucket.
    fn position(bucket: usize, of: Of) -> usize {
        BUCKETS + bucket * WORDS_OF_BUCKET + of as usize * SUMS
    }

    /// Prepares for a step: sums are zero.
    pub(super) fn clear(&mut self, ops: &dyn StepOps) -> Outcome<()> {
        let sums = 0..self.non_finite();
        Ok(ops.clear(self.words.view_mut().slice(sums))?)
    }

    /// Returns the loss that goes with these gradients, and sums over all buckets, to be added to.
    pub(super) fn of_backward(&mut self, of: Of) -> BackwardScalars<'_> {
        let loss = if of == Of::Recomputed { RECOMPUTED_LOSS } else { LOSS };
        let (losses, rest) = self.words.view_mut().split_at(UPDATE);
        let start = BUCKETS - UPDATE;
        let words = rest.slice(start..start + self.buckets * WORDS_OF_BUCKET);
        let buckets = BucketSumsMut { words, of };
        BackwardScalars { loss: losses.slice(loss..loss + 1), buckets }
    }

    /// Returns the sums over this rank's part of a reduced bucket, to be added to.
    pub(super) fn reduced_mut(&mut self, bucket: usize) -> ViewMut<'_, f64> {
        self.sums_mut(Self::position(bucket, Of::Reduced))
    }

    /// Returns the sums over a buffer that replicas have in common, to be added to.
    pub(super) fn replica_mut(&mut self, buffer: usize) -> ViewMut<'_, f64> {
        self.sums_mut(REPLICA + buffer * SUMS)
    }

    /// Returns the sums of the squares of the weights and of their last update, to be added to.
    pub(super) fn update_squares(&mut self) -> ViewMut<'_, f64> {
        self.sums_mut(UPDATE)
    }

    fn sums_mut(&mut self, position: usize) -> ViewMut<'_, f64> {
        self.words.view_mut().slice(position..position + SUMS)
    }

    /// Prepares a search for elements that are not finite. Returns a word for each bucket.
    pub(super) fn begin_search(&mut self, ops: &dyn StepOps) -> Outcome<ViewMut<'_, u64>> {
        let start = self.non_finite();
        let mut words = self.words.view_mut().slice(start..start + self.buckets).into_words();
        ops.clear_search(words.reborrow())?;
        Ok(words)
    }

    /// Waits for the device and reads everything.
    pub(super) fn read(&mut self, device: &Device) -> Outcome<()> {
        Ok(device.read(self.words.view(), &mut self.host)?)
    }

    /// Returns the sum of the losses that was read.
    pub(super) fn loss_sum(&self) -> f64 {
        self.host[LOSS]
    }

    /// Returns the sums over a bucket that were read.
    pub(super) fn of_bucket(&self, bucket: usize, of: Of) -> ElementSums {
        self.sums(Self::position(bucket, of))
    }

    /// Returns the sums over all buckets that were read, added up in their order.
    pub(super) fn total(&self, of: Of) -> ElementSums {
        let mut total = ElementSums::default();
        (0..self.buckets).for_each(|bucket| total += self.of_bucket(bucket, of));
        total
    }

    /// Returns the sums over the buffers that replicas have in common that were read.
    pub(super) fn replica(&self) -> ReplicaSums {
        std::array::from_fn(|buffer| self.sums(REPLICA + buffer * SUMS))
    }

    /// Returns the sums of the squares of the weights and of their last update that were read.
    pub(super) fn sums_of_update(&self) -> UpdateSquares {
        UpdateSquares { weights: self.host[UPDATE], update: self.host[UPDATE + 1] }
    }

    fn sums(&self, position: usize) -> ElementSums {
        ElementSums { weighted: self.host[position], squares: self.host[position + 1] }
    }

    /// Returns the first bucket in which the search that was read found an element, and the
    /// element.
    pub(super) fn first_non_finite(&self) -> Option<NonFiniteElement> {
        let found = |(bucket, word): (usize, &f64)| {
            let element = word.to_bits();
            let element = (element != ALL_FINITE).then_some(element as usize)?;
            Some(NonFiniteElement { bucket, element })
        };
        self.host[self.non_finite()..].iter().enumerate().find_map(found)
    }
}

/// Element of this rank's part of a bucket.
#[derive(Debug, Clone, Copy)]
pub(super) struct NonFiniteElement {
    pub(super) bucket: usize,
    pub(super) element: usize,
}

/// Output of backward.
#[derive(Debug)]
pub(super) struct BackwardScalars<'a> {
    /// Sum of the losses.
    pub(super) loss: ViewMut<'a, f64>,
    /// Sums over gradients.
    pub(super) buckets: BucketSumsMut<'a>,
}

/// Sums over one kind of gradients, of each bucket.
#[derive(Debug)]
pub(super) struct BucketSumsMut<'a> {
    words: ViewMut<'a, f64>,
    of: Of,
}

impl BucketSumsMut<'_> {
    /// Returns the sums over a bucket, to be added to.
    pub(super) fn of(&mut self, bucket: usize) -> ViewMut<'_, f64> {
        let start = Scalars::position(bucket, self.of) - BUCKETS;
        self.words.reborrow().slice(start..start + SUMS)
    }
}
