//! What forward keeps for backward, and what both work in.
//!
//! Kept per block and token: the block's input and the stream between its halves (2 C), qkv (3 C),
//! the attention's output (C), the feed-forward layer before GELU (F), two numbers per norm and one
//! per head: 10 C + 4 + H elements where F = 4 C. Recomputed in backward, because it costs a pass
//! over memory and no product: both norms' outputs (2 C) and GELU's (F).

use super::network::Size;
use crate::ModelConfig;
use crate::ops::{Float, attention, cross_entropy, matmul};

/// What forward keeps, each kind for all L blocks in one allocation.
pub(super) struct Kept<T> {
    /// (L + 1, N, C): the input of each block; the last is the input of the final norm.
    pub(super) streams: Vec<T>,
    /// (L, N, 3 C).
    pub(super) qkv: Vec<T>,
    /// (L, N, C): outputs of the heads.
    pub(super) attention: Vec<T>,
    /// (L, B, H, T).
    pub(super) log_sums: Vec<T>,
    /// (L, N, C): the stream after attention.
    pub(super) middle: Vec<T>,
    /// (L, N, F): the feed-forward layer before GELU.
    pub(super) expanded: Vec<T>,
    /// (2 L + 1, N): mean and 1 / standard deviation in each norm; the last is the final norm.
    pub(super) stats: Vec<[T; 2]>,
}

/// What one block kept.
pub(super) struct KeptBlock<'a, T> {
    pub(super) input: &'a [T],
    /// The next block's input.
    pub(super) output: &'a mut [T],
    pub(super) qkv: &'a mut [T],
    pub(super) attention: &'a mut [T],
    pub(super) log_sums: &'a mut [T],
    pub(super) middle: &'a mut [T],
    pub(super) expanded: &'a mut [T],
    pub(super) stats1: &'a mut [[T; 2]],
    pub(super) stats2: &'a mut [[T; 2]],
}

impl<T: Float> Kept<T> {
    pub(super) fn new(size: &Size) -> Self {
        let kept = KeptElements::new(size);
        let zeros = |len| vec![T::ZERO; len];
        Self {
            streams: zeros(kept.streams),
            qkv: zeros(kept.qkv),
            attention: zeros(kept.attention),
            log_sums: zeros(kept.log_sums),
            middle: zeros(kept.attention),
            expanded: zeros(kept.expanded),
            stats: vec![[T::ZERO; 2]; kept.stats],
        }
    }

    pub(super) fn block(&mut self, layer: usize, size: &Size) -> KeptBlock<'_, T> {
        fn slot<E>(all: &mut [E], layer: usize, len: usize) -> &mut [E] {
            &mut all[layer * len..(layer + 1) * len]
        }
        let stream = size.rows * size.width;
        let (before, after) = self.streams.split_at_mut((layer + 1) * stream);
        let stats = slot(&mut self.stats, layer, 2 * size.rows);
        let (stats1, stats2) = stats.split_at_mut(size.rows);
        KeptBlock {
            input: &before[layer * stream..],
            output: &mut after[..stream],
            qkv: slot(&mut self.qkv, layer, 3 * stream),
            attention: slot(&mut self.attention, layer, stream),
            log_sums: slot(&mut self.log_sums, layer, size.rows * size.attention.heads),
            middle: slot(&mut self.middle, layer, stream),
            expanded: slot(&mut self.expanded, layer, size.rows * size.feed_forward),
            stats1,
            stats2,
        }
    }
}

/// Lengths of [`Kept`] in elements (pairs, for the norms).
struct KeptElements {
    streams: usize,
    qkv: usize,
    attention: usize,
    log_sums: usize,
    expanded: usize,
    stats: usize,
}

impl KeptElements {
    fn new(size: &Size) -> Self {
        let (layers, rows) = (size.layers, size.rows);
        let stream = rows * size.width;
        Self {
            streams: (layers + 1) * stream,
            qkv: layers * 3 * stream,
            attention: layers * stream,
            log_sums: layers * rows * size.attention.heads,
            expanded: layers * rows * size.feed_forward,
            stats: (2 * layers + 1) * rows,
        }
    }
}

/// Buffers that are used again by every block and by the head, and the ops' workspaces.
pub(super) struct Scratch<T: Float> {
    /// (N, C): output of a norm.
    pub(super) normed: Vec<T>,
    /// (N, C): output of a branch forward; gradient of a norm's output backward.
    pub(super) branch: Vec<T>,
    /// (N, C): gradient of the stream.
    pub(super) gradient: Vec<T>,
    /// (N, F): output of GELU.
    pub(super) hidden: Vec<T>,
    /// (N, max(3 C, F)): gradient of qkv, or of the feed-forward layer.
    pub(super) wide: Vec<T>,
    pub(super) matmul: matmul::Workspace<T>,
    pub(super) attention: attention::Workspace<T>,
    pub(super) head: cross_entropy::Workspace<T>,
}

impl<T: Float> Scratch<T> {
    pub(super) fn new(size: &Size) -> Self {
        let zeros = |columns| vec![T::ZERO; size.rows * columns];
        Self {
            normed: zeros(size.width),
            branch: zeros(size.width),
            gradient: zeros(size.width),
            hidden: zeros(size.feed_forward),
            wide: zeros(size.wide()),
            matmul: matmul::Workspace::new(size.threads),
            attention: attention::Workspace::new(size.threads, &size.attention),
            head: cross_entropy::Workspace::new(size.chunk_tokens::<T>(), size.vocabulary),
        }
    }
}

/// Bytes that [`Fused`](super::Fused) allocates for one micro-batch shape, by purpose.
///
/// Nothing large is allocated to find out.
pub fn activation_bytes(
    config: &ModelConfig,
    micro_sequences: usize,
    sequence_tokens: usize,
    threads: usize,
) -> Vec<(String, u64)> {
    let size = Size::new(config, micro_sequences, sequence_tokens, threads);
    let kept = KeptElements::new(&size);
    let float = size_of::<f32>();
    let threads = threads.max(1);
    let scratch = size.rows * (3 * size.width + size.feed_forward + size.wide());
    let blocks = attention::Workspace::<f32>::planned_bytes(threads, &size.attention);
    let packs = matmul::Workspace::<f32>::new(1).bytes();
    let chunk = size.chunk_tokens::<f32>();
    let logits = cross_entropy::Workspace::<f32>::planned_bytes(chunk, size.vocabulary);
    let plan = [
        ("residual stream", (kept.streams + kept.attention) * float),
        ("attention", (kept.qkv + kept.attention + kept.log_sums) * float),
        ("feed-forward", kept.expanded * float),
        ("norm statistics", kept.stats * 2 * float),
        ("shared by all blocks", scratch * float),
        ("logits of one chunk", logits),
        ("workspaces of the threads", blocks + packs * threads),
    ];
    plan.into_iter().map(|(purpose, bytes)| (purpose.to_owned(), bytes as u64)).collect()
}
