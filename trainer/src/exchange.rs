//! Weights on their way: each rank has new ones of its own parts, and gets those of the others.

use std::time::{Duration, Instant};

use collectives::{Collective, Element, Operation, Pending};
use models::Layout;
use models::meter::{Kind, Role};
use models::ops::{adamw, work};

use crate::failure::Outcome;
use crate::optimizer::own_squares;
use crate::overlap::{Communication, recycle};
use crate::phase::{Phase, PhaseClock};
use crate::shard::{Place, Shard};
use crate::state::Stored;
use crate::step::Trainer;

/// What it takes to talk to the other ranks.
#[derive(Debug)]
pub(crate) struct Exchange<'step> {
    pub(crate) collective: &'step dyn Collective,
    pub(crate) deadline: Duration,
    pub(crate) pending: &'step mut Vec<Pending<'static>>,
    pub(crate) clock: &'step mut PhaseClock,
}

impl Exchange<'_> {
    /// Does the work on one bucket of a flat buffer after another. Where ranks hold different
    /// parts, each bucket goes round as soon as its work is done, while that on the next goes on.
    pub(crate) fn spread<E: Element>(
        self,
        shard: &Shard,
        buffer: &mut [E],
        mut work: impl FnMut(&Place, &mut [E]),
    ) -> Result<Communication, collectives::Error> {
        let Self { collective, deadline, pending: kept, clock } = self;
        let pending = recycle(std::mem::take(kept));
        let (pending, outcome) = collectives::scope(collective, move |scope| {
            let mut pending = recycle(pending);
            let outcome = (|| {
                let mut remaining = buffer;
                for place in &shard.places {
                    let (bucket, rest) = remaining.split_at_mut(place.bucket.len());
                    remaining = rest;
                    work(place, bucket);
                    if shard.is_sharded {
                        pending.push(scope.start(Operation::AllGather, bucket)?);
                    }
                }
                let computed = Instant::now();
                if shard.is_sharded {
                    clock.enter(Phase::CommExposed);
                }
                Communication::wait(&mut pending, computed, computed + deadline)
            })();
            (recycle(pending), outcome)
        });
        *kept = pending;
        outcome
    }
}

impl Trainer<'_> {
    /// One update of the weights, the same on all ranks when it returns.
    pub(crate) fn update(&mut self, gradient_norm: f64, rate: f64) -> Outcome<Communication> {
        self.clock.enter(Phase::Optimizer);
        let Self { collective, deadline, pending, clock, shard, state, gradients, .. } = self;
        let exchange = Exchange { collective: *collective, deadline: *deadline, pending, clock };
        // Apart from the optimizer while it measures: the update borrows the rest.
        let mut meter = std::mem::take(&mut self.optimizer.meter);
        let update = self.optimizer.update(state.progress.step, gradient_norm, rate);
        let (elements, working) = (shard.elements(), state.working_bytes());
        let work = || work::adamw(elements, working);
        let apply = || update.apply(shard, state, gradients, exchange);
        let communication = meter.time((Role::AdamW, Kind::Whole), work, apply);
        self.optimizer.meter = meter;
        let communication = communication?;
        self.model.weights_changed();
        Ok(communication)
    }

    /// Sum of the squares of this rank's parts of the gradients.
    pub(crate) fn own_squares(&mut self) -> f64 {
        let Self { shard, gradients, optimizer, .. } = self;
        let work = || work::gradient_norm(shard.elements());
        let sum = || own_squares(shard, gradients);
        optimizer.meter.time((Role::GradientNorm, Kind::Whole), work, sum)
    }

    /// Takes over new master weights, which `fill` writes into a flat buffer of zeros.
    pub(crate) fn set_weights<T>(
        &mut self,
        fill: impl FnOnce(&Layout, &mut [f32]) -> Outcome<T>,
    ) -> Outcome<T> {
        // Between steps the gradients are nobody's.
        self.gradients.fill(0.0);
        let filled = fill(&self.layout, &mut self.gradients)?;
        self.state.set_weights(&self.shard, &self.gradients);
        self.model.weights_changed();
        Ok(filled)
    }

    /// Makes what the engine computes with from the master weights that this rank holds, and the
    /// others theirs. All ranks call this together.
    pub(crate) fn share_weights(&mut self) -> Outcome<()> {
        let Self { collective, deadline, pending, clock, shard, state, .. } = self;
        let exchange = Exchange { collective: *collective, deadline: *deadline, pending, clock };
        match &mut state.weights {
            Stored::F32(weights) => exchange.spread(shard, weights, |_, _| ()),
            Stored::Bf16 { working, master } => exchange.spread(shard, working, |place, bucket| {
                for piece in &place.pieces {
                    adamw::narrow(&mut bucket[piece.in_bucket(place)], &master[piece.held.clone()]);
                }
            }),
        }?;
        self.model.weights_changed();
        Ok(())
    }

    /// All master weights, flat. All ranks call this together, between steps.
    pub(crate) fn all_weights(&mut self) -> Outcome<(&Layout, &[f32])> {
        let Self { collective, deadline, pending, clock, shard, state, gradients, .. } = self;
        let exchange = Exchange { collective: *collective, deadline: *deadline, pending, clock };
        match &state.weights {
            Stored::F32(weights) => Ok((&self.layout, weights)),
            Stored::Bf16 { master, .. } if !shard.is_sharded => Ok((&self.layout, master)),
            Stored::Bf16 { master, .. } => {
                let copy = |place: &Place, bucket: &mut [f32]| {
                    for piece in &place.pieces {
                        bucket[piece.in_bucket(place)].copy_from_slice(&master[piece.held.clone()]);
                    }
                };
                exchange.spread(shard, gradients, copy)?;
                Ok((&self.layout, gradients))
            }
        }
    }
}

#[cfg(test)]
mod tests;
