//! What the fused engine computes in, and what it keeps in memory.

use serde::{Deserialize, Serialize};

use crate::workload::Compute;

/// What computes attention on a CUDA device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttentionBackend {
    /// Our own kernels, for every shape and format.
    #[default]
    Flash,
    /// cuDNN, in bf16, for the shapes that it has plans for.
    Cudnn,
}

/// Choices that change speed and memory. Apart from the format and the backend of attention,
/// results have the same bits for all.
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
}

impl From<Compute> for Options {
    /// All activations are saved, and the current pool computes.
    fn from(compute: Compute) -> Self {
        let threads = rayon::current_num_threads();
        let attention = AttentionBackend::default();
        Self { compute, recompute: false, threads, on_cuda: false, attention }
    }
}
