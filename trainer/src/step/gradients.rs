//! Gradients: backward writes them bucket by bucket, and buckets are reduced at the same time.
//!
//! Buckets lie in the order in which gradients become ready, and each has a window of one buffer.
//! If ranks hold all gradients, windows are the flat buffer itself: micro-batches add to it, and
//! the last one's complete buckets are reduced in place. If gradients are sharded, few windows are
//! used in turn: every micro-batch writes and reduces each bucket, and before its window is used
//! again this rank's part of the bucket is added to the sums that it holds.
//!
//! While a bucket is in flight the engine continues with others. No gradient is copied to be
//! reduced.

use std::ops::Range;
use std::time::Instant;
use std::{iter, mem};

use collectives::{BucketPlan, Incoming, Operation};
use device::{Allocator, Device, DeviceBuffer, View, ViewMut};
use models::ops::step::StepOps;
use models::{Error, Layout, Pass, StepSink, Sums, memory};

use super::scalars::{BackwardScalars, BucketSumsMut, Of, Scalars};
use super::shard::{BucketShard, Shard};
use super::waits::Waits;
use super::weights::exchange;
use super::windows::GradientWindows;
use crate::bit_flip::{Computation, FlippedValue};
use crate::failure::Outcome;
use crate::fault_injection::Injector;
use crate::ranks::Ranks;
use crate::timing::tallies::Moved;
use record::phase::Phase;

/// Gradients of one rank, and their reduction.
#[derive(Debug)]
pub(crate) struct Gradients<'world> {
    windows: Incoming<'world, f32>,
    buckets: Vec<Bucket>,
    /// Bucket of each segment.
    bucket_of_segment: Vec<usize>,
    /// Sums over micro-batches of this rank's parts, if gradients are sharded; held.
    sums: Option<DeviceBuffer<f32>>,
    reduction: Operation,
    /// True if reductions start during backward; else they start after it, or nothing is computed
    /// meanwhile.
    overlaps: bool,
    /// Time in which the host started reductions since the last [`Self::take_starting_ns`].
    starting_ns: u64,
}

/// Gradients of one bucket.
#[derive(Debug)]
struct Bucket {
    /// Elements of the windows.
    window: Range<usize>,
    /// Segment with which it is complete.
    last_segment: usize,
    /// Start of the bucket in the flat buffers.
    start: usize,
    /// Part of this rank in the window.
    part: Range<usize>,
    /// The same elements among those that this rank holds.
    held: Range<usize>,
    /// Padding between tensors in the window.
    padding: Vec<Range<usize>>,
    state: BucketState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BucketState {
    /// Nothing is in the window, or all is done.
    Idle,
    /// Backward writes it.
    Open,
    /// The reduction has started. The part is the first of a step, or adds to others.
    Reducing { sums: Sums },
}

impl<'world> Gradients<'world> {
    /// Allocates zeros in memory that the backend chooses.
    pub(super) fn new(
        layout: &Layout,
        plan: &BucketPlan,
        shard: &Shard,
        overlaps: bool,
        owners: &Ranks<'world>,
        allocator: &Allocator,
    ) -> Result<Self, collectives::Error> {
        let windows = GradientWindows::of(shard.sharded, layout, plan);
        let gradients = allocator.for_purpose(memory::GRADIENTS);
        let shared = allocator.for_purpose(memory::GRADIENT_WINDOWS);
        let memory = if windows.are_shared { &shared } else { &gradients };
        let buffer = owners.collective.buffer(memory, windows.len, owners.deadline())?;
        let sums = windows.are_shared.then(|| gradients.zeros(shard.held));
        let bucket_of = |segment| plan.buckets.iter().position(|b| b.segments.contains(&segment));
        let placed = plan.buckets.iter().zip(&shard.buckets).zip(windows.ranges);
        Ok(Self {
            windows: Incoming::new(owners.collective, buffer),
            buckets: placed.map(|((b, shard), w)| Bucket::new(layout, b, shard, w)).collect(),
            bucket_of_segment: (0..layout.segments().len()).filter_map(bucket_of).collect(),
            sums,
            reduction: shard.reduction(),
            overlaps,
            starting_ns: 0,
        })
    }

    /// Returns this rank's part of a bucket, reduced.
    fn part(&self, bucket: &BucketShard) -> View<'_, f32> {
        match &self.sums {
            Some(sums) => sums.view().slice(bucket.held.clone()),
            None => self.windows.get(bucket.part.clone()),
        }
    }

    /// Returns what this rank holds of a bucket, reduced.
    pub(super) fn own(&self, bucket: &BucketShard) -> View<'_, f32> {
        match &self.sums {
            Some(sums) => sums.view().slice(bucket.held.clone()),
            None => self.windows.get(bucket.own.clone()),
        }
    }

    /// Returns the window of a segment, for a backward outside of training that reduces nothing.
    pub(super) fn window(&mut self, layout: &Layout, segment: usize) -> ViewMut<'_, f32> {
        let range = self.range(layout, segment);
        self.windows.get_mut(range)
    }

    /// Returns all windows.
    #[cfg(test)]
    pub(super) fn windows_mut(&mut self) -> ViewMut<'_, f32> {
        self.windows.get_mut(0..self.windows.len())
    }

    /// Returns the range of a segment in the windows.
    fn range(&self, layout: &Layout, segment: usize) -> Range<usize> {
        let flat = &layout.segments()[segment].range;
        let bucket = &self.buckets[self.bucket_of_segment[segment]];
        let start = bucket.window.start + flat.start - bucket.start;
        start..start + flat.len()
    }

    /// Runs `backward`, which adds the losses of all micro-batches to its view. Reduces buckets as
    /// they become complete, and afterwards waits for those that are still in flight; where a
    /// device computes, the device waits. Only local gradients are reduced, not recomputed ones.
    pub(super) fn accumulate(
        &mut self,
        step: StepContext<'_, 'world>,
        scalars: &mut Scalars,
        of: Of,
        backward: impl FnOnce(&mut BucketReducer<'_, 'world>, ViewMut<'_, f64>) -> Outcome<()>,
    ) -> Outcome<()> {
        let BackwardScalars { loss, buckets } = scalars.of_backward(of);
        let reduces = of == Of::Local;
        let mut reducer = BucketReducer {
            gradients: self,
            step,
            has_started: false,
            sums: Sums::Write,
            is_last_micro_batch: false,
            element_sums: buckets,
            reduces,
        };
        backward(&mut reducer, loss)?;
        if reduces { reducer.finish() } else { Ok(()) }
    }

    /// Returns the nanoseconds in which the host started reductions since the last call.
    pub(super) fn take_starting_ns(&mut self) -> u64 {
        mem::take(&mut self.starting_ns)
    }

    /// Adds up this rank's parts of the reduced gradients. Padding is zero.
    ///
    /// The sum of the squares over all ranks, in their order, is the square of the global norm. It
    /// has the same bits whatever is sharded.
    pub(super) fn add_reduced(
        &self,
        shard: &Shard,
        ops: &mut dyn StepOps,
        scalars: &mut Scalars,
    ) -> Outcome<()> {
        for (index, bucket) in shard.buckets.iter().enumerate() {
            let sums = scalars.reduced_mut(index);
            ops.add_sums(sums, self.part(bucket).into(), bucket.part.start)?;
        }
        Ok(())
    }

    /// Searches this rank's parts of the reduced gradients for values that are not finite.
    pub(super) fn inspect_parts(
        &self,
        shard: &Shard,
        ops: &dyn StepOps,
        scalars: &mut Scalars,
    ) -> Outcome<()> {
        let mut non_finite = scalars.begin_search(ops)?;
        for (index, bucket) in shard.buckets.iter().enumerate() {
            let first = non_finite.reborrow().slice(index..index + 1);
            ops.first_non_finite(first, self.part(bucket))?;
        }
        Ok(())
    }
}

impl Bucket {
    fn new(
        layout: &Layout,
        bucket: &collectives::Bucket,
        shard: &BucketShard,
        window: Range<usize>,
    ) -> Self {
        let start = bucket.range.start;
        let in_window =
            |flat: Range<usize>| window.start + flat.start - start..window.start + flat.end - start;
        let segments = &layout.segments()[bucket.segments.clone()];
        let tensors =
            || segments.iter().flat_map(|segment| &layout.tensors()[segment.tensors.clone()]);
        let ends = iter::once(start).chain(tensors().map(|tensor| tensor.range.end));
        let starts = tensors().map(|tensor| tensor.range.start).chain([bucket.range.end]);
        let between = ends.zip(starts).filter(|(end, start)| end < start);
        let padding = between.map(|(end, start)| in_window(end..start)).collect();
        Self {
            last_segment: bucket.segments.end - 1,
            start,
            part: in_window(shard.part.clone()),
            held: shard.held.clone(),
            padding,
            state: BucketState::Idle,
            window,
        }
    }
}

/// Resources of a step.
#[derive(Debug)]
pub(super) struct StepContext<'step, 'world> {
    pub(super) layout: &'step Layout,
    pub(super) waits: Waits<'step, 'world>,
    pub(super) injector: &'step Injector,
    pub(super) device: &'step Device,
    pub(super) ops: &'step mut (dyn StepOps + 'static),
    /// Computation that bit flips may be for.
    pub(super) computation: Computation,
    /// True if gradients are added up, before a reduction.
    pub(super) adds_up: bool,
}

/// Sink of one step: lends windows to the engine and complete buckets to the collective.
#[derive(Debug)]
pub(crate) struct BucketReducer<'step, 'world> {
    gradients: &'step mut Gradients<'world>,
    step: StepContext<'step, 'world>,
    /// True if a reduction has started.
    has_started: bool,
    /// Effect of this micro-batch on the sums of the ones before.
    sums: Sums,
    is_last_micro_batch: bool,
    /// Sums over the gradients of each bucket.
    element_sums: BucketSumsMut<'step>,
    /// True if complete buckets are reduced.
    reduces: bool,
}

impl BucketReducer<'_, '_> {
    /// Begins a micro-batch. Returns what the engine does with the gradients in its windows.
    pub(super) fn begin_micro_batch(&mut self, is_first: bool, is_last: bool) -> Sums {
        self.sums = if is_first { Sums::Write } else { Sums::Add };
        self.is_last_micro_batch = is_last;
        // Windows that are used in turn have the gradients of other buckets.
        if self.gradients.sums.is_some() { Sums::Write } else { self.sums }
    }

    /// Prepares the window of a bucket for backward.
    fn open(&mut self, bucket: usize) -> Result<(), Error> {
        let window = self.gradients.buckets[bucket].window.clone();
        for other in 0..self.gradients.buckets.len() {
            let taken = &self.gradients.buckets[other].window;
            if taken.start < window.end && window.start < taken.end {
                self.complete_reduction(other)?;
            }
        }
        let Gradients { windows, buckets, sums: held, .. } = &mut *self.gradients;
        let bucket = &mut buckets[bucket];
        // Padding of windows that are used in turn has gradients of other buckets.
        for padding in bucket.padding.iter().filter(|_| held.is_some()) {
            self.step.ops.clear_gradients(windows.get_mut(padding.clone()))?;
        }
        bucket.state = BucketState::Open;
        Ok(())
    }

    /// Starts the reduction of a bucket.
    fn start(&mut self, bucket: usize) -> Result<(), Error> {
        let start = Instant::now();
        if !mem::replace(&mut self.has_started, true) {
            self.step.injector.communicates();
        }
        let Gradients { windows, buckets, reduction, starting_ns, .. } = &mut *self.gradients;
        windows.start(*reduction, buckets[bucket].window.clone()).map_err(exchange)?;
        buckets[bucket].state = BucketState::Reducing { sums: self.sums };
        *starting_ns += start.elapsed().as_nanos() as u64;
        Ok(())
    }

    /// Waits for the reduction of a bucket, if it has started. Takes this rank's part out of the
    /// window if that is used in turn.
    fn complete_reduction(&mut self, bucket: usize) -> Result<(), Error> {
        let Gradients { windows, buckets, sums: held, .. } = &mut *self.gradients;
        let count = buckets.len();
        let Bucket { window, part, held: range, state, .. } = &mut buckets[bucket];
        let BucketState::Reducing { sums } = *state else { return Ok(()) };
        let StepContext { waits, ops, .. } = &mut self.step;
        waits.clock.progress().waits_for(bucket + 1, count);
        waits.wait(Moved::Gradients, windows, window).map_err(exchange)?;
        waits.clock.progress().waits_for(0, count);
        *state = BucketState::Idle;
        if let Some(held) = held {
            let held = held.view_mut().slice(range.clone());
            let part = windows.get(part.clone());
            match sums {
                Sums::Write => ops.copy(held, part)?,
                Sums::Add => ops.add_gradients(held, part)?,
            }
        }
        Ok(())
    }

    /// Flips bits of a gradient, if that is injected for a complete bucket.
    fn flip(&mut self, value: FlippedValue, bucket: usize) -> Result<(), Error> {
        if !self.is_last_micro_batch {
            return Ok(());
        }
        let StepContext { layout, injector, device, computation, .. } = &self.step;
        let Bucket { window, start, .. } = &self.gradients.buckets[bucket];
        for flip in injector.flips(value, *computation) {
            let offset = flip.position(layout).checked_sub(*start);
            if let Some(offset) = offset.filter(|&offset| offset < window.len()) {
                let element = window.start + offset;
                flip.apply(device, self.gradients.windows.get_mut(element..element + 1))?;
            }
        }
        Ok(())
    }

    /// Adds up a complete bucket of local gradients. The reduction hides which rank a value that is
    /// not finite is from, and has to keep the sum over all ranks.
    fn add_up(&mut self, bucket: usize) -> Result<(), Error> {
        let Bucket { window, start, .. } = &self.gradients.buckets[bucket];
        let gradients = self.gradients.windows.get(window.clone());
        let sums = self.element_sums.of(bucket);
        Ok(self.step.ops.add_sums(sums, gradients.into(), *start)?)
    }

    /// Starts the remaining reductions and waits for all: the exposed communication. A device waits
    /// for them by itself, and the vote settles its reductions.
    fn finish(&mut self) -> Outcome<()> {
        self.step.waits.stop();
        let buckets = self.gradients.buckets.len();
        for bucket in 0..buckets {
            if self.gradients.buckets[bucket].state == BucketState::Open {
                self.start(bucket)?;
            }
        }
        for bucket in 0..buckets {
            self.complete_reduction(bucket)?;
        }
        Ok(())
    }
}

impl StepSink for BucketReducer<'_, '_> {
    fn gradient(&mut self, segment: usize) -> Result<ViewMut<'_, f32>, Error> {
        let bucket = self.gradients.bucket_of_segment[segment];
        if self.gradients.buckets[bucket].state != BucketState::Open {
            self.open(bucket)?;
        }
        Ok(self.gradients.window(self.step.layout, segment))
    }

    fn complete(&mut self, segment: usize) -> Result<(), Error> {
        let bucket = self.gradients.bucket_of_segment[segment];
        let is_shared = self.gradients.sums.is_some();
        let reduces = is_shared || self.is_last_micro_batch;
        if !reduces || self.gradients.buckets[bucket].last_segment != segment {
            return Ok(());
        }
        self.flip(FlippedValue::Gradient, bucket)?;
        if self.step.adds_up {
            self.add_up(bucket)?;
        }
        self.flip(FlippedValue::Reduction, bucket)?;
        if !self.reduces {
            self.gradients.buckets[bucket].state = BucketState::Idle;
            return Ok(());
        }
        if self.gradients.overlaps {
            return self.start(bucket);
        }
        if is_shared {
            let phase = self.step.waits.stop();
            self.start(bucket)?;
            self.complete_reduction(bucket)?;
            self.step.waits.clock.enter(phase);
        }
        Ok(())
    }

    fn enter(&mut self, pass: Pass) {
        if !self.reduces {
            return; // it is a check, and no part of training
        }
        self.step.waits.clock.enter(match pass {
            Pass::Forward => Phase::Forward,
            Pass::Backward => Phase::Backward,
        });
    }
}
