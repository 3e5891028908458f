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
    /// Our own kernels, for every shape and format.
    #[default]
    Flash,
    /// Our simpler kernels without tensor cores, for every shape and format: several times slower.
    Plain,
    /// cuDNN, in bf16, for the shapes that it has plans for.
    Cudnn,
    /// Our kernels by Hopper's own instructions, in bf16, for heads of 64 and 128.
    Wgmma,
}

impl fmt::Display for AttentionBackend {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Flash => "flash",
            Self::Plain => "plain",
            Self::Cudnn => "cudnn",
            Self::Wgmma => "wgmma",
        })
    }
}

/// Choices that change speed and memory. Apart from the format, the backend of attention and the
/// chunks of logits, results have the same bits for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// The format of weights and activations.
    pub compute: Compute,
    /// Save only each block's input in forward, and recompute its activations before its backward.
    pub recompute: bool,
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
    /// All activations are saved, and the current pool computes.
    fn from(compute: Compute) -> Self {
        let threads = rayon::current_num_threads();
        let attention = AttentionBackend::default();
        let logits_bytes = LOGITS_BYTES;
        Self { compute, recompute: false, threads, on_cuda: false, attention, logits_bytes }
    }
}
