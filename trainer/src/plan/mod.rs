//! Memory plan of a workload on one rank, and whether it fits this machine. Runs the constructors
//! of training with an allocator that only counts.

mod advice;
mod cost;
mod least;
mod recompute;

use checkpoint::tier::ObjectTier;
use collectives::{Footprint, OUTSTANDING_MAX, Single};
use device::Allocator;
use launch::ThreadPlan;
use models::fused::Recompute;
use models::memory::{self, MemoryPlan};
use serde::Serialize;

use crate::checkpoints::tiers;
use crate::config::{Config, Engine};
use crate::failure::{Failure, Outcome};
use crate::hugging_face::BUFFER_BYTES;
use crate::mesh::{Dimensions, MeshShape};
use crate::step::{Allocators, TRANSFER_BYTES, allocate, placed_layout};
use crate::timing::matmul_probe::MatmulProbe;
use crate::timing::memory_probe;
use advice::{Limit, Origin};
pub use cost::{Ceilings, OpCost, StepCost};
pub use least::{DEVICES_OF_NODE, LeastDevices, least_devices};
use recompute::with_recompute;
pub use recompute::{device_bytes_of_rank, with_chosen_recompute};
use record::ExitCode;
use record::text::number_format::{binary, count};

/// Sizes of one workload on one rank.
#[derive(Debug, Clone, Serialize)]
pub struct RankPlan {
    /// Number of parameters, N.
    pub parameters: u64,
    /// Matmul FLOPs per token, attention counted causal.
    pub flops_per_token_causal: f64,
    /// Matmul FLOPs per token, attention counted full.
    pub flops_per_token_full: f64,
    /// Activations that backward computes again.
    pub recompute: Recompute,
    /// Size of the master weights per rank.
    pub weight_bytes: u64,
    /// Size of both Adam moments per rank.
    pub optimizer_bytes: u64,
    /// Size of the engine's saved activations and workspaces, per rank.
    pub activation_bytes: u64,
    /// Largest relative error of `activation_bytes` if it is an estimate; `None` if it is exact.
    pub activation_tolerance: Option<f64>,
    /// Size of a checkpoint, over all ranks: master weights and both moments, f32, no padding.
    pub checkpoint_bytes: u64,
    /// Peak memory of one rank. Shared memory counts for the rank that created it, so that the sum
    /// over ranks is what a node needs; `top` counts it for each rank that maps it.
    pub total_bytes: u64,
    /// Memory available on this machine now, if known.
    pub available_bytes: Option<u64>,
    /// True if the ranks of one machine fit into that, and into their devices; `None` if unknown.
    pub fits: Option<bool>,
    /// Items in the host's memory.
    pub plan: MemoryPlan,
    /// Memory of the device, where that is not the host.
    pub device: Option<DevicePlan>,
    #[serde(skip)]
    origin: Origin,
}

/// Plan of the memory of one rank's CUDA device.
#[derive(Debug, Clone, Serialize)]
pub struct DevicePlan {
    /// Size of all items together.
    pub total_bytes: u64,
    /// Memory that this rank can use, if known.
    pub available_bytes: Option<u64>,
    /// Items in the device's memory.
    pub plan: MemoryPlan,
}

/// Distribution of the ranks of a run over machines.
#[derive(Debug, Clone, Copy)]
pub struct JobShape {
    /// Ranks of the run.
    pub world: usize,
    /// Ranks on this machine.
    pub local: usize,
    /// Compute threads of one rank.
    pub threads: usize,
    /// True if the ranks on this machine share memory: known after the rendezvous, assumed before.
    pub shares_memory: bool,
}

impl RankPlan {
    /// Plans the memory of one rank, which may profile a step.
    ///
    /// # Errors
    /// Exit code 2 for more buckets than there may be, and where `[parallel]` does not fit the
    /// world.
    pub fn new(config: &Config, shape: JobShape, profile_step: Option<u64>) -> Outcome<Self> {
        let JobShape { world, threads, .. } = shape;
        let mesh = MeshShape::of(&config.settings.parallel, world)?;
        let (layout, buckets) = placed_layout(config, world);
        check_bucket_count(config, buckets.buckets.len())?;
        let allocators = Allocators::counting(config);
        let allocator = allocators.host.clone();
        let single = Single::new();
        let alone = Dimensions::alone(mesh, &single);
        allocate(config, world, threads, 0, alone, &allocators)?;
        if config.is_on_cuda() {
            let libraries = allocators.device.for_purpose("kernels and libraries");
            libraries.record(CUDA_LIBRARIES_BYTES);
        }
        let trained = MemoryPlan::from(&allocators.device);
        let activation_bytes = trained.working_bytes();
        let largest_bucket = buckets.buckets.iter().map(|bucket| bucket.range.len()).max();
        // Only buckets in host memory are MPI's.
        let largest_bucket = largest_bucket.filter(|_| !config.is_on_cuda());
        count_communication(shape, mesh, largest_bucket.unwrap_or(0), &allocator);
        count_between_steps(config, shape, layout.len(), profile_step, &allocator);
        count_promotion(config, shape, layout.len(), &allocator);
        count_process(shape, &allocator);
        let plan = MemoryPlan::from(&allocator);
        let model = &config.workload.model;
        let flops = models::flops::flops_per_token(model, config.workload.batch.sequence_tokens);
        let is_estimate = config.settings.run.engine == Engine::Candle;
        let planned = Self {
            parameters: layout.parameters() as u64,
            flops_per_token_causal: flops.causal,
            flops_per_token_full: flops.full,
            recompute: config.recompute(),
            weight_bytes: trained.bytes_of(&[memory::WEIGHTS, memory::MASTER_WEIGHTS]),
            optimizer_bytes: trained.bytes_of(&[memory::FIRST_MOMENT, memory::SECOND_MOMENT]),
            activation_bytes,
            activation_tolerance: is_estimate.then_some(models::candle::ACTIVATION_TOLERANCE),
            checkpoint_bytes: CHECKPOINT_BYTES * layout.parameters() as u64,
            total_bytes: plan.total_bytes(),
            available_bytes: None,
            fits: None,
            plan,
            device: config.is_on_cuda().then_some(DevicePlan {
                total_bytes: trained.total_bytes(),
                available_bytes: None,
                plan: trained,
            }),
            origin: Origin { config: config.clone(), shape, profile_step },
        };
        Ok(planned.on_machine(launch::available_memory_bytes()))
    }

    /// Judges the plan on a machine with so much memory available to its ranks, if known.
    pub fn on_machine(mut self, available_bytes: Option<u64>) -> Self {
        self.available_bytes = available_bytes;
        self.judged()
    }

    /// Judges the plan on a device of which this rank has so much memory, with what the driver
    /// takes of it.
    pub fn on_device(self, memory_bytes: u64) -> Self {
        self.with_device_memory(recompute::available_bytes(memory_bytes))
    }

    /// Judges the plan on a device with so much memory available to this rank.
    pub fn with_device_memory(mut self, available_bytes: u64) -> Self {
        if let Some(device) = &mut self.device {
            device.available_bytes = Some(available_bytes);
        }
        self.judged()
    }

    /// Adds the verdict on what is known. A plan must fit both the machine and the device.
    fn judged(mut self) -> Self {
        let local = self.origin.shape.local as u64;
        let on_host = self.available_bytes.map(|bytes| self.total_bytes <= bytes / local);
        let of_device = |device: &DevicePlan| Some(device.total_bytes <= device.available_bytes?);
        self.fits = match (on_host, self.device.as_ref().map(of_device)) {
            (Some(false), _) | (_, Some(Some(false))) => Some(false),
            (_, Some(on_device)) => on_device,
            (on_host, None) => on_host,
        };
        self
    }

    /// Fails if the ranks of this machine do not fit, before anything is allocated.
    ///
    /// # Errors
    /// Exit code 3 with the sizes.
    pub fn require(&self) -> Outcome<()> {
        self.require_on_device("the device's memory does not suffice")?;
        self.require_on_machine("this machine")
    }

    /// Fails with this problem if a rank does not fit its device, as far as that is known.
    ///
    /// # Errors
    /// Exit code 3 with the sizes.
    pub fn require_on_device(&self, problem: &str) -> Outcome<()> {
        let Some(DevicePlan { available_bytes: Some(bytes), plan, .. }) = &self.device else {
            return Ok(());
        };
        self.require_in(plan, Limit { is_of_device: true, bytes: *bytes }, || problem.to_owned())
    }

    /// Fails if the ranks of a machine do not fit, as far as its memory is known; `machine` names
    /// it.
    ///
    /// # Errors
    /// Exit code 3 with the sizes.
    pub fn require_on_machine(&self, machine: &str) -> Outcome<()> {
        let Some(bytes) = self.available_bytes else { return Ok(()) };
        let limit = Limit { is_of_device: false, bytes };
        let ranks = count(self.origin.shape.local, "rank");
        self.require_in(&self.plan, limit, || format!("{machine} has no room for {ranks}"))
    }

    /// Returns by how many bytes the plan may be too large: its activations may be an estimate.
    pub fn tolerance_bytes(&self) -> u64 {
        let tolerance = self.activation_tolerance.unwrap_or(0.0);
        (tolerance * self.activation_bytes as f64) as u64
    }

    fn require_in(
        &self,
        plan: &MemoryPlan,
        limit: Limit,
        problem: impl FnOnce() -> String,
    ) -> Outcome<()> {
        let sharing = if limit.is_of_device { 1 } else { self.origin.shape.local as u64 };
        let (total, available) = (plan.total_bytes(), limit.bytes / sharing);
        if total <= available {
            return Ok(());
        }
        let working = plan.working_bytes();
        let [needed, flat, working, available] =
            [total, total - working, working, available].map(binary);
        let error = anyhow::anyhow!(
            "{}: one rank needs {needed} ({flat} of weights, gradients and optimizer state, \
             {working} of activations and workspace), {available} are available\n  hint: {}",
            problem(),
            advice::hint(&self.origin, limit)
        );
        Err(Failure::new(ExitCode::Environment, error))
    }
}

/// Returns the compute threads of the first of `local` ranks of this machine.
pub fn compute_threads(config: &Config, local: usize) -> usize {
    let threads = Some(config.settings.run.threads).filter(|&threads| threads > 0);
    ThreadPlan::of_first_rank(local, threads).threads
}

/// Checks that all buckets and one vote can be in flight at the same time.
fn check_bucket_count(config: &Config, buckets: usize) -> Outcome<()> {
    if buckets < OUTSTANDING_MAX {
        return Ok(());
    }
    let bytes = config.settings.collectives.bucket_bytes;
    let expected = format!("a size that gives fewer than {OUTSTANDING_MAX} buckets");
    let found = format!("{bytes} ({buckets} buckets)");
    Err(models::Error::invalid("collectives.bucket_bytes", found, expected).into())
}

/// Reserve for kernels of this program and of cuBLASLt, which are loaded on first use, and for
/// buffers of NCCL; not measured yet.
const CUDA_LIBRARIES_BYTES: u64 = 512 << 20;

/// Bytes per parameter in a checkpoint: the master weight and both moments, f32.
const CHECKPOINT_BYTES: u64 = 3 * size_of::<f32>() as u64;

/// Pages of the program's file and of system libraries, which the ranks of a machine share: 7.6 to
/// 7.9 MiB were measured for `smoke`.
const PROGRAM_BYTES: usize = 8 << 20;

/// Heap and stacks of one process with one thread, in addition to everything else in the plan: 1.9
/// to 2.1 MiB were measured for `smoke`.
const PROCESS_BYTES: usize = 2 << 20;

/// The same for each further thread: 0.05 MiB of stack, and what blocks of the heap are larger than
/// their content. On processors without AVX-512 0.03 MiB were measured for `smoke` with 2 threads,
/// and 0.16 MiB with 8.
const THREAD_BYTES: usize = 192 << 10;

/// Buffer for writing shards to disk.
const CHECKPOINT_WRITER_BYTES: u64 = 4 << 20;

/// Counts the MPI library and receive buffers. In one dimension gradients, and working weights of a
/// sharded optimizer, are in memory that the ranks of a node share; they are counted with the flat
/// buffers, for the rank that created them.
fn count_communication(
    shape: JobShape,
    mesh: MeshShape,
    largest_bucket: usize,
    allocator: &Allocator,
) {
    let JobShape { world, local, shares_memory, .. } = shape;
    let bucket_bytes = size_of::<f32>() * largest_bucket;
    let footprint = match mesh.is_grid() {
        true => Footprint::of_grid(mesh.shard, mesh.data, local, bucket_bytes),
        false => Footprint::estimate(world, local, shares_memory, bucket_bytes),
    };
    allocator.for_purpose("parts received for sums").record(footprint.received as u64);
    allocator.for_purpose("MPI library").record(footprint.library as u64);
}

/// Counts the host's allocations between steps. They never exist at the same time, so the largest
/// counts. Probes of a device use what is free.
fn count_between_steps(
    config: &Config,
    shape: JobShape,
    buffer_elements: usize,
    profile_step: Option<u64>,
    allocator: &Allocator,
) {
    let probe = MatmulProbe::new(config);
    let saved_bytes = CHECKPOINT_BYTES * (buffer_elements / shape.world) as u64;
    // Weights that are set or digested pass through the host.
    let transfer_bytes = if config.is_on_cuda() { TRANSFER_BYTES as u64 } else { 0 };
    let import_bytes = config.settings.run.init_from.as_ref().map_or(0, |_| BUFFER_BYTES as u64);
    let is_measured = !config.settings.telemetry.matmul_probe.is_zero();
    let is_profiled = profile_step.is_some();
    let multiplies = is_measured || is_profiled;
    let copies = !config.is_on_cuda() && (is_profiled || is_measured && shape.world > 1);
    let peak = [
        CHECKPOINT_WRITER_BYTES.min(saved_bytes),
        transfer_bytes + import_bytes,
        if multiplies { probe.planned_bytes(shape.threads) } else { 0 },
        if copies { memory_probe::planned_bytes(shape.local) } else { 0 },
    ];
    let peak = peak.into_iter().max().unwrap_or(0);
    allocator.for_purpose("checkpoint writer, probes").record(peak);
}

/// Counts the memory of background copies of checkpoints to farther tiers: for each tier a chunk
/// that is read and verified, and a buffer for writes.
fn count_promotion(
    config: &Config,
    shape: JobShape,
    buffer_elements: usize,
    allocator: &Allocator,
) {
    let saved_bytes = CHECKPOINT_BYTES * (buffer_elements / shape.world) as u64;
    let read_bytes = checkpoint::Options::default().chunk_bytes.min(saved_bytes);
    let written_bytes = |is_object: bool| {
        let most = if is_object { ObjectTier::PART_BYTES as u64 } else { CHECKPOINT_WRITER_BYTES };
        most.min(saved_bytes)
    };
    let farther = tiers::are_objects(&config.settings.checkpoint).into_iter().skip(1);
    let bytes = farther.map(|is_object| read_bytes + written_bytes(is_object)).sum();
    allocator.for_purpose("copies to farther tiers").record(bytes);
}

/// Counts the process itself; the pages of the program are divided among the ranks of the machine.
fn count_process(shape: JobShape, allocator: &Allocator) {
    let program = PROGRAM_BYTES / shape.local;
    allocator.for_purpose("program and libraries").record(program as u64);
    let process = PROCESS_BYTES + (shape.threads - 1) * THREAD_BYTES;
    allocator.for_purpose("heap and stacks").record(process as u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_counted_once_per_machine() {
        let config = Config::load("smoke", &[]).unwrap();
        let bytes = |local, name| {
            let shape = JobShape { world: 4, local, threads: 1, shares_memory: true };
            let plan = RankPlan::new(&config, shape, None).unwrap();
            plan.plan.bytes_of(&[name]) * local as u64
        };
        assert_eq!(bytes(4, "program and libraries"), bytes(1, "program and libraries"));
        assert_eq!(bytes(4, "heap and stacks"), 4 * bytes(1, "heap and stacks"));
    }

    #[test]
    fn each_farther_tier_takes_a_chunk() {
        let bytes = |tiers: &[&str]| {
            let size = ["model.width=768", "model.layers=4"].iter();
            let settings: Vec<_> = size.chain(tiers).map(ToString::to_string).collect();
            let config = Config::load("smoke", &settings).unwrap();
            let shape = JobShape { world: 1, local: 1, threads: 1, shares_memory: true };
            let plan = RankPlan::new(&config, shape, None).unwrap();
            plan.plan.bytes_of(&["copies to farther tiers"])
        };
        let [nvme, object] = ["checkpoint.nvme.path=/n", "checkpoint.object.path=s3://bucket"];
        assert_eq!(bytes(&[]), 0);
        assert_eq!(bytes(&[nvme]), (16 + 4) << 20);
        assert_eq!(bytes(&[nvme, object]), (16 + 4 + 16 + 32) << 20);
    }

    #[test]
    fn two_dimensions_receive_addends_of_a_node_that_one_shares_memory_for() {
        let shape = JobShape { world: 4, local: 4, threads: 1, shares_memory: true };
        let received = |settings: &[&str]| {
            let settings: Vec<_> = settings.iter().map(ToString::to_string).collect();
            let config = Config::load("smoke", &settings).unwrap();
            let plan = RankPlan::new(&config, shape, None);
            plan.map(|plan| plan.plan.bytes_of(&["parts received for sums"]))
        };
        assert_eq!(received(&[]).unwrap(), 0);
        assert!(received(&["parallel.data=2", "parallel.shard=2"]).unwrap() > 0);
        let refused = received(&["parallel.data=3"]).unwrap_err();
        assert!(refused.to_string().contains("expected a product of 4"), "{refused}");
    }

    /// The setting with which the optimizer is sharded, or is not.
    fn sharding(is_sharded: bool) -> &'static str {
        if is_sharded { "parallel.sharded=optimizer" } else { "parallel.sharded=none" }
    }

    /// Plans one rank of four in each format, sharded and not.
    #[test]
    fn a_sharded_optimizer_holds_its_parts_of_moments_and_of_separate_master_weights() {
        let shape = JobShape { world: 4, local: 4, threads: 1, shares_memory: true };
        for compute in ["f32", "bf16"] {
            let plan = |is_sharded: bool| {
                let format = format!("precision.compute={compute}");
                let sharded = sharding(is_sharded);
                let config = Config::load("smoke", &[format, sharded.to_owned()]).unwrap();
                let elements = placed_layout(&config, 4).0.len() as u64;
                (RankPlan::new(&config, shape, None).unwrap(), elements)
            };
            let (whole, elements) = plan(false);
            let (sharded, _) = plan(true);
            let flat = |plan: &RankPlan| plan.plan.bytes_of(&memory::FLAT_BUFFERS);
            let has_working_weights = compute == "bf16";
            assert_eq!(whole.optimizer_bytes, 8 * elements);
            assert_eq!(sharded.optimizer_bytes, 2 * elements);
            let working = if has_working_weights { 2 * elements } else { 0 };
            assert_eq!(flat(&whole), 16 * elements + working);
            let divided = if has_working_weights { 12 } else { 8 };
            assert_eq!(flat(&sharded), flat(&whole) - divided * elements * 3 / 4);
            assert_eq!(sharded.plan.bytes_of(&memory::SHARDED), divided * elements / 4);
            let activations = |plan: &RankPlan| {
                plan.activation_bytes - plan.plan.bytes_of(&["blocks that decay"])
            };
            assert_eq!(activations(&sharded), activations(&whole));
        }
    }

    #[test]
    fn a_checkpoint_has_no_padding_and_is_that_of_all_ranks() {
        let settings = ["model.width=120", "parallel.sharded=optimizer"].map(str::to_owned);
        let config = Config::load("smoke", &settings).unwrap();
        let shape = JobShape { world: 2, local: 2, threads: 1, shares_memory: true };
        let plan = RankPlan::new(&config, shape, None).unwrap();
        assert_eq!(plan.checkpoint_bytes, 12 * plan.parameters);
        assert!(plan.plan.bytes_of(&[memory::WEIGHTS]) > 4 * plan.parameters, "padding");
    }

    #[test]
    fn only_the_larger_of_profile_and_probe_is_counted() {
        let total = |probe_time, profiled, world| {
            let config = format!("telemetry.matmul_probe={probe_time}");
            let config = Config::load("smoke", &[config]).unwrap();
            let shape = JobShape { world, local: world, threads: 1, shares_memory: true };
            let plan = RankPlan::new(&config, shape, profiled).unwrap();
            plan.plan.bytes_of(&["checkpoint writer, probes"])
        };
        let probe = MatmulProbe::new(&Config::load("smoke", &[]).unwrap()).planned_bytes(1);
        assert!(probe > 12 << 20, "three matrices and a workspace");
        assert_eq!(total("1s", Some(2), 2), 96 << 20, "the triad's three arrays");
        assert_eq!(total("1s", None, 1), probe);
        assert_eq!(total("1s", None, 2), 96 << 20, "ranks compare their memory bandwidths");
        assert_eq!(total("0s", Some(2), 2), 96 << 20);
    }

    #[test]
    fn a_run_allocates_each_item_of_the_plan() {
        for settings in [&[][..], &["precision.compute=bf16", "run.recompute=full"]] {
            let settings: Vec<_> = settings.iter().map(ToString::to_string).collect();
            let config = Config::load("llama-smoke", &settings).unwrap();
            let single = Single::new();
            let alone = Dimensions::alone(MeshShape { data: 1, shard: 1 }, &single);
            let items = |allocator: Allocator| {
                let allocators = Allocators { device: allocator.clone(), host: allocator };
                allocate(&config, 1, 2, 0, alone, &allocators).unwrap();
                allocators.host.items()
            };
            assert_eq!(items(Allocator::host()), items(Allocator::counting()));
        }
    }
}
