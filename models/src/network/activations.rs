//! The activations that forward saves for backward.
//!
//! Saved per block and token: the block's input and the stream between its halves (2 C), qkv
//! ((H + 2 K) D, in GPT 3 C), the attention's output (C), the feed-forward layer before its
//! activation (F, in Llama 2 F), one or two statistics per norm and one per head. Where the ops
//! save outputs ([`Size::saves_outputs`]) also both norms' outputs (2 C) and the activation's (F).
//! With full recomputation only each block's input is saved; there is one set of everything else,
//! which backward fills again block by block.

use device::{Allocator, DeviceBuffer, View, ViewMut};

use super::size::Size;
use crate::ops::Element;

/// Buffers of saved activations, each kind in one buffer for all S blocks that are saved: all L, or
/// one with recomputation.
#[derive(Debug)]
pub(super) struct SavedActivations<E: Element> {
    /// (L + 1, N, C): the input of each block; the last is the input of the final norm.
    pub(super) streams: DeviceBuffer<E>,
    /// (S, N, C): output of the first norm. Empty where outputs are not saved, as the next one and
    /// `hidden`.
    normed1: DeviceBuffer<E>,
    /// (S, N, C): the stream after attention.
    middle: DeviceBuffer<E>,
    /// (S, N, C): output of the second norm.
    normed2: DeviceBuffer<E>,
    /// (S, N, columns of queries, keys and values).
    qkv: DeviceBuffer<E>,
    /// (S, N, C): outputs of the heads.
    attention: DeviceBuffer<E>,
    /// (S, B, H, T).
    log_sums: DeviceBuffer<E::Wide>,
    /// (S, N, F or 2 F): the feed-forward layer before its activation.
    expanded: DeviceBuffer<E>,
    /// (S, N, F): the same after it.
    hidden: DeviceBuffer<E>,
    /// (2 S + 1, N, 1 or 2): statistics of each norm; the last is the final norm.
    stats: DeviceBuffer<E::Wide>,
}

/// Saved activations of one block.
#[derive(Debug)]
pub(super) struct BlockActivations<'a, E: Element> {
    pub(super) input: View<'a, E>,
    /// The next block's input.
    pub(super) output: ViewMut<'a, E>,
    /// Where outputs are saved, as the next one and `hidden`.
    pub(super) normed1: Option<ViewMut<'a, E>>,
    pub(super) qkv: ViewMut<'a, E>,
    pub(super) attention: ViewMut<'a, E>,
    pub(super) log_sums: ViewMut<'a, E::Wide>,
    pub(super) middle: ViewMut<'a, E>,
    pub(super) normed2: Option<ViewMut<'a, E>>,
    pub(super) expanded: ViewMut<'a, E>,
    pub(super) hidden: Option<ViewMut<'a, E>>,
    pub(super) stats1: ViewMut<'a, E::Wide>,
    pub(super) stats2: ViewMut<'a, E::Wide>,
}

impl<E: Element> SavedActivations<E> {
    pub(super) fn new(allocator: &Allocator, size: &Size) -> Self {
        let streams = allocator.for_purpose("residual stream");
        let attention = allocator.for_purpose("attention");
        let feed_forward = allocator.for_purpose("feed-forward");
        let statistics = allocator.for_purpose("norm statistics");
        let rows = size.saved_blocks() * size.rows;
        let outputs = if size.saves_outputs { rows } else { 0 };
        Self {
            streams: streams.zeros((size.layers + 1) * size.stream()),
            normed1: attention.zeros(outputs * size.width),
            middle: streams.zeros(rows * size.width),
            normed2: feed_forward.zeros(outputs * size.width),
            qkv: attention.zeros(rows * size.qkv()),
            attention: attention.zeros(rows * size.width),
            log_sums: attention.zeros(rows * size.attention.heads),
            expanded: feed_forward.zeros(rows * size.expanded()),
            hidden: feed_forward.zeros(outputs * size.feed_forward),
            stats: statistics.zeros((2 * size.saved_blocks() + 1) * size.stats()),
        }
    }

    pub(super) fn block(&mut self, layer: usize, size: &Size) -> BlockActivations<'_, E> {
        let stream = size.stream();
        let (before, after) = self.streams.view_mut().split_at((layer + 1) * stream);
        let input = before.slice(layer * stream..(layer + 1) * stream).into_view();
        let layer = layer % size.saved_blocks();
        let stats = slot(&mut self.stats, layer, 2 * size.stats());
        let (stats1, stats2) = stats.split_at(size.stats());
        BlockActivations {
            input,
            output: after.slice(0..stream),
            normed1: slot_of_output(&mut self.normed1, layer, stream),
            qkv: slot(&mut self.qkv, layer, size.rows * size.qkv()),
            attention: slot(&mut self.attention, layer, stream),
            log_sums: slot(&mut self.log_sums, layer, size.rows * size.attention.heads),
            middle: slot(&mut self.middle, layer, stream),
            normed2: slot_of_output(&mut self.normed2, layer, stream),
            expanded: slot(&mut self.expanded, layer, size.rows * size.expanded()),
            hidden: slot_of_output(&mut self.hidden, layer, size.rows * size.feed_forward),
            stats1,
            stats2,
        }
    }

    /// The input of the final norm, and its statistics.
    pub(super) fn final_norm(&mut self, size: &Size) -> FinalNormActivations<'_, E> {
        let stream = size.stream();
        let stats = 2 * size.saved_blocks() * size.stats();
        FinalNormActivations {
            input: self.streams.view().slice(size.layers * stream..(size.layers + 1) * stream),
            stats: self.stats.view_mut().slice(stats..stats + size.stats()),
        }
    }
}

/// Saved activations of the final norm.
#[derive(Debug)]
pub(super) struct FinalNormActivations<'a, E: Element> {
    pub(super) input: View<'a, E>,
    pub(super) stats: ViewMut<'a, E::Wide>,
}

/// A layer's part of a buffer.
fn slot<T: device::Element>(all: &mut DeviceBuffer<T>, layer: usize, len: usize) -> ViewMut<'_, T> {
    all.view_mut().slice(layer * len..(layer + 1) * len)
}

/// The same, where outputs are saved.
fn slot_of_output<T: device::Element>(
    all: &mut DeviceBuffer<T>,
    layer: usize,
    len: usize,
) -> Option<ViewMut<'_, T>> {
    (!all.is_empty()).then(|| slot(all, layer, len))
}
