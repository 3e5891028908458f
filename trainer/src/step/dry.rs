//! One step on a device without memory: counts what its ops launch and move.

use std::cell::RefCell;

use collectives::Single;
use device::cuda::{Cuda, Launched};
use device::{Allocator, Device};
use models::meter::{Count, Kind, Op, Role};
use models::ops::{step, work};
use models::{Batch, Meter};

use super::build::{Allocated, Allocators, allocate, batch_plan};
use super::gradients::StepContext;
use super::optimizer::Optimizer;
use super::scalars::Of;
use super::sharded_weights::Reads;
use super::waits::Waits;
use crate::bit_flip::Computation;
use crate::config::Config;
use crate::data::fill_at_random;
use crate::failure::Outcome;
use crate::fault_injection::Injector;
use crate::mesh::{Dimensions, MeshShape};
use crate::timing::phase::PhaseClock;
use crate::timing::tallies::Tallies;

/// Counts of one rank's step.
#[derive(Debug)]
pub(crate) struct DryStep {
    /// Tokens of the rank.
    pub(crate) tokens: u64,
    /// Those of each op.
    pub(crate) counts: Vec<(Op, Count)>,
    /// Those of all, copies and fills between ops included.
    pub(crate) launched: Launched,
}

/// Runs one step of rank 0 of `world` ranks on a device that only counts, without the other ranks:
/// their collectives are not part of it.
///
/// # Errors
/// Exit code 2 for a workload that the engine does not compute on a CUDA device.
pub(crate) fn dry_step(config: &Config, world: usize) -> Outcome<DryStep> {
    let cuda = Cuda::dry()?;
    let device = Device::Cuda(cuda.clone());
    let allocators = Allocators { device: device.allocator(), host: Allocator::counting() };
    let single = Single::new();
    let alone = Dimensions::alone(MeshShape::of(&config.settings.parallel, world)?, &single);
    let threads = rayon::current_num_threads();
    let Allocated { mut state, mut gradients, mut scalars, mut model, .. } =
        allocate(config, world, threads, 0, alone, &allocators)?;
    let mut ops = step::on(&device)?;
    let mut meter = Meter::of(&device);
    meter.start();
    model.meter().into_iter().for_each(Meter::start);

    let clock = PhaseClock::new();
    let reduction = state.shard.reduction();
    let tallies = RefCell::new(Tallies::new(&alone, reduction, state.has_windows()));
    let waits = Waits { tallies: &tallies, clock: &clock, dimensions: alone };
    let before = cuda.launched();
    let workload = &config.workload;
    let accumulation = batch_plan(config, 0, world)?.accumulation;
    let micro_batch = workload.batch.micro_batch();
    let mut tokens = vec![0; micro_batch.rows()];
    fill_at_random(&mut tokens, workload.model.vocabulary);
    let injector = Injector::default();
    scalars.clear(&*ops)?;
    let (layout, mut weights) = state.arriving(waits);
    let step = StepContext {
        layout,
        waits,
        injector: &injector,
        device: &device,
        ops: &mut *ops,
        adds_up: world > 1,
        computation: Computation::First,
    };
    gradients.accumulate(step, &mut scalars, Of::Local, |sink, mut loss| {
        for index in 0..accumulation {
            let batch = Batch { inputs: &tokens, targets: &tokens };
            let is_last = index + 1 == accumulation;
            weights.begin(Reads::MicroBatch { follows: !is_last })?;
            let sums = sink.begin_micro_batch(index == 0, is_last);
            model.train(&mut weights, batch, 1.0, sums, loss.reborrow(), sink)?;
        }
        Ok(())
    })?;
    meter.time(
        (Role::GradientNorm, Kind::Whole),
        || work::gradient_norm(state.shard.part_elements()),
        || gradients.add_reduced(&state.shard, &mut *ops, &mut scalars),
    )?;
    let optimizer = Optimizer::new(workload.optimizer, workload.schedule.clone(), &state.layout);
    let update = optimizer.update(0, 1.0);
    let of_update = work::adamw(state.shard.elements(), state.weights.working_bytes());
    meter.time(
        (Role::AdamW, Kind::Whole),
        || of_update,
        || state.update(&update, &|bucket| gradients.own(bucket), &*ops),
    )?;
    let launched = cuda.launched().since(before);
    let mut counts = Vec::new();
    for meter in model.meter().into_iter().chain([&mut meter]) {
        meter.stop()?;
        counts.extend(meter.counts());
    }
    Ok(DryStep { tokens: (accumulation * micro_batch.rows()) as u64, counts, launched })
}
