//! What training changes: weights and both Adam moments in flat buffers, and how far it has come.

use std::ops::Range;
use std::time::Instant;

use collectives::{Collective, Incoming, Timing};
use half::bf16;
use models::ops::{self, adamw};
use models::workload::Compute;
use models::{Layout, Weights};
use serde::{Deserialize, Serialize};

use crate::shard::{Piece, Shard};

/// The prefix of the weights' names in a checkpoint.
pub(crate) const WEIGHTS: &str = "model";

/// The state of one rank. What is *held* is laid out by [`Shard`]: everything, or under a sharded
/// optimizer the own part of every bucket. What is *flat* is laid out by [`Layout`], all of it.
#[derive(Debug)]
pub(crate) struct State<'world> {
    /// What the engine computes with, and what updates are added to.
    pub(crate) weights: Stored<'world>,
    /// First Adam moment, held.
    pub(crate) exp_avg: Vec<f32>,
    /// Second Adam moment, held.
    pub(crate) exp_avg_sq: Vec<f32>,
    /// How far training has come.
    pub(crate) progress: Progress,
}

/// Weights in the format that the engine computes in. Under a sharded optimizer buckets of them may
/// be going round between ranks; these are neither read nor written before they have come.
#[derive(Debug)]
pub(crate) enum Stored<'world> {
    /// Master weights, flat: the engine computes with them.
    F32(Incoming<'world, f32>),
    /// The engine computes with rounded weights.
    Bf16 {
        /// The master weights rounded, flat. Not in checkpoints.
        working: Incoming<'world, bf16>,
        /// Master weights, held.
        master: Vec<f32>,
    },
}

/// How a buffer is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Flat,
    Held,
}

impl Order {
    /// Where a piece lies.
    pub(crate) fn of(self, piece: &Piece) -> Range<usize> {
        match self {
            Self::Flat => piece.flat.clone(),
            Self::Held => piece.held.clone(),
        }
    }
}

/// How far training has come. Not all of it follows from the step: another world size may take
/// other global batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// Steps done.
    pub(crate) step: u64,
    /// Global index of the sequence that the next step begins with.
    pub(crate) next_sequence: u64,
    /// Tokens trained on.
    pub(crate) tokens: u64,
}

/// Zeros that are memory of their own already: pages that are first read and then written, as the
/// first update does, interrupt every core once more each.
fn written_zeros(len: usize) -> Vec<f32> {
    let mut zeros = vec![0.0; len];
    ops::clear(&mut zeros);
    zeros
}

impl<'world> State<'world> {
    /// All zeros. What goes round between ranks lies where the backend reaches it best.
    pub(crate) fn new(
        shard: &Shard,
        compute: Compute,
        collective: &'world dyn Collective,
        deadline: Instant,
    ) -> Result<Self, collectives::Error> {
        let weights = match compute {
            Compute::F32 => Stored::F32(zeros(shard, collective, deadline)?),
            Compute::Bf16 => Stored::Bf16 {
                working: zeros(shard, collective, deadline)?,
                master: vec![0.0; shard.held],
            },
        };
        Ok(Self {
            weights,
            exp_avg: written_zeros(shard.held),
            exp_avg_sq: written_zeros(shard.held),
            progress: Progress::default(),
        })
    }

    /// Takes over master weights, given flat.
    pub(crate) fn set_weights(&mut self, shard: &Shard, all: &[f32]) {
        match &mut self.weights {
            Stored::F32(weights) => weights.get_mut(0..shard.len).copy_from_slice(all),
            Stored::Bf16 { working, master } => {
                adamw::narrow(working.get_mut(0..shard.len), all);
                for Piece { flat, held, .. } in shard.pieces() {
                    master[held.clone()].copy_from_slice(&all[flat.clone()]);
                }
            }
        }
    }

    /// Bytes of one working weight that is not the master weight itself.
    pub(crate) fn working_bytes(&self) -> usize {
        match self.weights {
            Stored::F32(_) => 0,
            Stored::Bf16 { .. } => size_of::<bf16>(),
        }
    }

    /// All that the engine computes with; nothing of it may be going round.
    pub(crate) fn engine_weights(&self) -> Weights<'_> {
        self.weights.get(0..self.weights.len())
    }

    /// The buffers by the prefix of their tensors' names in a checkpoint; nothing of the weights
    /// may be going round.
    pub(crate) fn buffers(&self) -> [(&'static str, Order, &[f32]); 3] {
        let (order, weights) = match &self.weights {
            Stored::F32(weights) => (Order::Flat, weights.get(0..weights.len())),
            Stored::Bf16 { master, .. } => (Order::Held, &master[..]),
        };
        [
            (WEIGHTS, order, weights),
            ("optimizer.exp_avg", Order::Held, &self.exp_avg),
            ("optimizer.exp_avg_sq", Order::Held, &self.exp_avg_sq),
        ]
    }

    /// The same, to be filled.
    pub(crate) fn buffers_mut(&mut self) -> [(&'static str, Order, &mut [f32]); 3] {
        let (order, weights) = match &mut self.weights {
            Stored::F32(weights) => (Order::Flat, weights.get_mut(0..weights.len())),
            Stored::Bf16 { master, .. } => (Order::Held, &mut master[..]),
        };
        [
            (WEIGHTS, order, weights),
            ("optimizer.exp_avg", Order::Held, &mut self.exp_avg),
            ("optimizer.exp_avg_sq", Order::Held, &mut self.exp_avg_sq),
        ]
    }
}

impl Stored<'_> {
    /// Length of the flat weights in elements.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::F32(weights) => weights.len(),
            Self::Bf16 { working, .. } => working.len(),
        }
    }

    /// Whether any of a range of what the engine computes with is going round.
    pub(crate) fn is_under_way(&self, range: &Range<usize>) -> bool {
        match self {
            Self::F32(weights) => weights.is_under_way(range),
            Self::Bf16 { working, .. } => working.is_under_way(range),
        }
    }

    /// Waits for what is going round of it, and tells when each bucket did.
    pub(crate) fn wait(
        &mut self,
        range: &Range<usize>,
        deadline: Instant,
        tell: impl FnMut(Timing),
    ) -> Result<(), collectives::Error> {
        match self {
            Self::F32(weights) => weights.wait(range, deadline, tell),
            Self::Bf16 { working, .. } => working.wait(range, deadline, tell),
        }
    }

    /// A range of what the engine computes with.
    pub(crate) fn get(&self, range: Range<usize>) -> Weights<'_> {
        match self {
            Self::F32(weights) => Weights::F32(weights.get(range)),
            Self::Bf16 { working, .. } => Weights::Bf16(working.get(range)),
        }
    }
}

fn zeros<'world, E: collectives::Element>(
    shard: &Shard,
    collective: &'world dyn Collective,
    deadline: Instant,
) -> Result<Incoming<'world, E>, collectives::Error> {
    let buffer = if shard.is_sharded {
        collective.buffer(shard.len, deadline)?
    } else {
        vec![E::default(); shard.len].into()
    };
    Ok(Incoming::new(collective, buffer))
}

/// BLAKE3 of all master weights, given flat, in the order of their names: independent of padding
/// and world size.
pub(crate) fn weights_digest(layout: &Layout, weights: &[f32]) -> blake3::Hash {
    let mut tensors: Vec<_> = layout.tensors().iter().collect();
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    let mut hasher = blake3::Hasher::new();
    for tensor in tensors {
        hasher.update_rayon(bytemuck::cast_slice(&weights[tensor.range.clone()]));
    }
    hasher.finalize()
}
