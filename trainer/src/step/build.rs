//! Builds a trainer from a configuration.

use collectives::{BucketPlan, Collective};
use device::Allocator;
use models::candle::Candle;
use models::fused::Fused;
use models::layout::ALIGN;
use models::{Layout, Meter, Model};

use super::Trainer;
use super::consensus::Votes;
use super::gradients::Gradients;
use super::optimizer::Optimizer;
use super::shard::Shard;
use super::state::State;
use crate::config::{Config, Engine};
use crate::data::prefetch::Buffers;
use crate::data::{BatchPlan, Batches, Source};
use crate::failure::Outcome;
use crate::fault_injection::Injector;
use crate::ranks::Ranks;
use crate::timing::phase::PhaseClock;

/// The bucket plan of a model, and the layout padded to it.
pub(crate) fn placed_layout(config: &Config, world: usize) -> (Layout, BucketPlan) {
    let tight = Layout::new(&config.workload.model);
    let lengths: Vec<usize> = tight.segments().iter().map(|s| s.range.len()).collect();
    let bucket_elements = config.settings.collectives.bucket_bytes / size_of::<f32>();
    let plan = BucketPlan::new(&lengths, world, bucket_elements, ALIGN);
    (tight.with_starts(&plan.starts, plan.len), plan)
}

/// Which sequences this rank takes.
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

/// The parts of a trainer that take memory.
#[derive(Debug)]
pub(crate) struct Allocated<'world> {
    state: State<'world>,
    gradients: Gradients,
    model: Box<dyn Model>,
    batches: Vec<Buffers>,
}

/// Allocates the memory of one of `world` ranks, with `threads` compute threads. The memory plan
/// calls this with an allocator that only counts, and with `ranks` of a single rank.
pub(crate) fn allocate<'world>(
    config: &Config,
    world: usize,
    threads: usize,
    ranks: Ranks<'world>,
    allocator: &Allocator,
) -> Outcome<Allocated<'world>> {
    let (layout, plan) = placed_layout(config, world);
    let settings = &config.settings;
    let shard = Shard::new(&layout, &plan, ranks.rank(), world, settings.run.shard_optimizer);
    let overlaps = settings.collectives.overlap;
    let reduction = shard.reduction();
    let compute = config.workload.precision.compute;
    let state = State::new(layout.clone(), shard, compute, ranks, allocator)?;
    let gradients = Gradients::new(plan, reduction, overlaps, &ranks, allocator)?;
    let model = engine(config, layout, threads, allocator)?;
    let batches = Buffers::allocate(&batch_plan(config, ranks.rank(), world)?, allocator);
    Ok(Allocated { state, gradients, model, batches })
}

/// The engine of a rank, which computes one micro-batch at a time.
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
    /// A trainer at step 0 with initial weights, which computes in the current rayon pool.
    ///
    /// # Errors
    /// Exit code 2 when the batch does not divide or the data is not usable.
    pub fn new(
        config: &Config,
        source: &Source,
        collective: &'world dyn Collective,
        injector: Injector,
    ) -> Outcome<Self> {
        let ranks = Ranks::new(collective, config.settings.collectives.deadline);
        let world = ranks.world();
        let workload = &config.workload;
        let plan = batch_plan(config, ranks.rank(), world)?;
        let sequences = source.training(plan.sequence_tokens)?;
        let threads = rayon::current_num_threads();
        let Allocated { state, gradients, model, batches } =
            allocate(config, world, threads, ranks, &Allocator::host())?;
        let schedule = workload.schedule.clone();
        let optimizer = Optimizer::new(workload.optimizer, schedule, &state.layout);
        let mut trainer = Self {
            ranks,
            model,
            state,
            gradients,
            optimizer,
            batches: Batches::new(sequences, plan, batches),
            votes: Votes::new(world),
            clock: PhaseClock::new(),
            meter: Meter::default(),
            injector,
            overlaps: config.settings.collectives.overlap,
        };
        trainer.set_weights(|layout, weights| {
            models::init_weights(layout, workload.schedule.seed, weights);
            Ok(())
        })?;
        Ok(trainer)
    }
}
