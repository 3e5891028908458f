//! Variants of training whose results must be bit-identical under every fault: both families, in
//! both formats, with the optimizer sharded and not, with activations kept and recomputed.
//!
//! Arithmetic is compared by ranks that are threads (`trainer/src/step/tests`). End to end, the
//! flags have to reach it: each pair of them once ([`Variant::chosen`]), and all sixteen variants
//! in `make test-matrix`.

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

/// A covering array of strength 2 of four factors with two values: each two bits have all four
/// values in some row.
const PAIRWISE: [usize; 5] = [0b0000, 0b0111, 0b1011, 0b1101, 0b1110];

/// Whether every variant is tested, and not only each pair of its factors: `make test-matrix`.
pub fn is_matrix() -> bool {
    std::env::var_os("YARDSTICK_MATRIX").is_some()
}

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

    /// Variants in which each two of family, format, sharding and recomputation occur in all four
    /// combinations; all variants in `make test-matrix`.
    pub fn chosen() -> Vec<Self> {
        let all = Self::all();
        if is_matrix() { all.to_vec() } else { PAIRWISE.map(|index| all[index]).to_vec() }
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
