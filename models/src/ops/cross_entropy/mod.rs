//! The head and its loss: logits = H W^T, loss = the sum of `-ln softmax(logits)[target]`.
//!
//! H is (N, C), W the token table (V, C), targets (N). Tokens are processed in chunks, so that only
//! a chunk of the logits exists ([`chunk_tokens`]); its gradient overwrites it:
//!
//! - dlogits = scale (softmax(logits) - onehot(target))
//! - dH = dlogits W
//! - dW += dlogits^T H
//!
//! Logits are rounded once and kept as elements, as PyTorch's autocast keeps them; their softmax is
//! wide, and dlogits is rounded again for the two products.
//!
//! On the processor logits are kept as (V, tokens): tokens along the vectors, so that no sum runs
//! across a vector, and neither W nor the logits need transposing for any of the three products. On
//! CUDA they are (tokens, V and padding).

mod cpu;
pub(crate) mod cuda;
mod log_sums;
#[cfg(test)]
mod tests;

pub use cpu::{hidden_gradient, logits, loss, table_gradient, to_gradient};

use device::{Allocator, DeviceBuffer};

use super::Element;
use super::matmul::Extent;
use super::matmul::blocked::ProductShape;
use log_sums::PARTS;

/// Most bytes of logits in one chunk on the processor.
pub const LOGITS_BYTES: usize = 256 << 20;
/// Tokens of a chunk are a multiple of this where there are enough.
const TOKENS_MULTIPLE: usize = 64;

/// Tokens in one chunk of a batch of `tokens` whose logits have at most `logits_bytes` (the last
/// chunk may be shorter).
pub fn chunk_tokens<E: Element>(tokens: usize, vocabulary: usize, logits_bytes: usize) -> usize {
    let most = logits_bytes / (vocabulary * size_of::<E>());
    let most = (most / TOKENS_MULTIPLE).max(1) * TOKENS_MULTIPLE;
    let chunks = tokens.div_ceil(most).max(1);
    tokens.div_ceil(chunks).next_multiple_of(TOKENS_MULTIPLE).min(tokens)
}

/// Dimensions of one chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Tokens of the chunk.
    pub tokens: usize,
    /// C.
    pub width: usize,
    /// V.
    pub vocabulary: usize,
}

impl Shape {
    /// Panics unless H is (tokens, C) and W (V, C).
    fn check(self, hidden: usize, table: usize) {
        assert_eq!(hidden, self.tokens * self.width, "H (tokens, C) of {self:?}");
        assert_eq!(table, self.vocabulary * self.width, "W (V, C) of {self:?}");
    }
}

/// Scratch memory for one chunk, its logits among it.
#[derive(Debug)]
pub struct Workspace<E: Element> {
    /// (V, tokens); then dlogits.
    logits: DeviceBuffer<E>,
    /// Per part of the vocabulary and token: maximum, and sum of exponentials relative to it.
    maxima: DeviceBuffer<E::Wide>,
    sums: DeviceBuffer<E::Wide>,
    /// Per token: log-sum-exp.
    log_sums: DeviceBuffer<E::Wide>,
    /// Per token: the gradient of its target's logit.
    hits: DeviceBuffer<E>,
}

impl<E: Element> Workspace<E> {
    /// Creates a workspace for chunks of up to `tokens` tokens.
    pub fn new(allocator: &Allocator, tokens: usize, vocabulary: usize) -> Self {
        Self {
            logits: allocator.zeros(tokens * vocabulary),
            maxima: allocator.zeros(PARTS * tokens),
            sums: allocator.zeros(PARTS * tokens),
            log_sums: allocator.zeros(tokens),
            hits: allocator.zeros(tokens),
        }
    }

    /// The logits of a chunk, or their gradient.
    fn logits(&mut self, shape: Shape) -> &mut [E] {
        &mut self.logits.host_mut()[..shape.tokens * shape.vocabulary]
    }

    /// The products over a chunk: logits, dH and dW.
    pub(crate) fn products(shape: Shape) -> [Extent; 3] {
        let Shape { tokens, width, vocabulary } = shape;
        // As `Output::plain` stores them.
        let output_is_narrow = size_of::<E>() < size_of::<E::Wide>();
        let logits = Extent {
            shape: ProductShape { m: vocabulary, n: tokens, k: width },
            left_has_contiguous_rows: true,
            output_is_narrow,
        };
        let dhidden = Extent {
            shape: ProductShape { m: tokens, n: width, k: vocabulary },
            left_has_contiguous_rows: false,
            output_is_narrow,
        };
        let shape = ProductShape { m: vocabulary, n: width, k: tokens };
        let dtable = Extent { shape, output_is_narrow: false, ..logits };
        [logits, dhidden, dtable]
    }
}
