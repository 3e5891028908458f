//! The kinds of training that must keep every promise about bits: both families, in both formats,
//! with the optimizer sharded and not, with activations kept and recomputed.
//!
//! What runs for each of the sixteen:
//! - `determinism`: two runs on two ranks, of which the second saves and evaluates as well, a third
//!   without overlap, and one on four ranks. One rank runs each family and format once: alone there
//!   is nothing to shard, and recomputation changes no bit, which the runs on two ranks show.
//! - `kills`: two of the 32 kills, one at a step and one inside a save. They are held against the
//!   undisturbed run of the plain kind, whose bits theirs are. [`Kind::corners`] are killed on four
//!   ranks and go on alone.
//! - `allocations`: one process on one and two threads, two ranks as threads, two ranks of MPI.

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    pub workload: &'static str,
    pub is_bf16: bool,
    pub is_sharded: bool,
    pub is_recomputed: bool,
}

/// The number of kinds.
pub const KINDS: usize = 16;

impl Kind {
    /// All of them; every fourth is plain, neither sharded nor recomputed.
    pub fn all() -> [Self; KINDS] {
        std::array::from_fn(|index| Self {
            workload: ["smoke", "llama-smoke"][index / 8],
            is_bf16: index / 4 % 2 == 1,
            is_sharded: index / 2 % 2 == 1,
            is_recomputed: index % 2 == 1,
        })
    }

    /// Each family in each format once, and each way to shard and recompute once.
    pub fn corners() -> [Self; 4] {
        [0, 7, 10, 13].map(|index| Self::all()[index])
    }

    /// Its place among all.
    pub fn index(self) -> usize {
        Self::all().iter().position(|&kind| kind == self).unwrap()
    }

    /// Neither sharded nor recomputed, and otherwise the same: two ranks give it the same bits.
    pub fn plain(self) -> Self {
        Self { is_sharded: false, is_recomputed: false, ..self }
    }

    /// What sets it apart from its workload.
    pub fn settings(self) -> [&'static str; 3] {
        let choose = |is_on: bool, values: [&'static str; 2]| values[usize::from(is_on)];
        [
            choose(self.is_bf16, ["precision.compute=f32", "precision.compute=bf16"]),
            choose(self.is_sharded, ["run.shard_optimizer=false", "run.shard_optimizer=true"]),
            choose(self.is_recomputed, ["run.recompute=false", "run.recompute=true"]),
        ]
    }

    /// The same as flags of `train`, with the workload, batches of half its size, buckets so small
    /// that it has several, and without measuring the machine, which takes time and changes
    /// nothing.
    pub fn flags(self) -> Vec<&'static str> {
        let settings = self.settings().into_iter().chain(SMALL_BATCHES);
        let settings = settings.chain([SEVERAL_BUCKETS, NO_PROBE]);
        let settings = settings.flat_map(|setting| ["--set", setting]);
        ["--workload", self.workload].into_iter().chain(settings).collect()
    }

    /// Largest relative difference of a loss at another world size: what another order of sums
    /// does, and in bf16 the weights that it rounds the other way.
    pub fn rounding(self) -> f64 {
        if self.is_bf16 { 1e-3 } else { 1e-5 }
    }
}

/// Four micro-batches a step on one rank, two on two ranks, one on four.
const SMALL_BATCHES: [&str; 2] = ["batch.micro_sequences=2", "batch.global_sequences=8"];

/// Several buckets for workloads of the size of `smoke`.
pub const SEVERAL_BUCKETS: &str = "collectives.bucket_bytes=262144";

const NO_PROBE: &str = "telemetry.matmul_probe_s=0.0";
