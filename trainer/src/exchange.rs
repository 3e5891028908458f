//! Weights on their way: each rank has new ones of its own parts, and gets those of the others.

use std::time::Instant;

use collectives::{Channel, Element, Incoming, Operation};
use models::Layout;
use models::meter::{Kind, Role};
use models::ops::{adamw, work};

use crate::failure::Outcome;
use crate::optimizer::own_squares;
use crate::phase::Phase;
use crate::shard::{Place, Shard};
use crate::state::Stored;
use crate::step::Trainer;

/// Does the work on one bucket of the flat weights after another, from the last to the first: the
/// order in which forward needs them. Where ranks hold different parts, each bucket goes round as
/// soon as its work is done, and nothing is waited for: that is for whoever reads it.
///
/// What is written here is read by nobody else. Forward asks for every segment, and every bucket
/// holds one, so this rank's last operation on the bucket is over; after that, by the promise of
/// [`Collective`](collectives::Collective), no peer reads this rank's part any more, although it
/// may lie in memory that the node shares. For the same reason no bucket is going round any more
/// when backward sends gradients: at most `OUTSTANDING_MAX` operations are under way, as many as
/// there are buckets.
pub(crate) fn spread<E: Element>(
    shard: &Shard,
    weights: &mut Incoming<'_, E>,
    mut work: impl FnMut(&Place, &mut [E]),
) -> Result<(), collectives::Error> {
    for place in shard.places.iter().rev() {
        work(place, weights.get_mut(place.bucket.clone()));
        if shard.is_sharded {
            weights.start(Operation::AllGather, place.bucket.clone())?;
        }
    }
    Ok(())
}

impl Trainer<'_> {
    /// One update of the weights. Under a sharded optimizer those of other ranks are on their way
    /// when it returns, unless nothing may overlap.
    pub(crate) fn update(&mut self, gradient_norm: f64, rate: f64) -> Outcome<()> {
        self.clock.enter(Phase::Optimizer);
        let Self { shard, state, gradients, .. } = self;
        // Apart from the optimizer while it measures: the update borrows the rest.
        let mut meter = std::mem::take(&mut self.optimizer.meter);
        let update = self.optimizer.update(state.progress.step, gradient_norm, rate);
        let (elements, working) = (shard.elements(), state.working_bytes());
        let work = || work::adamw(elements, working);
        let apply = || update.apply(shard, state, gradients);
        let applied = meter.time((Role::AdamW, Kind::Whole), work, apply);
        self.optimizer.meter = meter;
        applied?;
        self.model.weights_changed();
        if self.overlap { Ok(()) } else { self.settle() }
    }

    /// Sum of the squares of this rank's parts of the gradients.
    pub(crate) fn own_squares(&mut self) -> f64 {
        let Self { shard, gradients, optimizer, .. } = self;
        let work = || work::gradient_norm(shard.part_elements());
        let sum = || own_squares(shard, gradients);
        optimizer.meter.time((Role::GradientNorm, Kind::Whole), work, sum)
    }

    /// Takes over new master weights, which `fill` writes into a flat buffer of zeros.
    pub(crate) fn set_weights<T>(
        &mut self,
        fill: impl FnOnce(&Layout, &mut [f32]) -> Outcome<T>,
    ) -> Outcome<T> {
        self.settle()?;
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
        self.settle()?;
        let Self { shard, state, .. } = self;
        match &mut state.weights {
            Stored::F32(weights) => spread(shard, weights, |_, _| ()),
            Stored::Bf16 { working, master } => spread(shard, working, |place, bucket| {
                for piece in &place.pieces {
                    adamw::narrow(&mut bucket[piece.in_bucket(place)], &master[piece.held.clone()]);
                }
            }),
        }?;
        self.model.weights_changed();
        self.settle()?;
        self.gathers.take(); // no part of any step
        Ok(())
    }

    /// All master weights, flat. All ranks call this together, between steps.
    pub(crate) fn all_weights(&mut self) -> Outcome<(&Layout, &[f32])> {
        self.settle()?;
        let Self { collective, deadline, shard, state, gradients, layout, .. } = self;
        match &state.weights {
            Stored::F32(weights) => Ok((layout, weights.get(0..shard.len))),
            Stored::Bf16 { master, .. } if !shard.is_sharded => Ok((layout, master)),
            Stored::Bf16 { master, .. } => {
                for place in &shard.places {
                    let bucket = &mut gradients[place.bucket.clone()];
                    for piece in &place.pieces {
                        bucket[piece.in_bucket(place)].copy_from_slice(&master[piece.held.clone()]);
                    }
                    let until = Instant::now() + *deadline;
                    collective.run(Channel::Data, Operation::AllGather, bucket, until)?;
                }
                Ok((layout, gradients))
            }
        }
    }
}

#[cfg(test)]
mod door;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod watched;
