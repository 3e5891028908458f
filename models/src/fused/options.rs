//! What the fused engine computes in, and what it keeps in memory.

use crate::workload::Compute;

/// Choices that change speed and memory. Apart from the format, results have the same bits for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// The format of weights and activations.
    pub compute: Compute,
    /// Save only each block's input in forward, and recompute its activations before its backward.
    pub recompute: bool,
    /// Keep weights packed between micro-batches, until
    /// [`Model::weights_changed`](crate::Model::weights_changed): in both of the forms in which
    /// products read them, and the head's table in its only one.
    pub pack_weights: bool,
    /// Threads that work is divided for: those of the rayon pool that the engine is called in.
    pub threads: usize,
}

impl From<Compute> for Options {
    /// All activations are saved, no weights are kept packed, and the current pool computes.
    fn from(compute: Compute) -> Self {
        let threads = rayon::current_num_threads();
        Self { compute, recompute: false, pack_weights: false, threads }
    }
}

/// Tokens of the largest micro-batch for which packed weights are worth their memory.
const PACKED_TOKENS_MAX: usize = 512;

/// Whether a step of so many micro-batches of so many tokens is faster where weights stay packed.
///
/// Packing takes about as long as multiplying by 25 rows: measured for GPT-2 124M on Zen 4 in bf16,
/// a tenth of Y and dX at 256 tokens and 3 to 5 % at 1,024. A single micro-batch reads nothing
/// twice.
pub fn packing_pays(micro_batches: usize, tokens: usize) -> bool {
    micro_batches > 1 && tokens <= PACKED_TOKENS_MAX
}
