//! What forward keeps for backward, and what both work in.
//!
//! Kept per block and token: the block's input and the stream between its halves (2 C), qkv
//! ((H + 2 K) D, in GPT 3 C), the attention's output (C), the feed-forward layer before its
//! activation (F, in Llama 2 F), one or two numbers per norm and one per head. Recomputed in
//! backward, because it costs a pass over memory and no product: both norms' outputs (2 C) and the
//! activation's (F). With recomputation only the input is kept of each block; all else is one set,
//! which backward fills again block by block.

use half::bf16;

use super::Options;
use super::packed::PackedWeights;
use super::size::Size;
use crate::config::Family;
use crate::memory::PACKED_WEIGHTS;
use crate::ops::{Element, Float, RowSums, attention, cross_entropy, matmul, rope};
use crate::workload::Compute;
use crate::{Meter, ModelConfig};

/// What forward keeps, each kind in one allocation for all K blocks that are kept: all L, or one
/// with recomputation.
pub(super) struct Kept<E: Element> {
    /// (L + 1, N, C): the input of each block; the last is the input of the final norm.
    pub(super) streams: Vec<E>,
    /// (K, N, columns of queries, keys and values).
    pub(super) qkv: Vec<E>,
    /// (K, N, C): outputs of the heads.
    pub(super) attention: Vec<E>,
    /// (K, B, H, T).
    pub(super) log_sums: Vec<E::Wide>,
    /// (K, N, C): the stream after attention.
    pub(super) middle: Vec<E>,
    /// (K, N, F or 2 F): the feed-forward layer before its activation.
    pub(super) expanded: Vec<E>,
    /// (2 K + 1, N, 1 or 2): what each norm keeps; the last is the final norm.
    pub(super) stats: Vec<E::Wide>,
}

/// What one block kept.
pub(super) struct KeptBlock<'a, E: Element> {
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

impl<E: Element> Kept<E> {
    pub(super) fn new(size: &Size) -> Self {
        let kept = KeptElements::new(size);
        let zeros = |len| vec![E::ZERO; len];
        Self {
            streams: zeros(kept.streams),
            qkv: zeros(kept.qkv),
            attention: zeros(kept.attention),
            log_sums: vec![E::Wide::ZERO; kept.log_sums],
            middle: zeros(kept.attention),
            expanded: zeros(kept.expanded),
            stats: vec![E::Wide::ZERO; kept.stats],
        }
    }

    pub(super) fn block(&mut self, layer: usize, size: &Size) -> KeptBlock<'_, E> {
        fn slot<T>(all: &mut [T], layer: usize, len: usize) -> &mut [T] {
            &mut all[layer * len..(layer + 1) * len]
        }
        let stream = size.rows * size.width;
        let (before, after) = self.streams.split_at_mut((layer + 1) * stream);
        let input = &before[layer * stream..];
        let layer = layer % size.kept_blocks();
        let stats = slot(&mut self.stats, layer, 2 * size.stats());
        let (stats1, stats2) = stats.split_at_mut(size.stats());
        KeptBlock {
            input,
            output: &mut after[..stream],
            qkv: slot(&mut self.qkv, layer, size.rows * size.qkv()),
            attention: slot(&mut self.attention, layer, stream),
            log_sums: slot(&mut self.log_sums, layer, size.rows * size.attention.heads),
            middle: slot(&mut self.middle, layer, stream),
            expanded: slot(&mut self.expanded, layer, size.rows * size.expanded()),
            stats1,
            stats2,
        }
    }

    /// The input of the final norm, and what it keeps.
    pub(super) fn final_norm(&mut self, size: &Size) -> (&[E], &mut [E::Wide]) {
        let input = &self.streams[size.layers * size.rows * size.width..];
        (input, &mut self.stats[2 * size.kept_blocks() * size.stats()..])
    }
}

/// Lengths of [`Kept`] in elements.
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
        let (blocks, rows) = (size.kept_blocks(), size.rows);
        let stream = rows * size.width;
        Self {
            streams: (size.layers + 1) * stream,
            qkv: blocks * rows * size.qkv(),
            attention: blocks * stream,
            log_sums: blocks * rows * size.attention.heads,
            expanded: blocks * rows * size.expanded(),
            stats: (2 * blocks + 1) * size.stats(),
        }
    }
}

/// Buffers that are used again by every block and by the head, and the ops' workspaces.
pub(super) struct Scratch<E: Element> {
    /// (N, C): output of a norm.
    pub(super) normed: Vec<E>,
    /// (N, C): gradient of a norm's output.
    pub(super) branch: Vec<E>,
    /// (N, C): gradient of the stream.
    pub(super) gradient: Vec<E>,
    /// (N, F): output of the activation.
    pub(super) hidden: Vec<E>,
    /// (N, max((H + 2 K) D, F)): gradient of qkv, or of the feed-forward layer.
    pub(super) wide: Vec<E>,
    /// How far positions turn queries and keys, in Llama.
    pub(super) rope: Option<rope::Tables<E::Wide>>,
    pub(super) tools: Tools<E>,
    pub(super) attention: attention::Workspace<E>,
    pub(super) head: cross_entropy::Workspace<E>,
}

/// What every product works in, what norms sum in, and what counts every op.
pub(super) struct Tools<E: Element> {
    pub(super) packs: matmul::Workspace<E>,
    pub(super) row_sums: RowSums<E::Wide>,
    pub(super) meter: Meter,
}

impl<E: Element> Scratch<E> {
    pub(super) fn new(config: &ModelConfig, size: &Size) -> Self {
        let zeros = |columns| vec![E::ZERO; size.rows * columns];
        let mut head = cross_entropy::Workspace::new(size.chunk_tokens::<E>(), size.vocabulary);
        if size.pack_weights {
            head.keep_table((size.vocabulary, size.width));
        }
        Self {
            normed: zeros(size.width),
            branch: zeros(size.width),
            gradient: zeros(size.width),
            hidden: zeros(size.feed_forward),
            wide: zeros(size.wide()),
            rope: rope_tables(config, size),
            tools: Tools {
                packs: matmul::Workspace::for_products(size.threads, &size.products::<E>()),
                row_sums: RowSums::new(size.rows, size.norm_sums()),
                meter: Meter::default(),
            },
            attention: attention::Workspace::new(size.threads, &size.attention),
            head,
        }
    }
}

fn rope_tables<W: Float>(config: &ModelConfig, size: &Size) -> Option<rope::Tables<W>> {
    let Family::Llama(llama) = config.family else { return None };
    let angles = llama.angles_per_token(size.attention.head_width);
    Some(rope::Tables::new(&angles, size.attention.tokens))
}

/// Bytes that [`Fused`](super::Fused) allocates for micro-batches of so many sequences of so many
/// tokens, by purpose.
///
/// Nothing large is allocated to find out.
pub fn activation_bytes(
    config: &ModelConfig,
    micro_batch: (usize, usize),
    options: impl Into<Options>,
    threads: usize,
) -> Vec<(String, u64)> {
    let options = options.into();
    let size = Size::new(config, micro_batch, options, threads);
    match options.compute {
        Compute::F32 => planned_bytes::<f32>(config, &size),
        Compute::Bf16 => planned_bytes::<bf16>(config, &size),
    }
}

fn planned_bytes<E: Element>(config: &ModelConfig, size: &Size) -> Vec<(String, u64)> {
    let kept = KeptElements::new(size);
    let (element, wide) = (size_of::<E>(), size_of::<E::Wide>());
    let threads = size.threads.max(1);
    let scratch = size.rows * (3 * size.width + size.feed_forward + size.wide());
    let blocks = attention::Workspace::<E>::planned_bytes(threads, &size.attention);
    let packs = matmul::Workspace::<E>::planned_bytes(threads, &size.products::<E>());
    let row_sums = RowSums::<E::Wide>::planned_bytes(size.rows, size.norm_sums());
    let chunk = size.chunk_tokens::<E>();
    let logits = cross_entropy::Workspace::<E>::planned_bytes(chunk, size.vocabulary);
    let positions = match config.family {
        Family::Gpt => 0,
        Family::Llama(_) => {
            let pairs = size.attention.head_width / 2;
            rope::Tables::<E::Wide>::planned_bytes(pairs, size.attention.tokens)
        }
    };
    let table = cross_entropy::Workspace::<E>::planned_table_bytes((size.vocabulary, size.width));
    let packed = PackedWeights::<E>::planned_bytes(size) + table;
    let packed = if size.pack_weights { packed } else { 0 };
    let plan = [
        ("residual stream", (kept.streams + kept.attention) * element),
        ("attention", (kept.qkv + kept.attention) * element + kept.log_sums * wide),
        ("feed-forward", kept.expanded * element),
        ("norm statistics", kept.stats * wide),
        ("shared by all blocks", scratch * element + row_sums),
        ("logits of one chunk", logits),
        ("workspaces of the threads", blocks + packs),
        ("positions", positions),
        (PACKED_WEIGHTS, packed),
    ];
    let plan = plan.into_iter().filter(|(_, bytes)| *bytes > 0);
    plan.map(|(purpose, bytes)| (purpose.to_owned(), bytes as u64)).collect()
}
