//! Buffers that every block and the head reuse, and the workspaces of ops.

use device::{Allocator, DeviceBuffer};

use super::size::Size;
use crate::config::Family;
use crate::ops::{Element, Float, RowSums, attention, cross_entropy, matmul, rope};
use crate::{Meter, ModelConfig};

/// What holds its content for less than one block's forward or backward.
pub(super) struct Scratch<E: Element> {
    /// (N, C): output of a norm.
    pub(super) normed: DeviceBuffer<E>,
    /// (N, C): gradient of a norm's output.
    pub(super) branch: DeviceBuffer<E>,
    /// (N, C): gradient of the stream.
    pub(super) gradient: DeviceBuffer<E>,
    /// (N, F): output of the activation.
    pub(super) hidden: DeviceBuffer<E>,
    /// (N, max((H + 2 K) D, F)): gradient of qkv, or of the feed-forward layer.
    pub(super) wide: DeviceBuffer<E>,
    pub(super) ops: OpContext<E>,
    pub(super) head: cross_entropy::Workspace<E>,
    pub(super) attention: attention::Workspace<E>,
    /// RoPE's angles, in Llama.
    pub(super) rope: Option<rope::Tables<E::Wide>>,
}

/// What ops of all kinds are called with.
pub(super) struct OpContext<E: Element> {
    /// Packing buffers of products.
    pub(super) packs: matmul::Workspace<E>,
    /// What norms sum over rows.
    pub(super) row_sums: RowSums<E::Wide>,
    /// Counts every op.
    pub(super) meter: Meter,
}

impl<E: Element> Scratch<E> {
    pub(super) fn new(allocator: &Allocator, config: &ModelConfig, size: &Size) -> Self {
        let shared = allocator.for_purpose("shared by all blocks");
        let rows = |columns| shared.zeros(size.rows * columns);
        let normed = rows(size.width);
        let branch = rows(size.width);
        let gradient = rows(size.width);
        let hidden = rows(size.feed_forward);
        let wide = rows(size.wide());
        let row_sums = RowSums::new(&shared, size.rows, size.norm_sums());
        let logits = allocator.for_purpose("logits of one chunk");
        let tokens = size.chunk_tokens::<E>();
        let head = cross_entropy::Workspace::new(&logits, tokens, size.vocabulary);
        let threads = allocator.for_purpose("workspaces of the threads");
        let attention = attention::Workspace::new(&threads, size.threads, &size.attention);
        let packs = matmul::Workspace::for_products(&threads, size.threads, &size.products::<E>());
        let ops = OpContext { packs, row_sums, meter: Meter::default() };
        let rope = rope_tables(&allocator.for_purpose("positions"), config, size);
        Self { normed, branch, gradient, hidden, wide, ops, head, attention, rope }
    }
}

fn rope_tables<W: Float>(
    allocator: &Allocator,
    config: &ModelConfig,
    size: &Size,
) -> Option<rope::Tables<W>> {
    let Family::Llama(llama) = config.family else { return None };
    let angles = llama.angles_per_token(size.attention.head_width);
    Some(rope::Tables::new(allocator, &angles, size.attention.tokens))
}
