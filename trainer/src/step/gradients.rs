//! Gradients: backward accumulates into one flat buffer, which is reduced bucket by bucket at the
//! same time.
//!
//! The buffer is laid out in the order in which gradients become ready, so a complete bucket is
//! always at the front of the remaining buffer: [`BucketReducer`] splits it off and lends it to the
//! collective ([`BucketReducer::start_until`]), while the engine continues with the rest. No
//! gradient is copied.

use std::mem;
use std::time::Instant;

use collectives::{BucketPlan, Operation, Pending, Scope};
use device::{Allocator, DeviceBuffer, ViewMut};
use models::ops::gradient_norm::{first_non_finite, sum_of_squares};
use models::{Layout, Pass, StepSink, memory};

use super::shard::Shard;
use crate::failure::Outcome;
use crate::ranks::Ranks;
use crate::timing::communication::{Communication, CommunicationTally};
use crate::timing::phase::{Phase, PhaseClock};

/// The flat gradients of one rank, and how they are reduced.
#[derive(Debug)]
pub(crate) struct Gradients {
    flat: DeviceBuffer<f32>,
    plan: BucketPlan,
    reduction: Operation,
    /// Whether reductions start during backward; else they start after it.
    overlaps: bool,
    /// The empty list of a step's handles, kept for its allocation.
    pending: Vec<Pending<'static>>,
}

/// Result of this rank's part of a global batch.
#[derive(Debug)]
pub(crate) struct Accumulated {
    /// Sum of the local cross-entropy in nats.
    pub(crate) loss_sum: f64,
    /// First tensor whose local gradient has a non-finite value; not searched for on a single rank.
    pub(crate) non_finite: Option<usize>,
    /// Communication of the reductions.
    pub(crate) communication: Communication,
}

impl Gradients {
    /// Zeros, in memory that the backend chooses.
    pub(super) fn new(
        plan: BucketPlan,
        reduction: Operation,
        overlaps: bool,
        ranks: &Ranks<'_>,
        allocator: &Allocator,
    ) -> Result<Self, collectives::Error> {
        let allocator = allocator.for_purpose(memory::GRADIENTS);
        let flat = ranks.collective.buffer(&allocator, plan.len, ranks.deadline())?;
        Ok(Self { flat, plan, reduction, overlaps, pending: Vec::new() })
    }

    /// All gradients; under a sharded optimizer only this rank's parts are reduced.
    pub(super) fn flat(&self) -> &[f32] {
        self.flat.host()
    }

    /// The same buffer, which may be used as scratch memory between steps.
    pub(super) fn flat_mut(&mut self) -> &mut [f32] {
        self.flat.host_mut()
    }

    /// Runs `backward`, which returns the sum of the losses of all micro-batches, reduces buckets
    /// as they become complete, and waits for those that are still in flight after it.
    pub(super) fn accumulate(
        &mut self,
        ranks: &Ranks<'_>,
        layout: &Layout,
        clock: &PhaseClock,
        backward: impl FnOnce(&mut BucketReducer<'_, '_, '_>) -> Outcome<f64>,
    ) -> Outcome<Accumulated> {
        let Self { flat, plan, reduction, overlaps, pending } = self;
        let recycled = recycle(mem::take(pending));
        let (recycled, outcome) = collectives::scope(ranks.collective, move |scope| {
            let mut reducer = BucketReducer {
                scope,
                layout,
                plan,
                clock,
                reduction: *reduction,
                overlaps: *overlaps,
                // On a single rank the reduced gradients are the local ones.
                inspects: !ranks.is_alone(),
                remaining: flat.host_mut(),
                started: 0,
                pending: recycle(recycled),
                is_last_micro_batch: false,
                non_finite: None,
                error: None,
            };
            let outcome = backward(&mut reducer).and_then(|loss_sum| {
                let communication = reducer.finish(ranks.deadline())?;
                let non_finite = reducer.non_finite;
                Ok(Accumulated { loss_sum, non_finite, communication })
            });
            (recycle(reducer.pending), outcome)
        });
        *pending = recycled;
        outcome
    }

    /// The first tensor with a non-finite value in this rank's parts of the reduced gradients.
    pub(super) fn first_non_finite(&self, shard: &Shard, layout: &Layout) -> Option<usize> {
        let gradients = self.flat.host();
        shard.buckets.iter().find_map(|bucket| {
            let part = bucket.part.clone();
            first_non_finite_tensor(layout, &gradients[part.clone()], part.start)
        })
    }
}

/// Sum of the squares of a rank's parts of flat gradients. Padding is zero.
///
/// The sum over all ranks, in their order, is the square of the global norm. It has the same bits
/// whether or not the optimizer is sharded.
pub(crate) fn squares_of_parts(shard: &Shard, gradients: &[f32]) -> f64 {
    shard.buckets.iter().map(|bucket| sum_of_squares(&gradients[bucket.part.clone()])).sum()
}

/// The sink of one step: lends segments to the engine and complete buckets to the collective.
#[derive(Debug)]
pub(crate) struct BucketReducer<'scope, 'env, 'step> {
    scope: &'scope Scope<'scope, 'env>,
    layout: &'step Layout,
    plan: &'step BucketPlan,
    clock: &'step PhaseClock,
    reduction: Operation,
    overlaps: bool,
    /// Whether to search local gradients for non-finite values before they are reduced.
    inspects: bool,
    /// Gradients of all buckets whose reduction has not started.
    remaining: &'scope mut [f32],
    /// Number of buckets whose reduction has started.
    started: usize,
    pending: Vec<Pending<'scope>>,
    /// Only in the last micro-batch do gradients become complete.
    is_last_micro_batch: bool,
    /// First tensor whose local gradient is not finite.
    non_finite: Option<usize>,
    error: Option<collectives::Error>,
}

impl BucketReducer<'_, '_, '_> {
    /// Begins a micro-batch.
    pub(super) fn begin_micro_batch(&mut self, is_last: bool) {
        self.is_last_micro_batch = is_last;
    }

    /// Offset of `remaining` in the flat buffer.
    fn base(&self) -> usize {
        self.plan.buckets.get(self.started).map_or(self.plan.len, |bucket| bucket.range.start)
    }

    /// Starts the reductions of all buckets before `end` that have not started.
    fn start_until(&mut self, end: usize) {
        while self.started < end {
            let length = self.plan.buckets[self.started].range.len();
            let (bucket, rest) = mem::take(&mut self.remaining).split_at_mut(length);
            self.remaining = rest;
            self.started += 1;
            if self.error.is_none() {
                match self.scope.start(self.reduction, bucket) {
                    Ok(pending) => self.pending.push(pending),
                    Err(error) => self.error = Some(error),
                }
            }
        }
    }

    /// Records the first tensor of a complete bucket whose local gradient has a non-finite value.
    /// After the reduction it would not be known which rank it is from.
    fn inspect(&mut self, bucket: usize) {
        let range = self.plan.buckets[bucket].range.clone();
        let base = self.base();
        let gradients = &self.remaining[range.start - base..range.end - base];
        if self.non_finite.is_none() && !sum_of_squares(gradients).is_finite() {
            self.non_finite = first_non_finite_tensor(self.layout, gradients, range.start);
        }
    }

    /// Starts the remaining reductions and waits for all: the exposed communication.
    fn finish(&mut self, deadline: Instant) -> Result<Communication, collectives::Error> {
        let backward_end = Instant::now();
        self.clock.enter(Phase::CommExposed);
        self.start_until(self.plan.buckets.len());
        let mut reductions = CommunicationTally::default();
        for pending in self.pending.drain(..) {
            reductions.add(pending.wait(deadline)?, backward_end);
        }
        self.error.take().map_or_else(|| Ok(reductions.take()), Err)
    }
}

impl StepSink for BucketReducer<'_, '_, '_> {
    fn gradient(&mut self, segment: usize) -> ViewMut<'_, f32> {
        let base = self.base();
        let range = self.layout.segments()[segment].range.clone();
        assert!(range.start >= base, "segment {segment} is already complete");
        (&mut self.remaining[range.start - base..range.end - base]).into()
    }

    fn complete(&mut self, segment: usize) {
        if !self.is_last_micro_batch {
            return;
        }
        let closes = |bucket: &collectives::Bucket| bucket.segments.end == segment + 1;
        let Some(bucket) = self.plan.buckets.iter().position(closes) else { return };
        if self.inspects {
            self.inspect(bucket);
        }
        if self.overlaps {
            self.start_until(bucket + 1);
        }
    }

    fn enter(&mut self, pass: Pass) {
        self.clock.enter(match pass {
            Pass::Forward => Phase::Forward,
            Pass::Backward => Phase::Backward,
        });
    }
}

/// The tensor of the first non-finite element in `gradients`, which begin at `start` in the flat
/// buffer.
fn first_non_finite_tensor(layout: &Layout, gradients: &[f32], start: usize) -> Option<usize> {
    let element = start + first_non_finite(gradients)?;
    layout.tensors().iter().position(|tensor| tensor.range.contains(&element))
}

/// An empty list of handles that reuses an allocation.
fn recycle<'new>(mut pending: Vec<Pending<'_>>) -> Vec<Pending<'new>> {
    pending.clear();
    pending.into_iter().map(|_| unreachable!("the list is empty")).collect()
}
