//! Variants of training whose results must be bit-identical under every fault: both families, in
//! both formats, with the optimizer sharded and not, with activations kept and recomputed.
//!
//! Tests of the sixteen variants:
//! - `determinism`: two runs on two ranks, of which the second also saves and evaluates, a third
//!   without overlap, and one on four ranks. A single rank runs each family and format once: it has
//!   nothing to shard, and that recomputation changes no bit is shown on two ranks.
//! - `faults`: [`Variant::corners`] are killed once each, at a step or inside a save. They are
//!   compared with the uninterrupted run of the plain variant, which has the same bits. Two of them
//!   are killed on four ranks and resume on one.
//! - `allocations`: one process on one and two threads, two ranks as threads, two ranks of MPI.
//!   [`Variant::corners`] on a CUDA device (`cuda_allocations`).

/// Variant of training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variant {
    /// Name of the workload.
    pub workload: &'static str,
    /// Computes in bf16 instead of f32.
    pub is_bf16: bool,
    /// Each rank has a part of the optimizer.
    pub is_sharded: bool,
    /// Activations are computed again in the backward pass.
    pub is_recomputed: bool,
}

/// The number of variants.
pub const VARIANTS: usize = 16;

impl Variant {
    /// All variants; every fourth is plain, neither sharded nor recomputed.
    pub fn all() -> [Self; VARIANTS] {
        std::array::from_fn(|index| Self {
            workload: ["smoke", "llama-smoke"][index / 8],
            is_bf16: index / 4 % 2 == 1,
            is_sharded: index / 2 % 2 == 1,
            is_recomputed: index % 2 == 1,
        })
    }

    /// Four variants that have each family in each format, and each combination of sharding and
    /// recomputation.
    pub fn corners() -> [Self; 4] {
        [0, 7, 10, 13].map(|index| Self::all()[index])
    }

    /// Returns its index in [`Self::all`].
    pub fn index(self) -> usize {
        Self::all().iter().position(|&variant| variant == self).unwrap()
    }

    /// Returns the family and format without sharding and recomputation, which has the same bits.
    pub fn plain(self) -> Self {
        Self { is_sharded: false, is_recomputed: false, ..self }
    }

    /// Returns its settings, as `key=value`.
    pub fn settings(self) -> Vec<&'static str> {
        let choose = |is_on: bool, values: [&'static str; 2]| values[usize::from(is_on)];
        let recomputed = self.is_recomputed.then_some("run.recompute=full");
        let others = [
            choose(self.is_bf16, ["precision.compute=f32", "precision.compute=bf16"]),
            choose(self.is_sharded, ["parallel.sharded=none", "parallel.sharded=optimizer"]),
        ];
        others.into_iter().chain(recomputed).collect()
    }

    /// Flags of `train`: the workload, the settings, half the batch size, buckets so small that
    /// there are several, and no matmul probe, which takes time and changes no result.
    pub fn flags(self) -> Vec<&'static str> {
        let settings = self.settings().into_iter().chain(SMALL_BATCHES);
        let settings = settings.chain([SEVERAL_BUCKETS, NO_PROBE]);
        let settings = settings.flat_map(|setting| ["--set", setting]);
        ["--workload", self.workload].into_iter().chain(settings).collect()
    }

    /// Largest relative difference of a loss at another world size: the effect of another order of
    /// sums, and in bf16 of weights that are then rounded to the other neighbour.
    pub fn rounding(self) -> f64 {
        if self.is_bf16 { 1e-3 } else { 1e-5 }
    }
}

/// Four micro-batches a step on one rank, two on two ranks, one on four.
const SMALL_BATCHES: [&str; 2] = ["batch.micro_sequences=2", "batch.global_sequences=8"];

/// Several buckets for workloads of the size of `smoke`.
pub const SEVERAL_BUCKETS: &str = "collectives.bucket_bytes=262144";

const NO_PROBE: &str = "telemetry.matmul_probe=0s";
