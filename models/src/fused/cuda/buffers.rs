//! What the engine allocates on the device.

use device::{Allocator, DeviceBuffer};

use crate::config::Family;
use crate::fused::options::AttentionBackend;
use crate::fused::size::Size;
use crate::layout::head_rows;
use crate::ops::attention::cuda::workspace_bytes;
use crate::ops::kernels::CudaElement;
use crate::ops::matmul::cuda::Blas;
use crate::ops::rope;
use crate::ops::row_sums::cuda::Partials;
use crate::{ModelConfig, ops};

/// What forward saves for backward, S being the blocks that are saved: all L, or one with
/// recomputation.
#[derive(Debug)]
pub(super) struct Saved<E: CudaElement> {
    /// (L + 1, N, C): the input of each block; the last is the input of the final norm.
    pub(super) streams: DeviceBuffer<E>,
    /// (S, N, C): output of the first norm.
    pub(super) normed1: DeviceBuffer<E>,
    /// (S, N, C): the stream after attention.
    pub(super) middle: DeviceBuffer<E>,
    /// (S, N, C): output of the second norm.
    pub(super) normed2: DeviceBuffer<E>,
    /// (S, N, columns of queries, keys and values).
    pub(super) qkv: DeviceBuffer<E>,
    /// (S, N, C): outputs of the heads.
    pub(super) attention: DeviceBuffer<E>,
    /// (S, B, H, T).
    pub(super) log_sums: DeviceBuffer<f32>,
    /// (S, N, F or 2 F): the feed-forward layer before its activation.
    pub(super) expanded: DeviceBuffer<E>,
    /// (S, N, F): the same after it.
    pub(super) hidden: DeviceBuffer<E>,
    /// (2 S + 1, N, 1 or 2): statistics of each norm; the last is the final norm.
    pub(super) stats: DeviceBuffer<f32>,
}

/// What every block and the head reuse.
#[derive(Debug)]
pub(super) struct Scratch<E: CudaElement> {
    /// (N, C): output of the final norm.
    pub(super) normed: DeviceBuffer<E>,
    /// (N, C): gradient of a norm's output.
    pub(super) branch: DeviceBuffer<E>,
    /// (N, C): gradient of the stream.
    pub(super) gradient: DeviceBuffer<E>,
    /// (N, max((H + 2 K) D, F)): gradient of qkv, or of the feed-forward layer.
    pub(super) wide: DeviceBuffer<E>,
    /// (B, H, T): the attention's row sums of dout out; empty with cuDNN, which has its own.
    pub(super) delta: DeviceBuffer<f32>,
    /// (tokens of a chunk, rows of the head's matrix): logits, then their gradients.
    pub(super) logits: DeviceBuffer<E>,
    /// (tokens of a chunk).
    pub(super) losses: DeviceBuffer<f32>,
    /// Sums over rows.
    pub(super) partials: Partials,
    /// RoPE's angles, in Llama.
    pub(super) rope: Option<rope::Tables<f32>>,
    /// Of an evaluation.
    pub(super) loss: DeviceBuffer<f64>,
}

/// Workspaces of libraries, which become part of what calls them.
#[derive(Debug)]
pub(super) struct Workspaces {
    /// Of cuBLASLt.
    pub(super) products: DeviceBuffer<u8>,
    /// Of cuDNN; empty with our kernels.
    pub(super) attention: DeviceBuffer<u8>,
}

/// Everything else.
#[derive(Debug)]
pub(super) struct Buffers<E: CudaElement> {
    pub(super) saved: Saved<E>,
    pub(super) scratch: Scratch<E>,
}

impl<E: CudaElement> Buffers<E> {
    pub(super) fn new(allocator: &Allocator, config: &ModelConfig, size: &Size) -> Self {
        Self { saved: Saved::new(allocator, size), scratch: Scratch::new(allocator, config, size) }
    }
}

impl Workspaces {
    pub(super) fn new(allocator: &Allocator, size: &Size) -> Self {
        let attention = match size.attention_backend {
            AttentionBackend::Flash => 0,
            AttentionBackend::Cudnn => workspace_bytes(&size.attention),
        };
        Self {
            products: Blas::workspace(&allocator.for_purpose("workspace of products")),
            attention: allocator.for_purpose("workspace of attention").zeros(attention),
        }
    }
}

impl<E: CudaElement> Saved<E> {
    fn new(allocator: &Allocator, size: &Size) -> Self {
        let streams = allocator.for_purpose("residual stream");
        let attention = allocator.for_purpose("attention");
        let feed_forward = allocator.for_purpose("feed-forward");
        let statistics = allocator.for_purpose("norm statistics");
        let rows = size.saved_blocks() * size.rows;
        Self {
            streams: streams.zeros((size.layers + 1) * size.rows * size.width),
            normed1: attention.zeros(rows * size.width),
            middle: streams.zeros(rows * size.width),
            normed2: feed_forward.zeros(rows * size.width),
            qkv: attention.zeros(rows * size.qkv()),
            attention: attention.zeros(rows * size.width),
            log_sums: attention.zeros(rows * size.attention.heads),
            expanded: feed_forward.zeros(rows * size.expanded()),
            hidden: feed_forward.zeros(rows * size.feed_forward),
            stats: statistics.zeros((2 * size.saved_blocks() + 1) * size.stats()),
        }
    }
}

impl<E: CudaElement> Scratch<E> {
    fn new(allocator: &Allocator, config: &ModelConfig, size: &Size) -> Self {
        let shared = allocator.for_purpose("shared by all blocks");
        let logits = allocator.for_purpose("logits of one chunk");
        let rows = |columns| shared.zeros(size.rows * columns);
        let chunk = size.chunk_tokens::<E>();
        let columns = size.width.max(size.qkv()).max(size.expanded());
        let delta = match size.attention_backend {
            AttentionBackend::Flash => size.rows * size.attention.heads,
            AttentionBackend::Cudnn => 0,
        };
        Self {
            normed: rows(size.width),
            branch: rows(size.width),
            gradient: rows(size.width),
            wide: rows(size.wide()),
            delta: shared.zeros(delta),
            logits: logits.zeros(chunk * head_rows(size.vocabulary)),
            losses: logits.zeros(chunk),
            partials: Partials::new(&shared, size.rows, size.width, columns),
            rope: rope_tables(&allocator.for_purpose("positions"), config, size),
            loss: shared.zeros(1),
        }
    }
}

fn rope_tables(
    allocator: &Allocator,
    config: &ModelConfig,
    size: &Size,
) -> Option<ops::rope::Tables<f32>> {
    let Family::Llama(llama) = config.family else { return None };
    let angles = llama.angles_per_token(size.attention.head_width);
    Some(rope::Tables::new(allocator, &angles, size.attention.tokens))
}
