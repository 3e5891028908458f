//! What the fused engine computes in, and what it keeps in memory.

use crate::workload::Compute;

/// Choices that change speed and memory. Apart from the format, results have the same bits for all.
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
}

impl From<Compute> for Options {
    /// All activations are saved, and the current pool computes.
    fn from(compute: Compute) -> Self {
        let threads = rayon::current_num_threads();
        Self { compute, recompute: false, threads, on_cuda: false }
    }
}
