//! Workspaces of the ops on a CUDA device.

use device::{Allocator, DeviceBuffer};

use crate::ModelConfig;
use crate::layout::head_rows;
use crate::network::options::AttentionBackend;
use crate::network::scratch::SHARED;
use crate::network::size::Size;
use crate::ops::attention::cuda::workspace_bytes;
use crate::ops::kernels::CudaElement;
use crate::ops::matmul::cuda::Blas;
use crate::ops::rope;
use crate::ops::row_sums::cuda::Partials;

/// Buffers that our kernels use during one op, or one chunk of the head.
#[derive(Debug)]
pub(super) struct Workspace<E: CudaElement> {
    /// (B, H, T): the attention's row sums of dout out; empty with cuDNN, which has its own.
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

/// Workspaces of libraries, which become part of what calls them.
#[derive(Debug)]
pub(super) struct LibraryWorkspaces {
    /// Workspace of cuBLASLt.
    pub(super) products: DeviceBuffer<u8>,
    /// Workspace of cuDNN; empty with our kernels.
    pub(super) attention: DeviceBuffer<u8>,
}

impl<E: CudaElement> Workspace<E> {
    pub(super) fn new(allocator: &Allocator, config: &ModelConfig, size: &Size) -> Self {
        let shared = allocator.for_purpose(SHARED);
        let logits = allocator.for_purpose("logits of one chunk");
        let columns = size.width.max(size.qkv()).max(size.expanded());
        let delta = match size.attention_backend {
            AttentionBackend::Cudnn => 0,
            _ => size.rows * size.attention.heads,
        };
        Self {
            delta: shared.zeros(delta),
            logits: logits.zeros(size.chunk_tokens::<E>() * head_rows(size.vocabulary)),
            losses: shared.zeros(size.rows),
            partials: Partials::new(&shared, size.rows, size.width, columns),
            rope: size.rope_tables(allocator, config),
        }
    }
}

impl LibraryWorkspaces {
    pub(super) fn new(allocator: &Allocator, size: &Size) -> Self {
        let attention = match size.attention_backend {
            AttentionBackend::Cudnn => workspace_bytes(&size.attention),
            _ => 0,
        };
        Self {
            products: Blas::workspace(&allocator.for_purpose("workspace of products")),
            attention: allocator.for_purpose("workspace of attention").zeros(attention),
        }
    }
}
