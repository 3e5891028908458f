//! Forward and backward over micro-batches, in training and in checks.

use std::time::Instant;

use models::Batch;

use super::Trainer;
use super::gradients::StepContext;
use super::scalars::Of;
use super::sharded_weights::Reads;
use super::waits::Waits;
use crate::bit_flip::{Computation, FlippedValue};
use crate::data::Batches;
use crate::data::prefetch::{Buffers, MicroBatch};
use crate::failure::Outcome;
use crate::fault_injection::Injector;
use record::phase::Phase;

/// Micro-batches whose gradients are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MicroBatches {
    /// Those of this rank in a step.
    Own,
    /// Same, once more.
    OwnAgain,
    /// Those of any rank in a step, whose gradients nobody reduces.
    OfRank(usize),
    /// One of tokens that are the same on all ranks, whose gradients nobody reduces.
    Fixed(Reads),
}

impl MicroBatches {
    /// Returns whether their gradients are those of training.
    fn is_training(self) -> bool {
        matches!(self, Self::Own | Self::OwnAgain)
    }

    fn count(self, batches: &Batches) -> usize {
        match self {
            Self::Fixed(_) => 1,
            Self::Own | Self::OwnAgain | Self::OfRank(_) => batches.accumulation(),
        }
    }

    fn computation(self) -> Computation {
        match self {
            Self::Own => Computation::First,
            Self::OwnAgain => Computation::Repeat,
            Self::OfRank(_) | Self::Fixed(_) => Computation::OfOther,
        }
    }

    fn reads(self, is_last: bool) -> Reads {
        match self {
            Self::Own | Self::OwnAgain => Reads::MicroBatch { follows: !is_last },
            // Training follows.
            Self::OfRank(_) => Reads::MicroBatch { follows: true },
            Self::Fixed(reads) => reads,
        }
    }
}

/// Provides the tokens of micro-batches.
struct Reader<'step> {
    which: MicroBatches,
    rank: usize,
    /// First sequence of the step.
    cursor: u64,
    vocabulary: usize,
    batches: &'step mut Batches,
    /// Memory of what the prefetcher does not provide.
    buffers: &'step mut Buffers,
    injector: &'step Injector,
}

impl Reader<'_> {
    fn read(&mut self, micro_batch: usize) -> Outcome<MicroBatch<'_>> {
        let Self { which, rank, cursor, batches, buffers, .. } = self;
        let mut flips = self.injector.flips(FlippedValue::Input, which.computation());
        let flip = if which.is_training() { flips.next() } else { None };
        match *which {
            MicroBatches::Own if flip.is_none() => return Ok(batches.next()?),
            MicroBatches::Own => {
                batches.next()?;
                batches.read(*rank, *cursor, micro_batch, buffers);
            }
            MicroBatches::OwnAgain => batches.read(*rank, *cursor, micro_batch, buffers),
            MicroBatches::OfRank(other) => batches.read(other, *cursor, micro_batch, buffers),
            MicroBatches::Fixed(_) => buffers.fill_at_random(self.vocabulary),
        }
        flip.into_iter().for_each(|flip| flip.apply_to_token(buffers.inputs_mut()));
        Ok(buffers.micro_batch())
    }
}

impl Trainer<'_> {
    /// Runs forward and backward over micro-batches, and at the same time adds up their gradients
    /// if `adds_up`. Those of training are then reduced: the result is the mean over the global
    /// batch; under a sharded optimizer only this rank's parts.
    pub(super) fn accumulate_gradients(
        &mut self,
        which: MicroBatches,
        adds_up: bool,
    ) -> Outcome<()> {
        let Self { ranks, device, ops, model, state, gradients, scalars, batches, .. } = self;
        let Self { dimensions, clock, tallies, injector, verifier, .. } = self;
        let waits = Waits { tallies, clock, dimensions: *dimensions };
        let scale = 1.0 / batches.tokens_per_step() as f32;
        let count = which.count(batches);
        verifier.count(which, count);
        let injector = &*injector;
        let mut reader = Reader {
            which,
            rank: ranks.rank(),
            cursor: state.progress.next_sequence,
            vocabulary: verifier.vocabulary,
            batches,
            buffers: &mut verifier.again,
            injector,
        };
        let is_training = which.is_training();
        let of = if is_training { Of::Local } else { Of::Recomputed };
        let (layout, mut weights) = state.arriving(waits);
        let computation = which.computation();
        let step =
            StepContext { layout, waits, injector, device, ops: &mut **ops, adds_up, computation };
        gradients.accumulate(step, scalars, of, |sink, mut loss| {
            for micro_batch in 0..count {
                // The host may wait until the device has read the tokens before.
                weights.settle()?;
                if is_training {
                    clock.enter(Phase::Data);
                    injector.fetches();
                }
                let tokens = reader.read(micro_batch)?;
                let batch = Batch { inputs: tokens.inputs(), targets: tokens.targets() };
                let is_last = micro_batch + 1 == count;
                weights.begin(which.reads(is_last))?;
                let sums = sink.begin_micro_batch(micro_batch == 0, is_last);
                let loss = loss.reborrow();
                let start = Instant::now();
                let trained = model.train(&mut weights, batch, scale, sums, loss, sink);
                if is_training {
                    injector.computed(start.elapsed());
                }
                trained.inspect_err(|e| ranks.collective.abandon(&e.to_string()))?;
            }
            Ok(())
        })
    }
}
