//! Training step, the same code for one process and for thousands.
//!
//! `build` constructs a [`Trainer`]. Its `State` owns what training changes (weights, moments,
//! progress), `Gradients` are computed by backward and reduced over ranks, and [`Batches`] provide
//! tokens; `Optimizer` calculates the parameters of an update, and with `Votes` ranks agree.

mod build;
mod consensus;
mod corruption;
mod dry;
mod evaluation;
mod frozen;
pub(crate) mod gradients;
mod master_weights;
mod micro_batches;
pub(crate) mod optimizer;
mod scalars;
mod schedule;
pub(crate) mod shard;
mod sharded_weights;
pub(crate) mod state;
#[cfg(test)]
mod tests;
mod tuning;
mod update_health;
mod verification;
mod waits;
mod weights;
mod windows;

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use checkpoint::{Frozen, Snapshot, Staging};
use device::Device;
use models::layout::Tensor;
use models::meter::{Kind, Role};
use models::ops::step::StepOps;
use models::ops::work;
use models::{Meter, Model};

pub(crate) use build::{Allocators, allocate, batch_plan, placed_layout};
pub use consensus::Requests;
pub(crate) use dry::{DryStep, dry_step};
pub(crate) use evaluation::Evaluation;
pub(crate) use frozen::SavedRange;
pub(crate) use master_weights::TRANSFER_BYTES;
pub(crate) use shard::Piece;
pub(crate) use state::{HeldElements, Progress, SavedLayout, State, StateBuffersMut, WEIGHTS};

use consensus::{Vote, Votes};
use corruption::Checks;
use gradients::Gradients;
use micro_batches::MicroBatches;
use optimizer::Optimizer;
use scalars::{NonFiniteElement, Of, Scalars};
use update_health::UpdateHealth;
pub(crate) use verification::CorruptionFound;
use verification::Verifier;
pub(crate) use waits::Waits;

use crate::bit_flip::{Computation, FlippedValue};
use crate::data::Batches;
use crate::failure::Outcome;
use crate::fault_injection::Injector;
use crate::mesh::Dimensions;
use crate::ranks::Ranks;
use crate::timing::communication::Communication;
use crate::timing::phase::{PhaseClock, StepTime};
use crate::timing::profile::StepProfile;
use crate::timing::step_trace::StepTrace;
use crate::timing::tallies::Tallies;
use record::phase::Phase;
use record::slow_ranks::{OwnTime, StepTimes};
use record::{BucketRecord, DimensionTraffic, WeightsDigest};
use telemetry::hardware::{Alert, SharedAlert};

/// State and resources of one rank that trains.
#[derive(Debug)]
pub struct Trainer<'world> {
    ranks: Ranks<'world>,
    device: Device,
    ops: Box<dyn StepOps>,
    model: Box<dyn Model>,
    state: State<'world>,
    gradients: Gradients<'world>,
    scalars: Scalars,
    optimizer: Optimizer,
    batches: Batches,
    votes: Votes,
    dimensions: Dimensions<'world>,
    clock: PhaseClock,
    tallies: RefCell<Tallies>,
    /// Meter of the ops outside of the model: gradient norm and AdamW.
    meter: Meter,
    injector: Injector,
    /// Checks for silent data corruption.
    verifier: Verifier,
    /// Times of this rank in the last step whose time is known.
    times: StepTimes,
    /// Alarming state of this rank's GPU.
    alert: Arc<SharedAlert>,
    /// Steps between those that measure weights and updates; 0 for never.
    health_every_steps: u64,
    /// True if gathers of updated weights overlap the next step's forward.
    overlaps: bool,
    /// Staging memory, until [`Self::take_staging`].
    staging: Option<Staging>,
    checkpoint_wait: Duration,
}

/// Result of one step, equal on every rank except for `communication`.
#[derive(Debug, Clone, Copy)]
pub struct StepOutcome {
    /// Mean cross-entropy over the global batch in nats per token.
    pub loss: f64,
    /// Global gradient norm before clipping.
    pub gradient_norm: f64,
    /// Learning rate of this step.
    pub learning_rate: f64,
    /// Health of the weights that this step began with, in steps that measure it.
    pub(crate) health: Option<UpdateHealth>,
    /// Communication of this rank.
    pub communication: Communication,
    /// Requests of any rank.
    pub requests: Requests,
}

/// Result of a step, and a time.
#[derive(Debug)]
pub struct TimedStep<T> {
    /// Value that the step returned.
    pub result: T,
    /// Time of the step on the host. On a device it is the time of the step before, unless there is
    /// none or [`Trainer::last_step_time`] returned it.
    pub time: Option<StepTime>,
}

impl Trainer<'_> {
    /// Trains on one global batch and advances the state. `requests` are read just before the ranks
    /// exchange their votes, so that this step heeds requests that arrive while gradients are
    /// computed.
    ///
    /// # Errors
    /// Exit code 4 before the update if a loss or gradient is not finite, naming step, rank and
    /// tensor, or if bits are found to be wrong; 5 if a peer is lost or late.
    pub fn step(&mut self, requests: impl FnOnce() -> Requests) -> Outcome<StepOutcome> {
        let checks = self.verifier.checks(self.state.progress.step + 1);
        self.checked_step(checks, requests)
    }

    fn checked_step(
        &mut self,
        checks: Checks,
        requests: impl FnOnce() -> Requests,
    ) -> Outcome<StepOutcome> {
        let step = self.state.progress.step;
        let requests = self.compute(checks, requests)?;
        self.verify(checks, requests)?;
        let gradient_norm = self.votes.squares().sqrt();
        let learning_rate = self.optimizer.learning_rate(step);
        let health = self.looks_at_updates().then(|| self.votes.update_squares());
        self.update(gradient_norm)?;
        self.state.progress.advance(&self.batches);
        Ok(StepOutcome {
            loss: self.votes.loss_sum() / self.batches.tokens_per_step() as f64,
            gradient_norm,
            learning_rate,
            health: health.and_then(UpdateHealth::of),
            communication: self.tallies.get_mut().take(),
            requests: self.votes.requests(),
        })
    }

    /// Computes the gradients of a step with its checks, and exchanges votes. Returns the requests
    /// of this rank.
    fn compute(
        &mut self,
        checks: Checks,
        requests: impl FnOnce() -> Requests,
    ) -> Outcome<Requests> {
        self.scalars.clear(&*self.ops)?;
        self.recompute_for(checks)?;
        let is_repeat = checks.is_repeat;
        let which = if is_repeat { MicroBatches::OwnAgain } else { MicroBatches::Own };
        self.accumulate_gradients(which, checks.adds_up(self.ranks.is_alone()))?;
        self.clock.enter(Phase::Optimizer);
        let vote = self.vote(checks, requests)?;
        self.clock.enter(Phase::CommExposed);
        self.votes.exchange(&self.ranks, vote)?;
        Ok(vote.requests)
    }

    /// Fails if a loss or gradient is not finite. Collective.
    fn require_finite(&mut self) -> Outcome<()> {
        if self.votes.is_finite() {
            return Ok(());
        }
        let tensor = self.non_finite_tensor()?;
        let name = tensor.map(|tensor| self.state.layout.tensors()[tensor].name.as_str());
        Err(self.votes.not_finite(name, self.state.progress.step + 1))
    }

    /// Returns this rank's vote: the one point of a step where the host waits for its device.
    fn vote(&mut self, checks: Checks, requests: impl FnOnce() -> Requests) -> Outcome<Vote> {
        let Self { ops, state, gradients, scalars, meter, .. } = self;
        let shard = &state.shard;
        meter.time(
            (Role::GradientNorm, Kind::Whole),
            || work::gradient_norm(shard.part_elements()),
            || gradients.add_reduced(shard, &mut **ops, scalars),
        )?;
        self.add_update_squares()?;
        let compares = checks.replicas && !self.ranks.is_alone();
        if compares {
            self.add_replica_sums()?;
        }
        self.waits().settle()?;
        let Self { ranks, device, scalars, injector, .. } = self;
        let adds_up = checks.adds_up(ranks.is_alone());
        scalars.read(device)?;
        let reduced = scalars.total(Of::Reduced);
        Ok(Vote {
            loss_sum: injector.loss(scalars.loss_sum()),
            // On a single rank the reduced gradients are the local gradients.
            local: if adds_up { scalars.total(Of::Local) } else { reduced },
            reduced,
            recomputed: checks.shift.map(|_| scalars.total(Of::Recomputed)),
            replica: compares.then(|| scalars.replica()),
            update: scalars.sums_of_update(),
            requests: requests(),
            times: self.times,
            alert: self.alert.get(),
        })
    }

    /// Returns the first tensor whose reduced gradient is not finite on any rank: where the
    /// gradient of one rank is not, the sum is not. Collective.
    fn non_finite_tensor(&mut self) -> Outcome<Option<usize>> {
        let Self { ranks, device, ops, state, gradients, scalars, .. } = self;
        let State { layout, shard, .. } = state;
        gradients.inspect_parts(shard, &**ops, scalars)?;
        scalars.read(device)?;
        let own = scalars.first_non_finite().and_then(|NonFiniteElement { bucket, element }| {
            layout.tensor_at(shard.buckets[bucket].part.start + element)
        });
        Ok(ranks.gather(&own)?.into_iter().flatten().min())
    }

    /// Returns whether the current step measures the weights that it began with: not the first
    /// step, whose weights no update has made.
    fn looks_at_updates(&self) -> bool {
        let completed = self.state.progress.step;
        let every = self.health_every_steps;
        every > 0 && completed > 0 && (completed + 1).is_multiple_of(every)
    }

    /// Adds up this rank's parts of the weights and of their last update, in steps that measure
    /// them. Forward has waited for all weights, and the moments determine the update.
    fn add_update_squares(&mut self) -> Outcome<()> {
        if !self.looks_at_updates() {
            return Ok(());
        }
        let Self { ops, state, scalars, optimizer, meter, .. } = self;
        // The norm of its gradients is not kept; it only matters to the moments.
        let last = optimizer.update(state.progress.step - 1, 0.0);
        meter.time(
            (Role::UpdateNorm, Kind::Whole),
            || work::update_norm(state.shard.saved().map(|piece| piece.flat.len()).sum()),
            || state.add_update_squares(&last, &mut **ops, scalars.update_squares()),
        )
    }

    /// Updates the weights. Under a sharded optimizer the weights of other ranks are in flight when
    /// this returns, unless overlap is off.
    fn update(&mut self, gradient_norm: f64) -> Outcome<()> {
        if self.state.is_lent() {
            self.clock.enter(Phase::Checkpoint);
            let wait_start = Instant::now();
            self.state.take_back();
            self.checkpoint_wait += wait_start.elapsed();
        }
        self.clock.enter(Phase::Optimizer);
        let Self { ops, state, gradients, optimizer, meter, .. } = self;
        let update = optimizer.update(state.progress.step, gradient_norm);
        let work = work::adamw(state.shard.elements(), state.weights.working_bytes());
        let adamw = (Role::AdamW, Kind::Whole);
        meter.time(
            adamw,
            || work,
            || state.update(&update, &|bucket| gradients.own(bucket), &**ops),
        )?;
        if self.overlaps { Ok(()) } else { self.synchronize_weights() }
    }

    /// Operations of the engine that are computed in another way than usual: a sentence each.
    pub(crate) fn fallbacks(&self) -> Vec<String> {
        self.model.fallbacks()
    }

    /// The device that computes.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Runs one step with all meters on.
    ///
    /// # Errors
    /// Those of [`step`](Self::step).
    pub(crate) fn profiled_step(
        &mut self,
        requests: impl FnOnce() -> Requests,
        profile: &mut StepProfile,
    ) -> Outcome<StepOutcome> {
        // With a deadline: no event of the profile waits behind a gather.
        self.synchronize_weights()?;
        self.device.synchronize()?;
        self.meter.start();
        self.model.meter().into_iter().for_each(Meter::start);
        let start = Instant::now();
        // What is computed for a check would count as the step's.
        let checks = self.verifier.checks(self.state.progress.step + 1);
        let checks = Checks { shift: None, suspects: false, ..checks };
        let outcome = self.checked_step(checks, requests)?;
        self.device.synchronize()?;
        let tokens = self.batches.tokens_per_step() / self.ranks.world() as u64;
        profile.set_time(tokens, start.elapsed());
        for meter in self.model.meter().into_iter().chain([&mut self.meter]) {
            if let Err(error) = meter.stop() {
                tracing::warn!("--profile-step: the times are incomplete: {error}");
                profile.set_incomplete(&error);
            }
            profile.extend(meter.counts());
        }
        Ok(outcome)
    }

    /// Times one step with all of its parts, which `body` runs.
    ///
    /// # Errors
    /// Those of `body`.
    pub fn time_step<T>(
        &mut self,
        body: impl FnOnce(&mut Self) -> Outcome<T>,
    ) -> Outcome<TimedStep<T>> {
        self.clock.start_step();
        let step = self.state.progress.step + 1;
        self.clock.progress().begin(step);
        self.injector.begin(step);
        if self.injector.any_rank_corrupts() {
            self.synchronize_weights()?;
        }
        if self.injector.corrupts() {
            self.state.corrupt(&self.device)?;
        }
        for value in [FlippedValue::Weights, FlippedValue::Moments] {
            for flip in self.injector.flips(value, Computation::First) {
                self.state.flip(value, flip, &self.device)?;
            }
        }
        let result = body(self)?;
        let time = self.clock.finish_step();
        self.take_times(time.as_ref());
        Ok(TimedStep { result, time })
    }

    /// Returns the mean loss of each rank's part of the last global batch, nats per token.
    pub(crate) fn losses_of_ranks(&self) -> impl Iterator<Item = f64> + '_ {
        let tokens = self.batches.tokens_per_step() as f64 / self.ranks.world() as f64;
        self.votes.losses().map(move |sum| sum / tokens)
    }

    /// Returns each rank's times in an earlier step, from the last vote.
    pub(crate) fn times_of_ranks(&self) -> impl Iterator<Item = StepTimes> + '_ {
        self.votes.times()
    }

    /// Returns the alarming state of each rank's GPU, from the last vote.
    pub(crate) fn alerts_of_ranks(&self) -> impl Iterator<Item = Alert> + '_ {
        self.votes.alerts()
    }

    /// Returns the alarming state of this rank's GPU, which the next votes read.
    pub(crate) fn alert(&self) -> &Arc<SharedAlert> {
        &self.alert
    }

    /// Returns the time of the last step, unless it was returned. Waits for the device.
    pub fn last_step_time(&mut self) -> Option<StepTime> {
        let time = self.clock.last_step();
        self.take_times(time.as_ref());
        time
    }

    /// Takes the times of a step for the next vote, once they are known.
    fn take_times(&mut self, time: Option<&StepTime>) {
        let Some(StepTime { phases, .. }) = time else { return };
        let measured_ns = self.gradients.take_starting_ns();
        let clock = self.clock.virtual_clock();
        let starting_ns = clock.map_or(measured_ns, |it| it.starting_ns(self.completed_steps()));
        self.times = StepTimes {
            own: OwnTime::of_step(phases, starting_ns),
            exposed_seconds: phases.comm_exposed as f64 / 1e9,
        };
    }

    /// Waits until all weights have been gathered. Call it before weights are read outside of a
    /// step. Collective: it starts gathers that nothing has needed yet.
    pub(crate) fn synchronize_weights(&mut self) -> Outcome<()> {
        let Self { state, dimensions, clock, tallies, .. } = self;
        Ok(state.synchronize(Waits { tallies, clock, dimensions: *dimensions })?)
    }

    /// Sets the master weights that this rank holds: `fill` writes elements of a tensor, from the
    /// given element on. Call [`resume_from`](Self::resume_from) afterwards.
    pub(crate) fn set_weights(
        &mut self,
        fill: impl FnMut(&Tensor, usize, &mut [f32]) -> Outcome<()>,
    ) -> Outcome<()> {
        self.synchronize_weights()?;
        self.state.set_weights(&self.device, fill)
    }

    /// Resumes from weights that were set or a state that was restored. Collective.
    pub(crate) fn resume_from(&mut self, progress: Progress) -> Outcome<()> {
        self.state.progress = progress;
        let Self { ops, state, dimensions, clock, tallies, .. } = self;
        state.all_gather_weights(Waits { tallies, clock, dimensions: *dimensions }, &**ops)?;
        self.batches.seek(progress.next_sequence);
        Ok(())
    }

    /// Returns the digest of all weights, of which each of all `ranks` adds up those that it owns.
    /// Collective, between steps.
    pub(crate) fn weights_digest(&mut self, ranks: Ranks<'_>) -> Outcome<WeightsDigest> {
        self.synchronize_weights()?;
        let own = self.state.digest(&self.device, self.state.shard.saved())?;
        Ok(ranks.add_up(own)?)
    }

    /// Returns the digest of the weights that this rank holds, if each rank holds all. None may be
    /// in flight.
    pub(crate) fn replica_digest(&self) -> Outcome<Option<WeightsDigest>> {
        let State { shard, .. } = &self.state;
        let held = || self.state.digest(&self.device, shard.pieces().cloned());
        (!shard.is_sharded()).then(held).transpose()
    }

    /// Returns the number of completed steps.
    pub(crate) fn completed_steps(&self) -> u64 {
        self.state.progress.step
    }

    /// Lends the saved state to `copy` until it has copied the state. The next update waits for the
    /// copy.
    pub(crate) fn lend_state(
        &mut self,
        ranges: Arc<[SavedRange]>,
        copy: impl FnOnce(Box<dyn Frozen>) -> Snapshot,
    ) -> Outcome<()> {
        self.synchronize_weights()?;
        self.state.lend(ranges, copy)
    }

    /// Returns the layout of this rank's state.
    pub(crate) fn saved_layout(&self) -> SavedLayout<'_> {
        self.state.saved_layout()
    }

    /// Takes the memory that checkpoints are copied to.
    pub(crate) fn take_staging(&mut self) -> Option<Staging> {
        self.staging.take()
    }

    /// Returns the progress of training.
    pub(crate) fn progress(&self) -> Progress {
        self.state.progress
    }

    /// Returns the data of this rank.
    pub(crate) fn batches(&self) -> &Batches {
        &self.batches
    }

    /// Returns the injector of this rank's faults.
    pub(crate) fn injector(&self) -> &Injector {
        &self.injector
    }

    /// Returns the clock of the phases.
    pub(crate) fn clock(&self) -> &PhaseClock {
        &self.clock
    }

    /// Stops the clock until the next step is started: the time until then is in no step.
    pub(crate) fn pause_clock(&mut self) {
        self.clock.pause();
    }

    /// Keeps a trace of each step from now on, until it is taken.
    pub(crate) fn start_trace(&mut self) {
        self.clock.start_trace();
        self.tallies.get_mut().start_trace();
    }

    /// Returns the trace, and stops tracing.
    pub(crate) fn take_trace(&mut self) -> StepTrace {
        let Tallies { gradients, weights, windows, .. } = self.tallies.get_mut();
        StepTrace {
            phases: self.clock.take_trace(),
            reductions: gradients.take_trace(),
            gathers: [weights.take_trace(), windows.take_trace()].concat(),
        }
    }

    /// Returns how long updates have waited for checkpoints to copy the state since the last call.
    pub(crate) fn take_checkpoint_wait(&mut self) -> Duration {
        std::mem::take(&mut self.checkpoint_wait)
    }

    /// Returns the totals of buckets on this rank by operation and size; empty on a single rank.
    pub(crate) fn bucket_records(&self) -> Vec<BucketRecord> {
        if self.ranks.is_alone() { Vec::new() } else { self.tallies.borrow().buckets().collect() }
    }

    /// Returns the traffic of this rank over each dimension; empty on a single rank.
    pub(crate) fn traffic(&self) -> Vec<DimensionTraffic> {
        if self.ranks.is_alone() { Vec::new() } else { self.tallies.borrow().traffic().collect() }
    }

    /// Returns the communication since the last call.
    pub(crate) fn take_communication(&mut self) -> Communication {
        self.tallies.get_mut().take_rest()
    }
}

impl<'world> Trainer<'world> {
    /// Returns the resources of waits for other ranks.
    fn waits(&self) -> Waits<'_, 'world> {
        let Self { tallies, clock, dimensions, .. } = self;
        Waits { tallies, clock, dimensions: *dimensions }
    }

    /// Returns all ranks.
    pub(crate) fn ranks(&self) -> Ranks<'world> {
        self.ranks
    }

    /// Lets `fill` replace the state that a checkpoint holds. Call
    /// [`resume_from`](Self::resume_from) after it has done so.
    pub(crate) fn fill_state<T>(
        &mut self,
        fill: impl FnOnce(StateBuffersMut<'_>) -> Outcome<T>,
    ) -> Outcome<T> {
        self.state.fill_buffers(&self.device, fill)
    }
}
