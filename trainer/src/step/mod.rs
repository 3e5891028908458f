//! One training step, the same code for one process and for thousands.
//!
//! `build` constructs a [`Trainer`]. Its `State` owns what training changes (weights, moments,
//! progress), `Gradients` are computed by backward and reduced over ranks, and [`Batches`]
//! provide tokens; `Optimizer` calculates the parameters of an update, and with `Votes` ranks
//! agree.

mod build;
mod consensus;
mod evaluation;
pub(crate) mod gradients;
pub(crate) mod optimizer;
mod schedule;
pub(crate) mod shard;
pub(crate) mod state;
#[cfg(test)]
mod tests;
mod weights;

use models::meter::{Kind, Role};
use models::ops::work;
use models::{Batch, Layout, Meter, Model, Sums};

pub(crate) use build::{allocate, batch_plan, placed_layout};
pub use consensus::Requests;
pub(crate) use evaluation::Evaluation;
pub(crate) use shard::Piece;
pub(crate) use state::{Progress, State, StateBuffersMut, WEIGHTS, weights_digest};

use consensus::{Vote, Votes};
use gradients::{Accumulated, Gradients, squares_of_parts};
use optimizer::Optimizer;

use crate::data::Batches;
use crate::failure::Outcome;
use crate::fault_injection::Injector;
use crate::ranks::Ranks;
use crate::timing::communication::Communication;
use crate::timing::phase::{Phase, PhaseClock, StepTime};
use crate::timing::profile::StepProfile;

/// Everything one rank needs to train.
#[derive(Debug)]
pub struct Trainer<'world> {
    ranks: Ranks<'world>,
    model: Box<dyn Model>,
    state: State<'world>,
    gradients: Gradients,
    optimizer: Optimizer,
    batches: Batches,
    votes: Votes,
    clock: PhaseClock,
    /// Counts the ops outside of the model: gradient norm and AdamW.
    meter: Meter,
    injector: Injector,
    /// Whether gathers of updated weights overlap the next step's forward.
    overlaps: bool,
}

/// Result of one step, the same on every rank except `communication`.
#[derive(Debug, Clone, Copy)]
pub struct StepOutcome {
    /// Mean cross-entropy over the global batch in nats per token.
    pub loss: f64,
    /// Global gradient norm before clipping.
    pub gradient_norm: f64,
    /// Learning rate of this step.
    pub learning_rate: f64,
    /// Communication of this rank.
    pub communication: Communication,
    /// The requests of any rank.
    pub requests: Requests,
}

/// The result of a step, and its time.
#[derive(Debug)]
pub struct TimedStep<T> {
    /// What the step returned.
    pub result: T,
    /// Its time.
    pub time: StepTime,
}

impl Trainer<'_> {
    /// Trains on one global batch and advances the state.
    ///
    /// # Errors
    /// Exit code 4 before the update when a loss or gradient is not finite, naming step, rank and
    /// tensor; 5 when a peer is lost or late.
    pub fn step(&mut self, requests: Requests) -> Outcome<StepOutcome> {
        let step = self.state.progress.step;
        let local = self.accumulate_gradients()?;
        self.clock.enter(Phase::Optimizer);
        let vote = self.vote(&local, requests);
        self.clock.enter(Phase::CommExposed);
        self.votes.exchange(&self.ranks, vote)?;
        self.votes.require_finite(&self.state.layout, step + 1)?;
        let gradient_norm = self.votes.squares().sqrt();
        let learning_rate = self.optimizer.learning_rate(step);
        self.update(gradient_norm)?;
        self.state.progress.advance(&self.batches);
        Ok(StepOutcome {
            loss: self.votes.loss_sum() / self.batches.tokens_per_step() as f64,
            gradient_norm,
            learning_rate,
            communication: local.communication.and(self.state.take_communication()),
            requests: self.votes.requests(),
        })
    }

    /// Runs forward and backward over this rank's micro-batches, and reduces gradients at the same
    /// time. They end as the mean over the global batch; under a sharded optimizer only this rank's
    /// parts.
    fn accumulate_gradients(&mut self) -> Outcome<Accumulated> {
        let Self { ranks, model, state, gradients, batches, clock, injector, .. } = self;
        let scale = 1.0 / batches.tokens_per_step() as f32;
        let (layout, mut weights) = state.arriving(clock);
        gradients.accumulate(ranks, layout, clock, |sink| {
            let mut loss_sum = 0.0;
            let accumulation = batches.accumulation();
            for micro_batch in 0..accumulation {
                clock.enter(Phase::Data);
                let tokens = batches.next();
                let batch = Batch { inputs: tokens.inputs(), targets: tokens.targets() };
                sink.begin_micro_batch(micro_batch + 1 == accumulation);
                // The first micro-batch overwrites the gradients of the last step.
                let sums = if micro_batch == 0 { Sums::Write } else { Sums::Add };
                let trained = model.train(&mut weights, batch, scale, sums, sink);
                let loss = trained.inspect_err(|e| ranks.collective.abandon(&e.to_string()))?;
                loss_sum += loss;
            }
            Ok(injector.loss(loss_sum))
        })
    }

    /// This rank's vote.
    fn vote(&mut self, local: &Accumulated, requests: Requests) -> Vote {
        let Self { ranks, state, gradients, meter, .. } = self;
        let State { layout, shard, .. } = state;
        let squares = meter.time(
            (Role::GradientNorm, Kind::Whole),
            || work::gradient_norm(shard.part_elements()),
            || squares_of_parts(shard, gradients.flat()),
        );
        let reduced_non_finite =
            if squares.is_finite() { None } else { gradients.first_non_finite(shard, layout) };
        // On a single rank the reduced gradients are the local ones.
        let local_non_finite = if ranks.is_alone() { reduced_non_finite } else { local.non_finite };
        Vote { loss_sum: local.loss_sum, local_non_finite, squares, reduced_non_finite, requests }
    }

    /// Updates the weights. Under a sharded optimizer the weights of other ranks are in flight when
    /// it returns, unless overlap is off.
    fn update(&mut self, gradient_norm: f64) -> Outcome<()> {
        self.clock.enter(Phase::Optimizer);
        let Self { state, gradients, optimizer, meter, .. } = self;
        let update = optimizer.update(state.progress.step, gradient_norm);
        let work = work::adamw(state.shard.elements(), state.weights.working_bytes());
        let adamw = (Role::AdamW, Kind::Whole);
        meter.time(adamw, || work, || state.update(&update, gradients.flat()))?;
        if self.overlaps { Ok(()) } else { self.synchronize_weights() }
    }

    /// Runs one step with all meters on.
    ///
    /// # Errors
    /// Those of [`step`](Self::step).
    pub(crate) fn profiled_step(
        &mut self,
        requests: Requests,
        profile: &mut StepProfile,
    ) -> Outcome<StepOutcome> {
        self.meter.start();
        self.model.meter().into_iter().for_each(Meter::start);
        let tokens = self.batches.tokens_per_step() / self.ranks.world() as u64;
        let outcome = profile.time(tokens, || self.step(requests));
        for meter in self.model.meter().into_iter().chain([&mut self.meter]) {
            meter.stop();
            profile.extend(meter.counts());
        }
        outcome
    }

    /// Times one step with everything that belongs to it, which `body` runs.
    ///
    /// # Errors
    /// Those of `body`.
    pub fn time_step<T>(
        &mut self,
        body: impl FnOnce(&mut Self) -> Outcome<T>,
    ) -> Outcome<TimedStep<T>> {
        self.clock.start_step();
        self.injector.begin(self.state.progress.step + 1);
        let result = body(self)?;
        Ok(TimedStep { result, time: self.clock.finish_step() })
    }

    /// Waits until all weights have been gathered. Call it before weights are read outside of a
    /// step.
    pub(crate) fn synchronize_weights(&mut self) -> Outcome<()> {
        Ok(self.state.synchronize(&self.clock)?)
    }

    /// Replaces the master weights by those that `fill` writes into a flat buffer of zeros.
    pub(crate) fn set_weights<T>(
        &mut self,
        fill: impl FnOnce(&Layout, &mut [f32]) -> Outcome<T>,
    ) -> Outcome<T> {
        self.synchronize_weights()?;
        // Between steps the memory of the gradients is free.
        let scratch = self.gradients.flat_mut();
        scratch.fill(0.0);
        let filled = fill(&self.state.layout, scratch)?;
        self.state.set_weights(scratch);
        Ok(filled)
    }

    /// Resumes from a restored state. A collective operation.
    pub(crate) fn resume_from(&mut self, progress: Progress) -> Outcome<()> {
        self.state.progress = progress;
        self.state.all_gather_weights(&self.clock)?;
        self.batches.seek(progress.next_sequence);
        Ok(())
    }

    /// The layout and all master weights, flat. A collective operation, between steps.
    pub(crate) fn all_weights(&mut self) -> Outcome<(&Layout, &[f32])> {
        let Self { state, gradients, clock, .. } = self;
        Ok(state.all_weights(clock, gradients.flat_mut())?)
    }

    /// Number of completed steps.
    pub(crate) fn completed_steps(&self) -> u64 {
        self.state.progress.step
    }

    /// The state that a checkpoint holds. Weights must have been synchronized.
    pub(crate) fn state(&self) -> &State<'_> {
        &self.state
    }

    /// The data of this rank.
    pub(crate) fn batches(&self) -> &Batches {
        &self.batches
    }

    /// The injector of this rank's faults.
    pub(crate) fn injector(&self) -> &Injector {
        &self.injector
    }

    /// The clock of the phases.
    pub(crate) fn clock(&self) -> &PhaseClock {
        &self.clock
    }

    /// Stops the clock until the next step is started: the time until then is in no step.
    pub(crate) fn pause_clock(&mut self) {
        self.clock.pause();
    }

    /// Communication of the gathers of weights since the last call.
    pub(crate) fn take_communication(&mut self) -> Communication {
        self.state.take_communication()
    }
}

impl<'world> Trainer<'world> {
    /// All ranks.
    pub(crate) fn ranks(&self) -> Ranks<'world> {
        self.ranks
    }

    /// The state that a checkpoint holds, to be restored. Call [`resume_from`](Self::resume_from)
    /// after it.
    pub(crate) fn state_mut(&mut self) -> &mut State<'world> {
        &mut self.state
    }
}
