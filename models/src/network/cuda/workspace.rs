//! Workspaces of the ops on a CUDA device.

use device::{Allocator, DeviceBuffer};

use crate::ModelConfig;
use crate::layout::head_rows;
use crate::network::scratch::SHARED;
use crate::network::size::Size;
use crate::ops::kernels::CudaElement;
use crate::ops::rope;
use crate::ops::row_sums::cuda::Partials;

/// Buffers that our kernels use during one op, or one chunk of the head.
#[derive(Debug)]
pub(super) struct Workspace<E: CudaElement> {
    /// (B, H, T): the attention's row sums of dout out.
    pub(super) delta: DeviceBuffer<f32>,
    /// (tokens of a chunk, rows of the head's matrix): logits, then their gradients.
    pub(super) logits: DeviceBuffer<E>,
    /// (N): the loss of each token.
    pub(super) losses: DeviceBuffer<f32>,
    /// Sums over rows.
    pub(super) partials: Partials,
    /// RoPE's angles, in Llama.
    pub(super) rope: Option<rope::Tables<f32>>,
}

impl<E: CudaElement> Workspace<E> {
    pub(super) fn new(allocator: &Allocator, config: &ModelConfig, size: &Size) -> Self {
        let shared = allocator.for_purpose(SHARED);
        let logits = allocator.for_purpose("logits of one chunk");
        let columns = size.width.max(size.qkv()).max(size.expanded());
        Self {
            delta: shared.zeros(size.rows * size.attention.heads),
            logits: logits.zeros(size.chunk_tokens::<E>() * head_rows(size.vocabulary)),
            losses: shared.zeros(size.rows),
            partials: Partials::new(&shared, size.rows, size.width, columns),
            rope: size.rope_tables(allocator, config),
        }
    }
}
