//! Puts a trainer together from a configuration and a world.

use std::time::{Duration, Instant};

use collectives::{BucketPlan, Collective};
use models::candle::Candle;
use models::fused::Fused;
use models::layout::ALIGN;
use models::{Layout, Model};

use crate::communication::Tally;
use crate::config::{Config, Engine};
use crate::data::{BatchPlan, DataError, Prefetcher, Source};
use crate::failure::{ExitCode, Failure, Outcome};
use crate::inject::Injector;
use crate::optimizer::Optimizer;
use crate::phase::{PhaseClock, PhaseTimes};
use crate::shard::Shard;
use crate::state::{Progress, State};
use crate::step::Trainer;
use crate::vote::Votes;

/// The bucket plan of a model, and the layout padded to it.
pub(crate) fn placed_layout(config: &Config, world: usize) -> (Layout, BucketPlan) {
    let tight = Layout::new(&config.workload.model);
    let lengths: Vec<usize> = tight.segments().iter().map(|s| s.range.len()).collect();
    let bucket_elements = config.settings.collectives.bucket_bytes / size_of::<f32>();
    let plan = BucketPlan::new(&lengths, world, bucket_elements, ALIGN);
    (tight.place(&plan.starts, plan.len), plan)
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

/// The engine that computes it on each of `world` ranks, for one micro-batch at a time.
pub(crate) fn engine(config: &Config, layout: &Layout, world: usize) -> Outcome<Box<dyn Model>> {
    let (model, batch) = (&config.workload.model, &config.workload.batch);
    let (sequences, tokens) = (batch.micro_sequences, batch.sequence_tokens);
    Ok(match config.settings.run.engine {
        Engine::Fused => {
            let options = config.fused_options(world)?;
            Box::new(Fused::new(model, layout.clone(), sequences, tokens, options)?)
        }
        Engine::Candle => Box::new(Candle::new(model, layout.clone(), sequences, tokens)?),
    })
}

/// Data errors are the user's.
pub(crate) fn data_failure(error: DataError) -> Failure {
    Failure::new(ExitCode::Usage, error)
}

impl<'world> Trainer<'world> {
    /// A trainer at step 0 with fresh weights.
    ///
    /// # Errors
    /// Exit code 2 when the batch does not divide or the data is not usable.
    pub fn new(
        config: &Config,
        source: &Source,
        collective: &'world dyn Collective,
        injector: Injector,
    ) -> Outcome<Self> {
        let (rank, world) = (collective.rank(), collective.world());
        let workload = &config.workload;
        let plan = batch_plan(config, rank, world)?;
        let (layout, buckets) = placed_layout(config, world);
        let tokens = plan.sequence_tokens;
        let sequences = source.training(tokens).map_err(data_failure)?;
        let deadline = Duration::from_secs_f64(config.settings.collectives.deadline_s);
        let until = Instant::now() + deadline;
        let gradients = collective.buffer(layout.len(), until)?;
        let is_sharded = config.settings.run.shard_optimizer;
        let shard = Shard::new((&layout, &buckets), (rank, world), is_sharded);
        let compute = workload.precision.compute;
        let state = State::new(&shard, compute, collective, until)?;
        let mut trainer = Self {
            collective,
            deadline,
            overlap: config.settings.collectives.overlap,
            model: engine(config, &layout, world)?,
            state,
            gradients,
            optimizer: Optimizer::new(workload.optimizer, workload.schedule.clone(), &layout),
            accumulation: plan.accumulation,
            tokens_per_step: (plan.global_sequences * tokens) as u64,
            data: Prefetcher::start(sequences.clone(), plan, 0),
            sequences,
            batch_plan: plan,
            layout,
            plan: buckets,
            shard,
            gathers: Tally::default(),
            clock: PhaseClock::new(),
            votes: Votes::new(world),
            pending: Vec::new(),
            injector,
        };
        trainer.set_weights(|layout, weights| {
            models::init_weights(layout, workload.schedule.seed, weights);
            Ok(())
        })?;
        Ok(trainer)
    }

    /// Goes on from where a restored state was saved. All ranks call this together.
    pub(crate) fn go_on_from(&mut self, progress: Progress) -> Outcome<()> {
        self.state.progress = progress;
        self.share_weights()?;
        let cursor = progress.next_sequence;
        self.data = Prefetcher::start(self.sequences.clone(), self.batch_plan, cursor);
        Ok(())
    }

    /// Times one step as a whole: `body` is everything from the end of the last step to its own.
    ///
    /// # Errors
    /// Those of `body`.
    pub fn time_step<T>(
        &mut self,
        body: impl FnOnce(&mut Self) -> Outcome<T>,
    ) -> Outcome<(T, PhaseTimes, u64)> {
        self.clock.start_step();
        self.injector.begin(self.state.progress.step + 1);
        let result = body(self)?;
        let (phases, wall_ns) = self.clock.finish_step();
        Ok((result, phases, wall_ns))
    }
}
