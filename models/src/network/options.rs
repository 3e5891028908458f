//! What the fused engine computes in, and what it keeps in memory.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ops::cross_entropy::LOGITS_BYTES;
use crate::workload::Compute;

/// Most bytes of logits in one chunk on a GPU: there, each chunk has to fill all multiprocessors,
/// and the gradient of the head's matrix is read and written once for each.
pub const LOGITS_BYTES_ON_CUDA: usize = 1 << 30;

/// What computes attention on a CUDA device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttentionBackend {
    /// Flash attention on tensor cores in bf16 for heads of 64 and 128; plain kernels for the rest.
    #[default]
    Flash,
    /// Flash attention by Hopper's own instructions, in bf16, for heads of 64 and 128.
    Wgmma,
}

impl fmt::Display for AttentionBackend {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Flash => "flash",
            Self::Wgmma => "wgmma",
        })
    }
}

/// Activations that backward computes again instead of reading what forward saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recompute {
    /// Nothing. Only on a CUDA device.
    None,
    /// Outputs of norms and activations, which cost a pass over memory each and no product.
    Selective,
    /// Everything but each block's input.
    Full,
}

impl fmt::Display for Recompute {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::None => "none",
            Self::Selective => "selective",
            Self::Full => "full",
        })
    }
}

/// Choices that change speed and memory. Apart from the format, the backend of attention and the
/// chunks of logits, results have the same bits for all; but in bf16 on a CUDA device cuBLASLt's
/// GELU is saved, and our own kernel computes it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// The format of weights and activations.
    pub compute: Compute,
    /// What backward computes again.
    pub recompute: Recompute,
    /// Threads that work is divided for: those of the rayon pool that the engine is called in.
    pub threads: usize,
    /// Whether a CUDA device computes: that of the allocator.
    pub on_cuda: bool,
    /// What computes attention there.
    pub attention: AttentionBackend,
    /// Most bytes of logits that exist at one time, without padding of their rows.
    pub logits_bytes: usize,
}

impl From<Compute> for Options {
    /// Outputs of norms and activations are computed again, and the current pool computes.
    fn from(compute: Compute) -> Self {
        let threads = rayon::current_num_threads();
        let attention = AttentionBackend::default();
        let logits_bytes = LOGITS_BYTES;
        let recompute = Recompute::Selective;
        Self { compute, recompute, threads, on_cuda: false, attention, logits_bytes }
    }
}
