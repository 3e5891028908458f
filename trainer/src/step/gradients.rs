//! Gradients: backward accumulates into one flat buffer, which is reduced bucket by bucket at the
//! same time.
//!
//! The buffer is laid out in the order in which gradients become ready, so a complete bucket is
//! always at the front of the remaining buffer: [`BucketReducer`] splits it off and lends it to the
//! collective ([`BucketReducer::start_until`]), while the engine continues with the rest. No
//! gradient is copied.

use std::mem;
use std::time::Instant;

use collectives::{BucketPlan, Operation, Pending, Scope, Settled};
use device::{Allocator, DeviceBuffer, View, ViewMut};
use models::ops::step::StepOps;
use models::{Layout, Pass, StepSink, memory};

use super::scalars::{Scalars, ScalarsMut};
use super::shard::Shard;
use crate::failure::{Failure, Outcome};
use crate::fault_injection::Injector;
use crate::ranks::Ranks;
use crate::timing::communication::{BucketSpan, Communication, CommunicationTally};
use crate::timing::phase::PhaseClock;
use record::phase::Phase;

/// Flat gradients of one rank, and their reduction.
#[derive(Debug)]
pub(crate) struct Gradients {
    flat: DeviceBuffer<f32>,
    plan: BucketPlan,
    reduction: Operation,
    /// True if reductions start during backward; else they start after it.
    overlaps: bool,
    /// Empty list of a step's handles, kept for its allocation.
    pending: Vec<Pending<'static>>,
    /// Reductions since the last [`Self::take_communication`].
    reductions: CommunicationTally,
    /// Time in which the host started reductions since the last [`Self::take_starting_ns`].
    starting_ns: u64,
}

impl Gradients {
    /// Allocates zeros in memory that the backend chooses.
    pub(super) fn new(
        plan: BucketPlan,
        reduction: Operation,
        overlaps: bool,
        ranks: &Ranks<'_>,
        allocator: &Allocator,
    ) -> Result<Self, collectives::Error> {
        let allocator = allocator.for_purpose(memory::GRADIENTS);
        let flat = ranks.collective.buffer(&allocator, plan.len, ranks.deadline())?;
        let reductions = CommunicationTally::new(reduction, ranks.collective);
        let pending = Vec::new();
        Ok(Self { flat, plan, reduction, overlaps, pending, reductions, starting_ns: 0 })
    }

    /// Returns all gradients; under a sharded optimizer only this rank's parts are reduced.
    pub(super) fn flat(&self) -> View<'_, f32> {
        self.flat.view()
    }

    /// Returns the flat gradients for use as scratch memory between steps.
    pub(super) fn flat_mut(&mut self) -> ViewMut<'_, f32> {
        self.flat.view_mut()
    }

    /// Runs `backward`, which adds the losses of all micro-batches to its view. Reduces buckets as
    /// they become complete, and afterwards waits for those that are still in flight; where a
    /// device computes, the device waits.
    pub(super) fn accumulate(
        &mut self,
        step: StepContext<'_, '_>,
        scalars: &mut Scalars,
        backward: impl FnOnce(&mut BucketReducer<'_, '_, '_>, ViewMut<'_, f64>) -> Outcome<()>,
    ) -> Outcome<()> {
        let Self { flat, plan, reduction, overlaps, pending, reductions, starting_ns } = self;
        let StepContext { owners, layout, clock, injector, ops } = step;
        let ScalarsMut { loss, non_finite } = scalars.views_mut();
        let recycled = recycle(mem::take(pending));
        let (recycled, outcome) = collectives::scope(owners.collective, move |scope| {
            let mut reducer = BucketReducer {
                scope,
                layout,
                plan,
                clock,
                injector,
                ops,
                reduction: *reduction,
                overlaps: *overlaps,
                // On a single rank the reduced gradients are the local gradients.
                inspects: !owners.is_alone(),
                remaining: flat.view_mut(),
                started: 0,
                pending: recycle(recycled),
                reductions,
                starting_ns,
                is_last_micro_batch: false,
                non_finite,
                error: None,
            };
            let outcome =
                backward(&mut reducer, loss).and_then(|()| reducer.finish(owners.deadline()));
            (recycle(reducer.pending), outcome)
        });
        *pending = recycled;
        outcome
    }

    /// Adds a reduction that the device has completed.
    pub(super) fn add_settled(&mut self, settled: Settled) {
        self.reductions.add(settled.timing, settled.wait_start);
    }

    /// Returns the reductions of gradients.
    pub(super) fn reductions(&self) -> &CommunicationTally {
        &self.reductions
    }

    /// Returns the communication of reductions since the last call.
    pub(super) fn take_communication(&mut self) -> Communication {
        self.reductions.take()
    }

    /// Keeps each reduction from now on, until the trace is taken.
    pub(super) fn start_trace(&mut self) {
        self.reductions.start_trace();
    }

    /// Returns the reductions that were kept.
    pub(super) fn take_trace(&mut self) -> Vec<BucketSpan> {
        self.reductions.take_trace()
    }

    /// Returns the nanoseconds in which the host started reductions since the last call.
    pub(super) fn take_starting_ns(&mut self) -> u64 {
        mem::take(&mut self.starting_ns)
    }

    /// Adds the squares of this rank's parts of the reduced gradients to a sum. Padding is zero.
    ///
    /// The sum over all ranks, in their order, is the square of the global norm. It has the same
    /// bits whether or not the optimizer is sharded.
    pub(super) fn add_squares(
        &self,
        shard: &Shard,
        ops: &mut dyn StepOps,
        mut sum: ViewMut<'_, f64>,
    ) -> Outcome<()> {
        for bucket in &shard.buckets {
            ops.add_squares(sum.reborrow(), self.flat().slice(bucket.part.clone()))?;
        }
        Ok(())
    }

    /// Searches this rank's parts of the reduced gradients for non-finite values, instead of its
    /// own gradients.
    pub(super) fn inspect_parts(
        &self,
        shard: &Shard,
        ops: &dyn StepOps,
        scalars: &mut Scalars,
    ) -> Outcome<()> {
        let mut non_finite = scalars.views_mut().non_finite;
        for (index, bucket) in shard.buckets.iter().enumerate() {
            let first = non_finite.reborrow().slice(index..index + 1);
            ops.first_non_finite(first, self.flat().slice(bucket.part.clone()))?;
        }
        Ok(())
    }
}

/// Resources of a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepContext<'step, 'world> {
    /// All ranks in the order in which they own parts.
    pub(super) owners: Ranks<'world>,
    pub(super) layout: &'step Layout,
    pub(super) clock: &'step PhaseClock,
    pub(super) injector: &'step Injector,
    pub(super) ops: &'step dyn StepOps,
}

/// Sink of one step: lends segments to the engine and complete buckets to the collective.
#[derive(Debug)]
pub(crate) struct BucketReducer<'scope, 'env, 'step> {
    scope: &'scope Scope<'scope, 'env>,
    layout: &'step Layout,
    plan: &'step BucketPlan,
    clock: &'step PhaseClock,
    injector: &'step Injector,
    ops: &'step dyn StepOps,
    reduction: Operation,
    overlaps: bool,
    /// Searches local gradients for non-finite values before they are reduced.
    inspects: bool,
    /// Gradients of all buckets whose reduction has not started.
    remaining: ViewMut<'scope, f32>,
    /// Number of buckets whose reduction has started.
    started: usize,
    pending: Vec<Pending<'scope>>,
    reductions: &'step mut CommunicationTally,
    starting_ns: &'step mut u64,
    /// True in the last micro-batch, the only one in which gradients become complete.
    is_last_micro_batch: bool,
    /// First element of each bucket whose local gradient is not finite.
    non_finite: ViewMut<'step, u64>,
    error: Option<Failure>,
}

impl BucketReducer<'_, '_, '_> {
    /// Begins a micro-batch.
    pub(super) fn begin_micro_batch(&mut self, is_last: bool) {
        self.is_last_micro_batch = is_last;
    }

    /// Returns the offset of `remaining` in the flat buffer.
    fn base(&self) -> usize {
        self.plan.buckets.get(self.started).map_or(self.plan.len, |bucket| bucket.range.start)
    }

    /// Starts the reductions of all buckets before `end` that have not started.
    fn start_until(&mut self, end: usize) {
        let start = Instant::now();
        while self.started < end {
            if self.started == 0 {
                self.injector.communicates();
            }
            let length = self.plan.buckets[self.started].range.len();
            let (bucket, rest) = mem::take(&mut self.remaining).split_at(length);
            self.remaining = rest;
            self.started += 1;
            if self.error.is_none() {
                match self.scope.start(self.reduction, bucket) {
                    Ok(pending) => self.pending.push(pending),
                    Err(error) => self.error = Some(error.into()),
                }
            }
        }
        *self.starting_ns += start.elapsed().as_nanos() as u64;
    }

    /// Records the first element of a complete bucket whose local gradient is not finite. The
    /// reduction hides which rank it is from.
    fn inspect(&mut self, bucket: usize) {
        let range = self.plan.buckets[bucket].range.clone();
        let base = self.base();
        let gradients = self.remaining.as_view().slice(range.start - base..range.end - base);
        let first = self.non_finite.reborrow().slice(bucket..bucket + 1);
        if let Err(error) = self.ops.first_non_finite(first, gradients) {
            self.error.get_or_insert(error.into());
        }
    }

    /// Starts the remaining reductions and waits for all: the exposed communication. A device waits
    /// for them by itself, and the vote settles its reductions.
    fn finish(&mut self, deadline: Instant) -> Outcome<()> {
        let backward_end = Instant::now();
        self.clock.enter(Phase::CommExposed);
        self.start_until(self.plan.buckets.len());
        // The cause comes first: the reductions started before it only fail because the backend is
        // dead.
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        let buckets = self.pending.len();
        let progress = self.clock.progress();
        for (index, pending) in self.pending.drain(..).enumerate() {
            progress.waits_for(index + 1, buckets);
            if let Some(timing) = pending.join(deadline)? {
                self.reductions.add(timing, backward_end);
            }
        }
        progress.waits_for(0, buckets);
        Ok(())
    }
}

impl StepSink for BucketReducer<'_, '_, '_> {
    fn gradient(&mut self, segment: usize) -> ViewMut<'_, f32> {
        let base = self.base();
        let range = self.layout.segments()[segment].range.clone();
        assert!(range.start >= base, "segment {segment} is already complete");
        self.remaining.reborrow().slice(range.start - base..range.end - base)
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

/// Returns an empty list of handles that reuses an allocation.
fn recycle<'new>(mut pending: Vec<Pending<'_>>) -> Vec<Pending<'new>> {
    pending.clear();
    pending.into_iter().map(|_| unreachable!("the list is empty")).collect()
}
