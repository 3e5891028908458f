//! Gradients on their way: buckets are reduced while backward goes on.
//!
//! The flat gradient buffer is laid out in the order in which gradients become ready, so a bucket
//! that is complete is always the front of what remains: it is split off and lent to the network,
//! and the engine goes on with the rest. No gradient is copied.

use std::time::Instant;

use collectives::{BucketPlan, Operation, Pending, Scope};
use models::ops::norm::{first_non_finite, sum_of_squares};
use models::{Layout, Pass, StepSink};

use crate::communication::{Communication, Tally};
use crate::finite::tensor_at;
use crate::phase::{Phase, PhaseClock};

/// The sink of one step: hands segments to the engine and complete buckets to the network.
#[derive(Debug)]
pub(crate) struct Overlap<'scope, 'env, 'step> {
    pub(crate) scope: &'scope Scope<'scope, 'env>,
    pub(crate) layout: &'step Layout,
    pub(crate) plan: &'step BucketPlan,
    /// How buckets are reduced.
    pub(crate) reduction: Operation,
    /// Gradients from the first bucket that was not launched yet.
    pub(crate) remaining: &'scope mut [f32],
    pub(crate) launched: usize,
    pub(crate) pending: Vec<Pending<'scope>>,
    pub(crate) clock: &'step PhaseClock,
    /// False while micro-batches accumulate and nothing may be launched.
    pub(crate) last_micro_batch: bool,
    /// False keeps every bucket until backward is over.
    pub(crate) early: bool,
    /// Whether local gradients are looked at before they are reduced: to no use where no other
    /// rank's are added.
    pub(crate) inspects: bool,
    /// Tensor of the first of them that is not finite.
    pub(crate) non_finite: Option<usize>,
    pub(crate) error: Option<collectives::Error>,
}

impl Overlap<'_, '_, '_> {
    fn base(&self) -> usize {
        self.plan.buckets.get(self.launched).map_or(self.plan.len, |bucket| bucket.range.start)
    }

    /// Launches every bucket before `end`.
    fn launch_until(&mut self, end: usize) {
        while self.launched < end {
            let length = self.plan.buckets[self.launched].range.len();
            let (bucket, rest) = std::mem::take(&mut self.remaining).split_at_mut(length);
            self.remaining = rest;
            self.launched += 1;
            if self.error.is_none() {
                match self.scope.start(self.reduction, bucket) {
                    Ok(pending) => self.pending.push(pending),
                    Err(error) => self.error = Some(error),
                }
            }
        }
    }

    /// Remembers the first tensor of a complete bucket whose local gradient is not finite, while it
    /// is still known whose gradient it is.
    fn inspect(&mut self, bucket: usize) {
        let (base, range) = (self.base(), self.plan.buckets[bucket].range.clone());
        let gradients = &self.remaining[range.start - base..range.end - base];
        if self.non_finite.is_none() && !sum_of_squares(gradients).is_finite() {
            let first = first_non_finite(gradients);
            self.non_finite = first.and_then(|offset| tensor_at(self.layout, range.start + offset));
        }
    }

    /// Launches what was held back and waits for everything: the exposed communication.
    pub(crate) fn finish(
        &mut self,
        deadline: Instant,
    ) -> Result<Communication, collectives::Error> {
        let backward_end = Instant::now();
        self.clock.enter(Phase::CommExposed);
        self.launch_until(self.plan.buckets.len());
        let mut reductions = Tally::default();
        for pending in self.pending.drain(..) {
            reductions.add(pending.wait(deadline)?, backward_end);
        }
        self.error.take().map_or_else(|| Ok(reductions.take()), Err)
    }
}

impl StepSink for Overlap<'_, '_, '_> {
    fn gradient(&mut self, segment: usize) -> &mut [f32] {
        let base = self.base();
        let range = self.layout.segments()[segment].range.clone();
        assert!(range.start >= base, "segment {segment} was declared complete before");
        &mut self.remaining[range.start - base..range.end - base]
    }

    fn complete(&mut self, segment: usize) {
        if !self.last_micro_batch {
            return;
        }
        let Some(bucket) =
            self.plan.buckets.iter().position(|bucket| bucket.segments.end == segment + 1)
        else {
            return;
        };
        if self.inspects {
            self.inspect(bucket);
        }
        if self.early {
            self.launch_until(bucket + 1);
        }
    }

    fn enter(&mut self, pass: Pass) {
        self.clock.enter(match pass {
            Pass::Forward => Phase::Forward,
            Pass::Backward => Phase::Backward,
        });
    }
}

/// An empty list of handles that keeps the allocation of an old one.
pub(crate) fn recycle<'new>(mut pending: Vec<Pending<'_>>) -> Vec<Pending<'new>> {
    pending.clear();
    pending.into_iter().map(|_| unreachable!("the list is empty")).collect()
}
