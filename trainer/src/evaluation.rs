//! Held-out loss.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Instant;

use models::Batch;

use crate::assemble::data_failure;
use crate::data::{BatchPlan, Sequences, Source};
use crate::failure::Outcome;
use crate::phase::Phase;
use crate::step::Trainer;

/// The held-out sequences and the buffers to read them into.
#[derive(Debug)]
pub(crate) struct Evaluation {
    sequences: Arc<dyn Sequences>,
    micro_batches: usize,
    micro_sequences: usize,
    inputs: Vec<u32>,
    targets: Vec<u32>,
    /// Never freed: after a lost peer the network may still write into it.
    sums: ManuallyDrop<Vec<f64>>,
}

impl Evaluation {
    /// Of `held_out` sequences, in the micro-batches of a plan.
    ///
    /// # Errors
    /// Exit code 2 when the data has nothing held out, or not whole micro-batches.
    pub(crate) fn new(source: &Source, held_out: usize, plan: &BatchPlan) -> Outcome<Self> {
        if !held_out.is_multiple_of(plan.micro_sequences) {
            let expected =
                format!("a multiple of batch.micro_sequences = {}", plan.micro_sequences);
            let key = "data.evaluation_sequences";
            return Err(models::Error::invalid(key, held_out, expected).into());
        }
        let tokens = plan.micro_sequences * plan.sequence_tokens;
        Ok(Self {
            sequences: source.evaluation(plan.sequence_tokens).map_err(data_failure)?,
            micro_batches: held_out / plan.micro_sequences,
            micro_sequences: plan.micro_sequences,
            inputs: vec![0; tokens],
            targets: vec![0; tokens],
            sums: ManuallyDrop::new(vec![0.0; plan.world]),
        })
    }

    /// Mean cross-entropy over all held-out tokens, in nats; ranks take micro-batches in turn.
    ///
    /// # Errors
    /// Exit code 5 when a peer is lost or late.
    pub(crate) fn loss(&mut self, trainer: &mut Trainer<'_>) -> Outcome<f64> {
        let (rank, world) = (trainer.collective.rank(), trainer.collective.world());
        trainer.settle()?;
        trainer.clock.enter(Phase::Eval);
        let mut sum = 0.0;
        for micro_batch in (rank..self.micro_batches).step_by(world) {
            self.fill(micro_batch);
            let batch = Batch { inputs: &self.inputs, targets: &self.targets };
            sum += trainer.model.evaluate(&mut trainer.state.engine_weights(), batch)?;
        }
        self.sums[rank] = sum;
        let deadline = Instant::now() + trainer.deadline;
        trainer.collective.all_gather(&mut self.sums, deadline)?;
        let tokens = self.micro_batches * self.inputs.len();
        Ok(self.sums.iter().sum::<f64>() / tokens as f64)
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
