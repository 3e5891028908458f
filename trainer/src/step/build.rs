//! Construction of a trainer from a configuration.

use std::cell::RefCell;
use std::time::Duration;

use checkpoint::{STAGING, Staging};
use collectives::BucketPlan;
use device::cuda::Downloads;
use device::{Allocator, Device};
use models::candle::Candle;
use models::fused::Fused;
use models::layout::ALIGN;
use models::ops::step;
use models::{Layout, Meter, Model};

use super::Trainer;
use super::consensus::Votes;
use super::gradients::Gradients;
use super::optimizer::Optimizer;
use super::scalars::Scalars;
use super::shard::{Owner, Shard};
use super::state::{Progress, State};
use super::verification::Verifier;
use super::windows::WeightWindows;
use crate::config::{self, Config, Engine};
use crate::data::prefetch::Buffers;
use crate::data::{BatchPlan, Batches, Source};
use crate::failure::Outcome;
use crate::fault_injection::Injector;
use crate::mesh::{Dimensions, Mesh};
use crate::ranks::Ranks;
use crate::timing::phase::PhaseClock;
use crate::timing::tallies::Tallies;
use record::slow_ranks::StepTimes;
use telemetry::hardware::SharedAlert;

/// Returns the bucket plan of a model, and the layout padded to it.
pub(crate) fn placed_layout(config: &Config, world: usize) -> (Layout, BucketPlan) {
    let tight = Layout::new(&config.workload.model);
    let lengths: Vec<usize> = tight.segments().iter().map(|s| s.range.len()).collect();
    let bucket_elements = config.settings.collectives.bucket_bytes / size_of::<f32>();
    let plan = BucketPlan::new(&lengths, world, bucket_elements, ALIGN);
    (tight.with_starts(&plan.starts, plan.len), plan)
}

/// Returns the plan of the sequences that this rank takes.
pub(crate) fn batch_plan(config: &Config, rank: usize, world: usize) -> Outcome<BatchPlan> {
    let batch = &config.workload.batch;
    Ok(BatchPlan {
        rank,
        world,
        micro_sequences: batch.micro_sequences,
        sequence_tokens: batch.sequence_tokens,
        global_sequences: batch.global_sequences(world),
        accumulation: batch.accumulation(world)?,
    })
}

/// Parts of a trainer that take memory.
#[derive(Debug)]
pub(crate) struct Allocated<'world> {
    pub(super) state: State<'world>,
    pub(super) gradients: Gradients<'world>,
    pub(super) scalars: Scalars,
    pub(super) model: Box<dyn Model>,
    batches: Vec<Buffers>,
    /// Memory of micro-batches that the prefetcher does not provide.
    pub(super) again: Buffers,
    /// Memory that checkpoints are copied to.
    staging: Staging,
}

/// Allocators of everything that a rank trains with.
#[derive(Debug, Clone)]
pub(crate) struct Allocators {
    /// Allocator of the memory of the device that computes.
    pub(crate) device: Allocator,
    /// Allocator of the memory of the host; the same where the host computes.
    pub(crate) host: Allocator,
}

impl Allocators {
    /// Returns the allocators for training.
    fn of(device: &Device) -> Self {
        let allocator = device.allocator();
        let host = match device {
            Device::Host => allocator.clone(),
            Device::Cuda(_) => Allocator::host(),
        };
        Self { device: allocator, host }
    }

    /// Returns the counting allocators for a plan.
    pub(crate) fn counting(config: &Config) -> Self {
        let device = Allocator::counting();
        let host = match config.settings.run.device {
            config::Device::Cpu => device.clone(),
            config::Device::Cuda => Allocator::counting(),
        };
        Self { device, host }
    }
}

/// Allocates the memory of one of `world` ranks, with `threads` compute threads. The memory plan
/// calls this with an allocator that only counts, and with dimensions of a single process.
pub(crate) fn allocate<'world>(
    config: &Config,
    world: usize,
    threads: usize,
    rank: usize,
    dimensions: Dimensions<'world>,
    allocators: &Allocators,
) -> Outcome<Allocated<'world>> {
    let Allocators { device: allocator, host } = allocators;
    let (layout, plan) = placed_layout(config, world);
    let settings = &config.settings;
    let Dimensions { owners, replicas, .. } = dimensions;
    let owner = Owner { rank: owners.rank(), world, replicas };
    let parallel = settings.parallel;
    let shard = Shard::new(&layout, &plan, owner, parallel.sharded);
    let overlaps = settings.collectives.overlap;
    let compute = config.workload.precision.compute;
    let gradients = Gradients::new(&layout, &plan, &shard, overlaps, &owners, allocator)?;
    let shares_weights = config.shards_weights() && dimensions.shards(world) > 1;
    let windows = shares_weights.then(|| {
        let ahead = if overlaps { parallel.gather_ahead } else { 0 };
        WeightWindows::new(&layout.uses(), &plan, ahead, parallel.reshard)
    });
    let state = State::new(layout.clone(), shard, compute, windows, dimensions, allocator)?;
    let sums = allocator.for_purpose("sums of a step");
    let scalars = Scalars::new(plan.buckets.len(), &sums);
    let model = engine(config, layout, threads, allocator)?;
    let batch_plan = batch_plan(config, rank, world)?;
    let batches = Buffers::allocate(&batch_plan, host);
    let again = Buffers::of_one(&batch_plan, &host.for_purpose("tokens of checks"));
    let staging = Staging::new(staging_bytes(config, &state), host);
    if config.settings.run.device == config::Device::Cuda {
        host.for_purpose(STAGING).record(Downloads::STAGING_BYTES);
    }
    allocator.outcome()?;
    Ok(Allocated { state, gradients, scalars, model, batches, again, staging })
}

/// Returns the size of staging memory for checkpoints: all that the rank saves, so that no update
/// waits for storage. Saves that training waits for anyway need only a little, unless partners get
/// copies of them, half of this memory at each end of a step.
fn staging_bytes(config: &Config, state: &State<'_>) -> u64 {
    let checkpoint = &config.settings.checkpoint;
    let saved: usize = state.shard.saved().map(|piece| piece.flat.len()).sum();
    let whole = 3 * (saved * size_of::<f32>()) as u64;
    let wanted = checkpoint.staging_bytes;
    let is_whole = checkpoint.has_interval() || checkpoint.nvme.partner;
    let wanted = wanted.unwrap_or(if is_whole { u64::MAX } else { 0 });
    wanted.min(whole)
}

/// Returns the engine of a rank, which computes one micro-batch at a time.
pub(super) fn engine(
    config: &Config,
    layout: Layout,
    threads: usize,
    allocator: &Allocator,
) -> Outcome<Box<dyn Model>> {
    let model = &config.workload.model;
    let micro_batch = config.workload.batch.micro_batch();
    Ok(match config.settings.run.engine {
        Engine::Fused => {
            let options = config.fused_options(threads);
            Box::new(Fused::new(model, layout, micro_batch, options, allocator)?)
        }
        Engine::Candle => Box::new(Candle::new(model, layout, micro_batch, allocator)?),
    })
}

impl<'world> Trainer<'world> {
    /// Creates a trainer at step 0 with initial weights, which computes on a device; on the host in
    /// the current rayon pool. Collective.
    ///
    /// # Errors
    /// Exit code 2 if the batch does not divide or the data is not usable; 3 if the device fails or
    /// has too little memory; 5 if a peer is lost or late.
    pub fn new(
        config: &Config,
        source: &Source,
        device: &Device,
        mesh: Mesh<'world>,
        injector: Injector,
    ) -> Outcome<Self> {
        let timeout = config.settings.collectives.deadline;
        let ranks = Ranks::new(mesh.world, timeout);
        let dimensions = mesh.dimensions(timeout);
        let world = ranks.world();
        let workload = &config.workload;
        let plan = batch_plan(config, ranks.rank(), world)?;
        let sequences = source.training(plan.sequence_tokens)?;
        let threads = rayon::current_num_threads();
        let Allocated { state, gradients, scalars, model, batches, again, staging } =
            allocate(config, world, threads, plan.rank, dimensions, &Allocators::of(device))?;
        let schedule = workload.schedule.clone();
        let verifier = Verifier::new(config, device, &ranks, &state.shard, again)?;
        let optimizer = Optimizer::new(workload.optimizer, schedule, &state.layout);
        let tallies = Tallies::new(&dimensions, state.shard.reduction(), state.has_windows());
        let virtual_clock = injector.virtual_clock(ranks.rank(), world);
        let clock =
            virtual_clock.map_or_else(|| PhaseClock::on(device), PhaseClock::in_virtual_time);
        let mut trainer = Self {
            ranks,
            device: device.clone(),
            ops: step::on(device)?,
            model,
            state,
            gradients,
            scalars,
            optimizer,
            batches: Batches::new(sequences, plan, batches),
            votes: Votes::new(world),
            tallies: RefCell::new(tallies),
            dimensions,
            clock,
            meter: Meter::of(device),
            injector,
            verifier,
            times: StepTimes::ZERO,
            alert: SharedAlert::new(),
            health_every_steps: config.settings.telemetry.health_every_steps,
            overlaps: config.settings.collectives.overlap,
            staging: Some(staging),
            checkpoint_wait: Duration::ZERO,
        };
        trainer.state.open_downloads(device)?;
        trainer.set_weights(|tensor, first, elements| {
            models::init_elements(tensor, workload.schedule.seed, first, elements);
            Ok(())
        })?;
        if trainer.state.shard.is_sharded() {
            // A rank that had to compile its kernels is not lost.
            let patient = ranks.with_timeout(timeout.max(config.settings.checkpoint.deadline));
            ranks.collective.barrier(patient.deadline())?;
        }
        trainer.resume_from(Progress::default())?;
        Ok(trainer)
    }
}
