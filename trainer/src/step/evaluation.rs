//! Evaluation: the loss on held-out sequences.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use models::Batch;

use super::Trainer;
use super::sharded_weights::Reads;
use super::waits::Waits;
use crate::data::{BatchPlan, Sequences, Source};
use crate::failure::Outcome;
use record::phase::Phase;

/// Held-out sequences and the buffers for reading them.
#[derive(Debug)]
pub(crate) struct Evaluation {
    sequences: Arc<dyn Sequences>,
    micro_batches: usize,
    micro_sequences: usize,
    inputs: Vec<u32>,
    targets: Vec<u32>,
    /// Sum of losses of each rank, and whether it requests a stop. Never freed, as the network may
    /// still write to it after a peer was lost.
    sums: ManuallyDrop<Vec<[f64; 2]>>,
}

/// Result of an evaluation, equal on every rank.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Evaluated {
    /// Mean cross-entropy over all held-out tokens, in nats.
    pub(crate) loss: f64,
    /// True if a rank requests a stop.
    pub(crate) stop: bool,
}

impl Evaluation {
    /// Creates an evaluation of `held_out` sequences, in the micro-batches of a plan.
    ///
    /// # Errors
    /// Exit code 2 if the data has too few sequences, or they do not fill whole micro-batches.
    pub(crate) fn new(source: &Source, held_out: usize, plan: &BatchPlan) -> Outcome<Self> {
        if !held_out.is_multiple_of(plan.micro_sequences) {
            let expected =
                format!("a multiple of batch.micro_sequences = {}", plan.micro_sequences);
            let key = "data.evaluation_sequences";
            return Err(models::Error::invalid(key, held_out, expected).into());
        }
        let tokens = plan.micro_sequences * plan.sequence_tokens;
        Ok(Self {
            sequences: source.evaluation(plan.sequence_tokens)?,
            micro_batches: held_out / plan.micro_sequences,
            micro_sequences: plan.micro_sequences,
            inputs: vec![0; tokens],
            targets: vec![0; tokens],
            sums: ManuallyDrop::new(vec![[0.0; 2]; plan.world]),
        })
    }

    fn fill(&mut self, micro_batch: usize) {
        let tokens = self.inputs.len() / self.micro_sequences;
        let rows = self.inputs.chunks_mut(tokens).zip(self.targets.chunks_mut(tokens));
        for (row, (inputs, targets)) in rows.enumerate() {
            let index = micro_batch * self.micro_sequences + row;
            self.sequences.fill(index as u64, inputs, targets);
        }
    }
}

impl Trainer<'_> {
    /// Evaluates all held-out tokens; ranks take micro-batches in turn. An evaluation may be long,
    /// so its end is a vote as well: a stop that is requested meanwhile needs no further step.
    ///
    /// # Errors
    /// Exit code 5 if a peer is lost or late.
    pub(crate) fn evaluate(
        &mut self,
        evaluation: &mut Evaluation,
        stop: impl FnOnce() -> bool,
    ) -> Outcome<Evaluated> {
        let Self { ranks, model, state, dimensions, clock, tallies, .. } = self;
        let waits = Waits { tallies, clock, dimensions: *dimensions };
        state.gather_first(waits)?;
        tallies.borrow_mut().count(false);
        clock.enter(Phase::Eval);
        let mut sum = 0.0;
        let last = evaluation.micro_batches.saturating_sub(1);
        for pass in 0..evaluation.micro_batches.div_ceil(ranks.world()) {
            let micro_batch = pass * ranks.world() + ranks.rank();
            // All ranks run as many passes, as a pass may gather weights from all: a rank that has
            // no micro-batch of its own left computes one that does not count.
            evaluation.fill(micro_batch.min(last));
            let batch = Batch { inputs: &evaluation.inputs, targets: &evaluation.targets };
            let (_, mut weights) = state.arriving(waits);
            weights.begin(Reads::Evaluation)?;
            let loss = model.evaluate(&mut weights, batch);
            let loss = loss.inspect_err(|e| ranks.collective.abandon(&e.to_string()))?;
            if micro_batch <= last {
                sum += loss;
            }
        }
        state.gather_first(waits)?; // not counted again
        tallies.borrow_mut().count(true);
        let sums = &mut evaluation.sums;
        sums[ranks.rank()] = [sum, f64::from(u8::from(stop()))];
        ranks.collective.all_gather(sums.as_flattened_mut(), ranks.deadline())?;
        let tokens = evaluation.micro_batches * evaluation.inputs.len();
        Ok(Evaluated {
            loss: sums.iter().map(|[sum, _]| sum).sum::<f64>() / tokens as f64,
            stop: sums.iter().any(|[_, stop]| *stop > 0.0),
        })
    }
}
