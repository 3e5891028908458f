//! The state of training: weights and both Adam moments in flat buffers, and the progress.

use std::ops::Range;

use collectives::{Channel, Operation};
use device::{Allocator, DeviceBuffer};
use models::ops::{self, adamw};
use models::workload::Compute;
use models::{Layout, Weights, memory};
use serde::{Deserialize, Serialize};

use super::optimizer::Update;
use super::shard::{Piece, Shard};
use super::weights::{ArrivingWeights, ModelWeights, update_and_gather};
use crate::data::Batches;
use crate::ranks::Ranks;
use crate::timing::communication::{Communication, CommunicationTally};
use crate::timing::phase::PhaseClock;

/// Prefix of the names of weights in a checkpoint.
pub(crate) const WEIGHTS: &str = "model";

/// The state of one rank. *Held* buffers are laid out by [`Shard`]: all elements, or under a
/// sharded optimizer this rank's part of every bucket. *Flat* buffers are laid out by [`Layout`]:
/// all elements.
#[derive(Debug)]
pub(crate) struct State<'world> {
    ranks: Ranks<'world>,
    pub(crate) layout: Layout,
    pub(crate) shard: Shard,
    /// Master weights and working weights.
    pub(crate) weights: ModelWeights<'world>,
    /// First Adam moment, held.
    pub(crate) exp_avg: DeviceBuffer<f32>,
    /// Second Adam moment, held.
    pub(crate) exp_avg_sq: DeviceBuffer<f32>,
    /// Progress of training.
    pub(crate) progress: Progress,
    /// Communication of gathers since the last [`Self::take_communication`].
    gathers: CommunicationTally,
}

/// How a buffer is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Flat,
    Held,
}

impl Order {
    /// The range of a piece.
    pub(crate) fn of(self, piece: &Piece) -> Range<usize> {
        match self {
            Self::Flat => piece.flat.clone(),
            Self::Held => piece.held.clone(),
        }
    }
}

/// A buffer of the state that is in checkpoints.
#[derive(Debug)]
pub(crate) struct StateBuffer<Elements> {
    /// Prefix of the names of its tensors.
    pub(crate) prefix: &'static str,
    pub(crate) order: Order,
    pub(crate) elements: Elements,
}

/// The buffers of a state, to be filled, and how they are laid out.
#[derive(Debug)]
pub(crate) struct StateBuffersMut<'state> {
    pub(crate) shard: &'state Shard,
    pub(crate) layout: &'state Layout,
    pub(crate) buffers: [StateBuffer<&'state mut [f32]>; 3],
}

/// Progress of training. It does not all follow from the step, because the global batch may depend
/// on the world size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// Completed steps.
    pub(crate) step: u64,
    /// Global index of the first sequence of the next step.
    pub(crate) next_sequence: u64,
    /// Tokens trained on.
    pub(crate) tokens: u64,
}

impl Progress {
    /// Adds one step.
    pub(super) fn advance(&mut self, batches: &Batches) {
        self.step += 1;
        self.next_sequence += batches.global_sequences() as u64;
        self.tokens += batches.tokens_per_step();
    }
}

impl<'world> State<'world> {
    /// A state of zeros.
    pub(crate) fn new(
        layout: Layout,
        shard: Shard,
        compute: Compute,
        ranks: Ranks<'world>,
        allocator: &Allocator,
    ) -> Result<Self, collectives::Error> {
        // Written at once: a page that is first read and then written, as in the first update, has
        // two page faults, and the second interrupts all cores.
        let moment = |purpose| allocator.for_purpose(purpose).zeros(shard.held).filled(ops::clear);
        let [exp_avg, exp_avg_sq] = [memory::FIRST_MOMENT, memory::SECOND_MOMENT].map(moment);
        Ok(Self {
            weights: ModelWeights::new(&shard, compute, &ranks, allocator)?,
            exp_avg,
            exp_avg_sq,
            ranks,
            layout,
            shard,
            progress: Progress::default(),
            gathers: CommunicationTally::default(),
        })
    }

    /// The layout, and the weights for forward.
    pub(super) fn arriving<'step>(
        &'step mut self,
        clock: &'step PhaseClock,
    ) -> (&'step Layout, ArrivingWeights<'step, 'world>) {
        let Self { ranks, layout, weights, gathers, .. } = self;
        let timeout = ranks.timeout;
        (layout, ArrivingWeights { weights, gathers, clock, timeout })
    }

    /// Waits until no weights are in flight.
    pub(super) fn synchronize(&mut self, clock: &PhaseClock) -> Result<(), collectives::Error> {
        let all = 0..self.weights.len();
        self.arriving(clock).1.wait(&all)
    }

    /// Communication of gathers of weights since the last call.
    pub(crate) fn take_communication(&mut self) -> Communication {
        self.gathers.take()
    }

    /// Updates the elements that this rank holds, bucket by bucket, and starts gathering each
    /// bucket.
    pub(crate) fn update(
        &mut self,
        update: &Update<'_>,
        gradients: &[f32],
    ) -> Result<(), collectives::Error> {
        let Self { shard, weights, exp_avg, exp_avg_sq, .. } = self;
        let exp_avg = exp_avg.host_mut();
        let exp_avg_sq = exp_avg_sq.host_mut();
        match weights {
            ModelWeights::F32(weights) => update_and_gather(shard, weights, |bucket, weights| {
                for piece in &bucket.pieces {
                    adamw::step(
                        &mut weights[bucket.offsets(piece)],
                        &gradients[piece.flat.clone()],
                        &mut exp_avg[piece.held.clone()],
                        &mut exp_avg_sq[piece.held.clone()],
                        update.of(piece.tensor),
                    );
                }
            }),
            ModelWeights::Bf16 { working, master } => {
                let master = master.host_mut();
                update_and_gather(shard, working, |bucket, working| {
                    for piece in &bucket.pieces {
                        adamw::step_and_narrow(
                            &mut master[piece.held.clone()],
                            &mut working[bucket.offsets(piece)],
                            &gradients[piece.flat.clone()],
                            &mut exp_avg[piece.held.clone()],
                            &mut exp_avg_sq[piece.held.clone()],
                            update.of(piece.tensor),
                        );
                    }
                })
            }
        }
    }

    /// Replaces the master weights; `all` is flat.
    pub(crate) fn set_weights(&mut self, all: &[f32]) {
        match &mut self.weights {
            ModelWeights::F32(weights) => weights.get_mut(0..self.shard.len).copy_from_slice(all),
            ModelWeights::Bf16 { working, master } => {
                adamw::narrow(working.get_mut(0..self.shard.len), all);
                for Piece { flat, held, .. } in self.shard.pieces() {
                    master.host_mut()[held.clone()].copy_from_slice(&all[flat.clone()]);
                }
            }
        }
    }

    /// Gathers the weights that the engine computes with, from the master weights that each rank
    /// holds. A collective operation.
    pub(super) fn all_gather_weights(
        &mut self,
        clock: &PhaseClock,
    ) -> Result<(), collectives::Error> {
        self.synchronize(clock)?;
        let Self { shard, weights, .. } = self;
        match weights {
            ModelWeights::F32(weights) => update_and_gather(shard, weights, |_, _| ()),
            ModelWeights::Bf16 { working, master } => {
                update_and_gather(shard, working, |bucket, working| {
                    for piece in &bucket.pieces {
                        let master = &master.host()[piece.held.clone()];
                        adamw::narrow(&mut working[bucket.offsets(piece)], master);
                    }
                })
            }
        }?;
        self.synchronize(clock)?;
        self.gathers.take(); // not part of a step
        Ok(())
    }

    /// The layout and all master weights, flat; in `scratch` if no rank holds all. A collective
    /// operation, between steps.
    pub(super) fn all_weights<'a>(
        &'a mut self,
        clock: &PhaseClock,
        scratch: &'a mut [f32],
    ) -> Result<(&'a Layout, &'a [f32]), collectives::Error> {
        self.synchronize(clock)?;
        let Self { ranks, layout, shard, weights, .. } = &*self;
        match weights {
            ModelWeights::F32(weights) => Ok((layout, weights.get(0..shard.len))),
            ModelWeights::Bf16 { master, .. } if !shard.is_sharded => Ok((layout, master.host())),
            ModelWeights::Bf16 { master, .. } => {
                for bucket in &shard.buckets {
                    let elements = &mut scratch[bucket.range.clone()];
                    for piece in &bucket.pieces {
                        let held = &master.host()[piece.held.clone()];
                        elements[bucket.offsets(piece)].copy_from_slice(held);
                    }
                    let deadline = ranks.deadline();
                    let gather = Operation::AllGather;
                    ranks.collective.run(Channel::Data, gather, elements, deadline)?;
                }
                Ok((layout, scratch))
            }
        }
    }

    /// All weights that the engine computes with; none may be in flight.
    pub(crate) fn engine_weights(&self) -> Weights<'_> {
        self.weights.get(0..self.weights.len())
    }

    /// The buffers that checkpoints hold; no weights may be in flight.
    pub(crate) fn buffers(&self) -> [StateBuffer<&[f32]>; 3] {
        let (order, weights) = match &self.weights {
            ModelWeights::F32(weights) => (Order::Flat, weights.get(0..weights.len())),
            ModelWeights::Bf16 { master, .. } => (Order::Held, master.host()),
        };
        state_buffers(order, weights, self.exp_avg.host(), self.exp_avg_sq.host())
    }

    /// The same buffers, to be filled.
    pub(crate) fn buffers_mut(&mut self) -> StateBuffersMut<'_> {
        let (order, weights) = match &mut self.weights {
            ModelWeights::F32(weights) => (Order::Flat, weights.get_mut(0..self.shard.len)),
            ModelWeights::Bf16 { master, .. } => (Order::Held, master.host_mut()),
        };
        let exp_avg = self.exp_avg.host_mut();
        let exp_avg_sq = self.exp_avg_sq.host_mut();
        StateBuffersMut {
            shard: &self.shard,
            layout: &self.layout,
            buffers: state_buffers(order, weights, exp_avg, exp_avg_sq),
        }
    }
}

/// Adds the prefixes and orders of the buffers.
fn state_buffers<T>(order: Order, weights: T, exp_avg: T, exp_avg_sq: T) -> [StateBuffer<T>; 3] {
    let held = |prefix, elements| StateBuffer { prefix, order: Order::Held, elements };
    [
        StateBuffer { prefix: WEIGHTS, order, elements: weights },
        held("optimizer.exp_avg", exp_avg),
        held("optimizer.exp_avg_sq", exp_avg_sq),
    ]
}

/// BLAKE3 of all master weights in the order of their names, so that it does not depend on padding
/// and world size. `weights` is flat.
pub(crate) fn weights_digest(layout: &Layout, weights: &[f32]) -> blake3::Hash {
    let mut tensors: Vec<_> = layout.tensors().iter().collect();
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    let mut hasher = blake3::Hasher::new();
    for tensor in tensors {
        hasher.update_rayon(bytemuck::cast_slice(&weights[tensor.range.clone()]));
    }
    hasher.finalize()
}
