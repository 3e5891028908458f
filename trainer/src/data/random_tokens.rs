//! Tokens of a fixed input, for computations outside of training.

use models::rng::{Purpose, Stream};

/// Writes token ids that are the same on all ranks, each from the whole vocabulary with the same
/// probability, so that as many rows of an embedding are read as in training or more.
pub(crate) fn fill_at_random(tokens: &mut [u32], vocabulary: usize) {
    let stream = Stream::new(1, Purpose::Test);
    for (index, token) in (0..).zip(tokens) {
        *token = stream.below(index, vocabulary as u64) as u32;
    }
}
