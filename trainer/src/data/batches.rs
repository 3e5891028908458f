//! Micro-batches of one rank, step by step.

use std::sync::Arc;

use device::threads;

use super::prefetch::{BatchPlan, Buffers, MicroBatch, Prefetcher};
use super::sequences::Sequences;

/// Data of one rank: its sequences, and the prefetch thread, which the first micro-batch starts.
#[derive(Debug)]
pub struct Batches {
    sequences: Arc<dyn Sequences>,
    plan: BatchPlan,
    reader: Reader,
}

/// State of the prefetch thread, before and after its start.
#[derive(Debug)]
enum Reader {
    Idle {
        /// Global index of the first sequence of the first step.
        cursor: u64,
        buffers: Vec<Buffers>,
    },
    Running(Prefetcher),
}

impl Batches {
    /// Starts at the first sequence.
    pub fn new(sequences: Arc<dyn Sequences>, plan: BatchPlan, buffers: Vec<Buffers>) -> Self {
        Self { sequences, plan, reader: Reader::Idle { cursor: 0, buffers } }
    }

    /// Sets the sequence at which the first step begins.
    ///
    /// # Panics
    /// After the first micro-batch.
    pub fn seek(&mut self, sequence: u64) {
        let Reader::Idle { cursor, .. } = &mut self.reader else {
            panic!("seek after the first micro-batch");
        };
        *cursor = sequence;
    }

    /// Returns the next micro-batch, in order; waits until it has been read.
    ///
    /// # Errors
    /// At the first micro-batch, if the reader thread cannot be started.
    #[expect(clippy::should_implement_trait, reason = "an iterator's items cannot borrow from it")]
    pub fn next(&mut self) -> Result<MicroBatch<'_>, threads::Error> {
        if let Reader::Idle { cursor, buffers } = &mut self.reader {
            let buffers = std::mem::take(buffers);
            let sequences = Arc::clone(&self.sequences);
            let prefetcher = Prefetcher::start(sequences, self.plan, *cursor, buffers)?;
            self.reader = Reader::Running(prefetcher);
        }
        let Reader::Running(prefetcher) = &mut self.reader else { unreachable!("started above") };
        Ok(prefetcher.next())
    }

    /// Reads a micro-batch of any rank, in a step that begins with sequence `cursor`. The next
    /// micro-batch of this rank stays the next one.
    pub fn read(&self, rank: usize, cursor: u64, micro_batch: usize, buffers: &mut Buffers) {
        let plan = BatchPlan { rank, ..self.plan };
        buffers.fill(&*self.sequences, &plan, cursor, micro_batch);
    }

    /// Returns the plan of the sequences that this rank takes.
    pub fn plan(&self) -> &BatchPlan {
        &self.plan
    }

    /// Returns the micro-batches per step and rank.
    pub fn accumulation(&self) -> usize {
        self.plan.accumulation
    }

    /// Returns the sequences per step over all ranks.
    pub fn global_sequences(&self) -> usize {
        self.plan.global_sequences
    }

    /// Returns the tokens per step over all ranks.
    pub fn tokens_per_step(&self) -> u64 {
        (self.plan.global_sequences * self.plan.sequence_tokens) as u64
    }

    /// Returns the lowest mean loss of any model on this data in nats per token, where it is known.
    pub fn entropy_floor_nats(&self) -> Option<f64> {
        self.sequences.entropy_floor_nats()
    }
}
