//! The micro-batches of one rank, step by step.

use std::sync::Arc;

use device::threads;

use super::prefetch::{BatchPlan, Buffers, MicroBatch, Prefetcher};
use super::sequences::Sequences;

/// The data of one rank: which sequences it takes, and the prefetch thread, which the first
/// micro-batch starts.
#[derive(Debug)]
pub struct Batches {
    sequences: Arc<dyn Sequences>,
    plan: BatchPlan,
    reader: Reader,
}

/// The prefetch thread, before and after it is started.
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

    /// Lets the first step begin at this sequence.
    ///
    /// # Panics
    /// After the first micro-batch.
    pub fn seek(&mut self, sequence: u64) {
        let Reader::Idle { cursor, .. } = &mut self.reader else {
            panic!("seek after the first micro-batch");
        };
        *cursor = sequence;
    }

    /// The next micro-batch, in order; waits until it has been read.
    ///
    /// # Errors
    /// At the first one, when there is no thread that reads.
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

    /// Which sequences this rank takes.
    pub fn plan(&self) -> &BatchPlan {
        &self.plan
    }

    /// Micro-batches per step and rank.
    pub fn accumulation(&self) -> usize {
        self.plan.accumulation
    }

    /// Sequences per step over all ranks.
    pub fn global_sequences(&self) -> usize {
        self.plan.global_sequences
    }

    /// Tokens per step over all ranks.
    pub fn tokens_per_step(&self) -> u64 {
        (self.plan.global_sequences * self.plan.sequence_tokens) as u64
    }

    /// Smallest mean loss that any model can reach on this data, nats per token, where it is known.
    pub fn entropy_floor_nats(&self) -> Option<f64> {
        self.sequences.entropy_floor_nats()
    }
}
