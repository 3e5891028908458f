//! Windows of a token stream as sequences, in a seeded order.

use std::sync::Arc;

use models::rng::{Purpose, Stream};

use super::permutation::Permutation;
use super::sequences::Sequences;
use super::token_files::TokenStream;

/// Sequences of windows `first..first + count` of a stream.
///
/// Window w has the inputs `[w T, w T + T)` and the targets one position later, so windows share no
/// input.
#[derive(Debug)]
pub(super) struct Windows {
    pub(super) stream: Arc<TokenStream>,
    pub(super) first: u64,
    pub(super) count: u64,
    pub(super) sequence_tokens: usize,
    /// Seed of the order, which differs in each epoch; `None` keeps the order of the files.
    pub(super) seed: Option<u64>,
}

impl Windows {
    /// Returns the window of a global sequence.
    fn window(&self, index: u64) -> u64 {
        let epoch = index / self.count;
        let position = index % self.count;
        let position = self.seed.map_or(position, |seed| {
            let stream = Stream::new(seed, Purpose::Order).child(epoch);
            Permutation::new(self.count, stream).get(position)
        });
        self.first + position
    }
}

impl Sequences for Windows {
    fn fill(&self, index: u64, inputs: &mut [u32], targets: &mut [u32]) {
        assert_eq!(inputs.len(), self.sequence_tokens, "inputs are not one sequence");
        assert_eq!(targets.len(), self.sequence_tokens, "targets are not one sequence");
        let start = self.window(index) * self.sequence_tokens as u64;
        self.stream.read(start, inputs);
        self.stream.read(start + 1, targets);
    }

    fn sequences_per_epoch(&self) -> Option<u64> {
        Some(self.count)
    }

    fn entropy_floor_nats(&self) -> Option<f64> {
        None
    }
}
