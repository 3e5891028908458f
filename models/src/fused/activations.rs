//! The activations that forward saves for backward.
//!
//! Saved per block and token: the block's input and the stream between its halves (2 C), qkv
//! ((H + 2 K) D, in GPT 3 C), the attention's output (C), the feed-forward layer before its
//! activation (F, in Llama 2 F), one or two statistics per norm and one per head. Recomputed in
//! backward, because it costs a pass over memory and no product: both norms' outputs (2 C) and the
//! activation's (F). With recomputation only each block's input is saved; there is one set of
//! everything else, which backward fills again block by block.

use device::{Allocator, DeviceBuffer};

use super::size::Size;
use crate::ops::Element;

/// What forward saves, each kind in one buffer for all S blocks that are saved: all L, or one with
/// recomputation.
pub(super) struct SavedActivations<E: Element> {
    /// (L + 1, N, C): the input of each block; the last is the input of the final norm.
    pub(super) streams: DeviceBuffer<E>,
    /// (S, N, C): the stream after attention.
    middle: DeviceBuffer<E>,
    /// (S, N, columns of queries, keys and values).
    qkv: DeviceBuffer<E>,
    /// (S, N, C): outputs of the heads.
    attention: DeviceBuffer<E>,
    /// (S, B, H, T).
    log_sums: DeviceBuffer<E::Wide>,
    /// (S, N, F or 2 F): the feed-forward layer before its activation.
    expanded: DeviceBuffer<E>,
    /// (2 S + 1, N, 1 or 2): statistics of each norm; the last is the final norm.
    stats: DeviceBuffer<E::Wide>,
}

/// What one block saved.
pub(super) struct BlockActivations<'a, E: Element> {
    pub(super) input: &'a [E],
    /// The next block's input.
    pub(super) output: &'a mut [E],
    pub(super) qkv: &'a mut [E],
    pub(super) attention: &'a mut [E],
    pub(super) log_sums: &'a mut [E::Wide],
    pub(super) middle: &'a mut [E],
    pub(super) expanded: &'a mut [E],
    pub(super) stats1: &'a mut [E::Wide],
    pub(super) stats2: &'a mut [E::Wide],
}

impl<E: Element> SavedActivations<E> {
    pub(super) fn new(allocator: &Allocator, size: &Size) -> Self {
        let streams = allocator.for_purpose("residual stream");
        let attention = allocator.for_purpose("attention");
        let feed_forward = allocator.for_purpose("feed-forward");
        let statistics = allocator.for_purpose("norm statistics");
        let rows = size.saved_blocks() * size.rows;
        Self {
            streams: streams.zeros((size.layers + 1) * size.rows * size.width),
            middle: streams.zeros(rows * size.width),
            qkv: attention.zeros(rows * size.qkv()),
            attention: attention.zeros(rows * size.width),
            log_sums: attention.zeros(rows * size.attention.heads),
            expanded: feed_forward.zeros(rows * size.expanded()),
            stats: statistics.zeros((2 * size.saved_blocks() + 1) * size.stats()),
        }
    }

    pub(super) fn block(&mut self, layer: usize, size: &Size) -> BlockActivations<'_, E> {
        fn slot<T>(all: &mut [T], layer: usize, len: usize) -> &mut [T] {
            &mut all[layer * len..(layer + 1) * len]
        }
        let stream = size.rows * size.width;
        let (before, after) = self.streams.host_mut().split_at_mut((layer + 1) * stream);
        let input = &before[layer * stream..];
        let layer = layer % size.saved_blocks();
        let stats = slot(self.stats.host_mut(), layer, 2 * size.stats());
        let (stats1, stats2) = stats.split_at_mut(size.stats());
        BlockActivations {
            input,
            output: &mut after[..stream],
            qkv: slot(self.qkv.host_mut(), layer, size.rows * size.qkv()),
            attention: slot(self.attention.host_mut(), layer, stream),
            log_sums: slot(self.log_sums.host_mut(), layer, size.rows * size.attention.heads),
            middle: slot(self.middle.host_mut(), layer, stream),
            expanded: slot(self.expanded.host_mut(), layer, size.rows * size.expanded()),
            stats1,
            stats2,
        }
    }

    /// The input of the final norm, and its statistics.
    pub(super) fn final_norm(&mut self, size: &Size) -> (&[E], &mut [E::Wide]) {
        let input = &self.streams.host()[size.layers * size.rows * size.width..];
        (input, &mut self.stats.host_mut()[2 * size.saved_blocks() * size.stats()..])
    }
}
