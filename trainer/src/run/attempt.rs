//! Attempt of a run: the loop over steps, from the restored state to the last step, a stop, or a
//! failure.
use std::time::Duration;

use launch::signals::SignalFlags;
use models::ModelConfig;

use super::beginning::pods_again;
use super::calibration;
use super::peers::Peers;
use super::start_clock::StartClock;
use super::stop::{StopConditions, StopReason};
use super::stop_request::StopPoint;
use super::together::Together;
use super::tracing::Tracing;
use super::transports::TransportProbe;
use crate::checkpoints::{Checkpointer, Ended};
use crate::config::Config;
use crate::failure::Outcome;
use crate::step::{Evaluation, Requests, StepOutcome, Trainer};
use crate::tier_set::TierSet;
use crate::timing::matmul_probe::MatmulProbe;
use crate::timing::phase::StepTime;
use crate::timing::profile::{Profile, Rates};
use record::Trigger;
use record::golden::GoldenWatch;
use record::phase::{Phase, PhaseTimes};
use record::slow_ranks::{Detector, Findings, StepTimes};
use record::text::unix_time::unix_ms;
use record::{Anomaly, SteadyWatch, StepSample, Straggler};
use telemetry::Events;
use telemetry::fact::Fact;
use telemetry::hardware::AlertWatch;
use telemetry::{LossWatch, Observed};

/// Evaluation of the held-out loss at an interval.
#[derive(Debug)]
pub(super) struct PeriodicEvaluation {
    pub(super) every_steps: u64,
    pub(super) evaluation: Evaluation,
}

/// Measurements of the machine between steps.
#[derive(Debug)]
pub(super) struct Probes<'run> {
    pub(super) matmul: MatmulProbe,
    /// Profile of one step, if requested.
    pub(super) profile: Option<Profile>,
    /// Model of the run, whose weights the profile names.
    pub(super) model: &'run ModelConfig,
    /// Number of ranks on this machine, which measure at the same time.
    pub(super) local_world: usize,
    /// Trace of some steps, if requested.
    pub(super) tracing: Option<Tracing>,
    /// Transports between ranks, where they can be known.
    pub(super) transports: Option<TransportProbe<'run>>,
}

/// Parts of one attempt.
#[derive(Debug)]
pub(super) struct RunningAttempt<'run, 'world> {
    pub(super) trainer: &'run mut Trainer<'world>,
    pub(super) checkpointer: &'run mut Checkpointer,
    pub(super) peers: &'run Peers,
    pub(super) events: &'run Events,
    pub(super) signals: &'run SignalFlags,
    pub(super) stop_point: &'run StopPoint,
    pub(super) evaluation: Option<PeriodicEvaluation>,
    pub(super) probes: Probes<'run>,
    pub(super) stop_conditions: StopConditions,
    /// Count of steady steps, on rank 0.
    pub(super) steady: Option<SteadyWatch>,
    /// Detector of slow ranks, on rank 0.
    pub(super) slow_ranks: Option<Detector>,
    /// Finds alarming states of the ranks' GPUs.
    pub(super) alerts: AlertWatch,
    /// Compares losses with golden ones, where there are any.
    pub(super) golden: Option<GoldenWatch>,
    /// Finds outliers among the losses.
    pub(super) losses: LossWatch,
    /// Clock of the start, until the first step is done.
    pub(super) start: Option<StartClock>,
    /// Configuration that names the status of the job's pods, on rank 0.
    pub(super) config_of_pods: Option<&'run Config>,
    /// First step of this attempt.
    pub(super) first_step: u64,
    /// Last step, if its time is not known yet: on a device, which nothing waits for.
    pub(super) untimed: Option<PendingStep>,
}

/// Step whose time is not known yet.
#[derive(Debug)]
pub(super) struct PendingStep {
    sample: StepSample,
    ended_unix_ms: u64,
}

/// Step, and the evaluation after it.
struct StepResult {
    outcome: StepOutcome,
    /// Held-out loss, if it was evaluated.
    evaluation_loss: Option<f64>,
}

/// Votes of this rank in a step.
#[derive(Debug, Clone, Copy)]
struct Ballot<'run> {
    checkpointer: &'run Checkpointer,
    signals: &'run SignalFlags,
    stop_point: &'run StopPoint,
    is_measured: bool,
}

impl Ballot<'_> {
    /// Returns the requests for the end of a step, in which another vote on a stop may follow.
    fn requests(self, step: u64, rank: usize, follows: bool) -> Requests {
        let due = self.checkpointer.due(step, rank);
        // Always taken: a save that is due anyway satisfies the request.
        let trigger = self.checkpointer.trigger();
        if self.signals.take_checkpoint_request() {
            trigger.request(Trigger::Signal);
        }
        let requested = trigger.take();
        Requests {
            save: if requested.is_some() { TierSet::ALL } else { due },
            trigger: requested.or((!due.is_empty()).then_some(Trigger::Cadence)),
            stop: self.stop(follows),
            is_measured: self.is_measured,
            save_is_ready: self.checkpointer.is_ready(),
            failing_copies: self.checkpointer.failing_copies(),
        }
    }

    /// Returns whether a stop is requested.
    fn stop(self, follows: bool) -> bool {
        self.stop_point.vote(|| self.signals.stop_requested(), follows)
    }
}

impl RunningAttempt<'_, '_> {
    /// Trains until there is a reason to stop, and saves a checkpoint if the end requires one.
    pub(super) fn run(&mut self) -> Outcome<StopReason> {
        let reason = self.train_and_save();
        self.report_corruption();
        self.record_checks();
        reason
    }

    fn train_and_save(&mut self) -> Outcome<StopReason> {
        let reason = self.tested_steps();
        self.stop_point.end_steps(self.trainer.completed_steps());
        self.report_untimed();
        let reason = reason?;
        if reason == StopReason::Requested {
            // The stop must not wait for a removal; old checkpoints are removed when the run
            // resumes.
            self.checkpointer.stop_retention();
        }
        let last = self.trainer.completed_steps();
        self.finish_save(false).map_err(|failure| failure.at_step(last))?;
        let is_due = self.checkpointer.is_due_at_end(last);
        if !is_due && reason != StopReason::Requested {
            self.retry_failed_save().map_err(|failure| failure.at_step(last))?;
        }
        let saved = match reason {
            StopReason::Requested => self.save_at_end(Trigger::Stop, "a stop was requested"),
            StopReason::TargetLoss if is_due => {
                self.save_at_end(Trigger::End, "the target loss is reached")
            }
            StopReason::LastStep if is_due => {
                self.save_at_end(Trigger::End, "the last step is done")
            }
            StopReason::Measured if is_due => {
                self.save_at_end(Trigger::End, "enough steps are measured")
            }
            StopReason::TargetLoss | StopReason::LastStep | StopReason::Measured => Ok(()),
        };
        let is_stopping = reason == StopReason::Requested;
        let signals = self.signals;
        if saved.is_ok() {
            let stop_requested = move || is_stopping || signals.stop_requested();
            let together = Together {
                ranks: self.trainer.ranks(),
                purpose: "finish copies of checkpoints",
                // Copies have limits of their own.
                timeout: Duration::MAX,
                stop_requested: &|| false,
            };
            together.run(|| {
                self.checkpointer.finish_copies(&stop_requested);
                if !is_stopping {
                    self.checkpointer.finish_retention(&stop_requested);
                }
                Ok(())
            })?;
        }
        let profiled = self.finish_profile();
        saved.and(profiled).map(|()| reason)
    }

    /// Trains until there is a reason to stop, if the ranks compute the same before.
    fn tested_steps(&mut self) -> Outcome<StopReason> {
        let tested = self.trainer.self_test();
        self.report_corruption();
        tested?;
        self.steps()
    }

    /// Trains until there is a reason to stop. Makes no step if the restored steps have reached the
    /// target.
    fn steps(&mut self) -> Outcome<StopReason> {
        if self.stop_conditions.is_target_reached {
            return Ok(StopReason::TargetLoss);
        }
        while self.trainer.completed_steps() < self.stop_conditions.last_step {
            let step = self.trainer.completed_steps() + 1;
            self.events.begin_step(step);
            self.stop_point.begin_step(step);
            let end = self.step(step);
            self.report_corruption();
            let end = end.map_err(|failure| failure.at_step(step))?;
            if let Some(reason) = end {
                return Ok(reason);
            }
        }
        // The restored step was the last one.
        Ok(StopReason::LastStep)
    }

    /// Makes one step, then a save and measurements of the machine if they are due. Returns why
    /// training ends with this step, if it does.
    fn step(&mut self, step: u64) -> Outcome<Option<StopReason>> {
        if let Some(tracing) = &mut self.probes.tracing {
            tracing.before(step, self.trainer)?;
        }
        let stepped = self.timed_step(step)?;
        if let Some(golden) = &mut self.golden {
            let of_ranks = self.trainer.losses_of_ranks();
            golden.observe(step, stepped.outcome.loss, of_ranks)?;
        }
        if let Some(mut start) = self.start.take() {
            let parts = start.made_first_step();
            if let Some(pods) = self.config_of_pods.and_then(pods_again) {
                self.events.note_for_record(Fact::Pods(pods));
            }
            self.events.first_step(parts);
        }
        self.check_alerts(step);
        self.check_slow_ranks(step);
        let end = self.end_after(step, &stepped);
        self.trace(step, end.is_some())?;
        let requests = stepped.outcome.requests;
        let ranks = self.trainer.ranks();
        self.checkpointer.watch_copies(step, requests.failing_copies, &ranks)?;
        if requests.save_is_ready && self.checkpointer.is_saving() {
            self.advance_save()?;
        }
        // A requested stop saves at its end.
        if !requests.save.is_empty() && end != Some(StopReason::Requested) {
            let why = requests.trigger.unwrap_or(Trigger::Cadence);
            self.save(end, requests.save, why)?;
        }
        self.record_transports()?;
        if !requests.stop {
            self.measure_machine(step)?;
        }
        Ok(end)
    }

    /// Reports wrong values that checks have found, and how many checks there were.
    fn report_corruption(&mut self) {
        for finding in self.trainer.take_corruptions() {
            self.peers.corruption(finding);
            self.record_checks();
        }
    }

    /// Adds the checks for silent data corruption to the record.
    fn record_checks(&self) {
        let mut record = self.trainer.corruption_record();
        self.peers.name_gpus(&mut record);
        self.events.note_for_record(Fact::Corruption(record));
    }

    /// Writes the trace if this is the last traced step.
    fn trace(&mut self, step: u64, is_end: bool) -> Outcome<()> {
        let Some(tracing) = &mut self.probes.tracing else { return Ok(()) };
        let (dir, hosts) = (self.peers.dir(), self.peers.hosts());
        if let Err(text) = tracing.after(step, is_end, self.trainer, dir, hosts)? {
            let text = format!("--trace-steps: not written: {text}");
            self.events.warn(Anomaly { step: Some(step), rank: None, text });
        }
        Ok(())
    }

    /// Reports alarming states of the ranks' GPUs.
    fn check_alerts(&mut self, step: u64) {
        for finding in self.alerts.take(self.trainer.alerts_of_ranks()) {
            self.peers.alarming(step, &finding);
            self.save_for_health();
        }
    }

    /// Requests a checkpoint, if configured for nodes that may fail soon.
    fn save_for_health(&self) {
        if self.checkpointer.settings().on_verdict {
            self.checkpointer.trigger().request(Trigger::Health);
        }
    }

    /// Compares the ranks' times in the steps before, on rank 0.
    fn check_slow_ranks(&mut self, step: u64) {
        let Some(detector) = &mut self.slow_ranks else { return };
        let mut times = self.trainer.times_of_ranks().peekable();
        let own = times.peek().copied().unwrap_or(StepTimes::ZERO);
        let seconds = own.own.total() + own.exposed_seconds;
        let Findings { stragglers, notices } = detector.take(step - 1, seconds, times);
        self.report_stragglers(&stragglers);
        for notice in notices {
            let step = Some(notice.until_step.unwrap_or(notice.since_step));
            self.events.warn(Anomaly { step, rank: None, text: notice.text() });
        }
    }

    fn report_stragglers(&mut self, found: &[Straggler]) {
        for straggler in found {
            let throttled = self.alerts.throttled(straggler.rank);
            self.peers.straggler(*straggler, throttled.as_deref());
            if straggler.until_step.is_none() {
                self.save_for_health();
            }
        }
    }

    /// Returns why training ends with a step, if it does. A run that has reached its target or its
    /// last step is complete, whatever else would end it: there is nothing to resume.
    fn end_after(&self, step: u64, result: &StepResult) -> Option<StopReason> {
        let StepResult { outcome, evaluation_loss } = result;
        let StopConditions { last_step, target_loss, .. } = self.stop_conditions;
        if target_loss.is_some_and(|target| target.is_reached(outcome.loss, *evaluation_loss)) {
            return Some(StopReason::TargetLoss);
        }
        if step == last_step {
            return Some(StopReason::LastStep);
        }
        if outcome.requests.is_measured {
            return Some(StopReason::Measured);
        }
        outcome.requests.stop.then_some(StopReason::Requested)
    }

    /// Makes one step with its evaluation, timed as a whole.
    fn timed_step(&mut self, step: u64) -> Outcome<StepResult> {
        let is_due = |periodic: &&mut PeriodicEvaluation| step.is_multiple_of(periodic.every_steps);
        let evaluation = self.evaluation.as_mut().filter(is_due);
        let ballot = Ballot {
            checkpointer: self.checkpointer,
            signals: self.signals,
            stop_point: self.stop_point,
            is_measured: self.steady.as_ref().is_some_and(SteadyWatch::is_done),
        };
        let follows = evaluation.is_some();
        let profile = self.probes.profile.as_mut().filter(|profile| profile.is_of(step));
        let timed = self.trainer.time_step(|trainer| {
            let rank = trainer.ranks().rank();
            let requests = || ballot.requests(step, rank, follows);
            let mut outcome = match profile {
                Some(profile) => trainer.profiled_step(requests, &mut profile.measured)?,
                None => trainer.step(requests)?,
            };
            let Some(periodic) = evaluation else {
                return Ok(StepResult { outcome, evaluation_loss: None });
            };
            let evaluated = trainer.evaluate(&mut periodic.evaluation, || ballot.stop(false))?;
            outcome.requests.stop |= evaluated.stop;
            outcome.communication = outcome.communication.and(trainer.take_communication());
            Ok(StepResult { outcome, evaluation_loss: Some(evaluated.loss) })
        })?;
        let StepResult { outcome, evaluation_loss } = timed.result;
        let mut communication = outcome.communication;
        if let Some((clock, time)) = self.trainer.clock().virtual_clock().zip(timed.time) {
            communication = clock.communication(communication, time.phases.comm_exposed);
        }
        let Observed { z_score, spike } = self.losses.observe(step, outcome.loss);
        if let Some(spike) = spike.filter(|_| self.trainer.ranks().rank() == 0) {
            self.events.warn_later(Anomaly { step: Some(step), rank: None, text: spike.text() });
        }
        let sample = StepSample {
            attempt: self.checkpointer.attempt(),
            step,
            loss: outcome.loss,
            gradient_norm: outcome.gradient_norm,
            parameter_norm: outcome.health.map(|health| health.parameter_norm),
            update_ratio: outcome.health.map(|health| health.update_ratio),
            loss_z: z_score,
            learning_rate: outcome.learning_rate,
            tokens: self.trainer.batches().tokens_per_step(),
            evaluation_loss,
            phases: PhaseTimes::default(),
            comm_total_ns: communication.total_ns,
            comm_hidden_ns: communication.hidden_ns,
            first_bucket_lead_ns: communication.first_bucket_lead_ns,
            comm_bytes: communication.bytes,
            wall_ns: 0,
        };
        // The time is that of the earliest untimed step: this one, or the one before.
        let before = self.untimed.replace(PendingStep { sample, ended_unix_ms: unix_ms() });
        if let Some(time) = timed.time {
            let timed = before.or_else(|| self.untimed.take());
            self.report(timed, time);
        }
        Ok(StepResult { outcome, evaluation_loss })
    }

    /// Reports the last step if its time was not known.
    fn report_untimed(&mut self) {
        if let Some(time) = self.trainer.last_step_time() {
            let untimed = self.untimed.take();
            self.report(untimed, time);
        }
    }

    fn report(&mut self, untimed: Option<PendingStep>, StepTime { phases, wall_ns }: StepTime) {
        let Some(PendingStep { sample, ended_unix_ms }) = untimed else { return };
        let sample = StepSample { phases, wall_ns, ..sample };
        let of_phase = |phase| Duration::from_nanos(phases.get(phase));
        let evaluation = sample.evaluation_loss.map(|_| of_phase(Phase::Eval));
        self.stop_point.timed_step(Duration::from_nanos(phases.step_ns()), evaluation);
        if let Some(profile) = self.probes.profile.as_mut().filter(|it| it.is_of(sample.step)) {
            profile.set_phases(phases);
        }
        if let Some(steady) = &mut self.steady {
            steady.observe(&sample);
        }
        self.events.step_at(sample, ended_unix_ms);
    }

    /// Records the transports after the first step of the attempt, when NCCL has connected all
    /// ranks. The time for this is in no step.
    fn record_transports(&mut self) -> Outcome<()> {
        let Some(probe) = self.probes.transports.take() else { return Ok(()) };
        self.trainer.pause_clock();
        self.peers.transports(probe.gather()?);
        Ok(())
    }

    /// Measures the matmul rate after some of the steps, and prints the profile after the profiled
    /// step. This time is in no step, and no communication is in flight meanwhile.
    fn measure_machine(&mut self, step: u64) -> Outcome<()> {
        let is_profiled = self.probes.profile.as_ref().is_some_and(|profile| profile.is_of(step));
        if is_profiled {
            self.report_untimed();
        }
        let Self { trainer, probes, .. } = self;
        let is_due = probes.matmul.is_due(step, self.first_step, self.stop_conditions.likely_last);
        if !is_due && !is_profiled {
            return Ok(());
        }
        trainer.synchronize_weights()?;
        trainer.pause_clock();
        if is_due && step == self.first_step && !trainer.ranks().is_alone() {
            let (device, ranks) = (trainer.device(), trainer.ranks());
            let rates =
                calibration::measure(&mut probes.matmul, device, &ranks, probes.local_world)?;
            self.peers.calibrated(step, rates);
        }
        if is_due {
            probes.matmul.measure_moment(trainer.device())?;
        }
        if is_profiled { self.report_profile() } else { Ok(()) }
    }

    /// Measures the rates that the profile needs, prints it and adds it to the record.
    fn report_profile(&mut self) -> Outcome<()> {
        let Self { trainer, probes, events, .. } = self;
        let Probes { matmul, profile, model, local_world, .. } = probes;
        let Some(profile) = profile.take() else { return Ok(()) };
        let rates = Rates::measure(matmul, trainer.device(), *local_world)?;
        profile.print(&rates);
        if let Some(profile) = profile.record(&rates, model) {
            events.note_for_record(Fact::Profile(Box::new(profile)));
        }
        Ok(())
    }

    /// Finishes the profile at the end of the attempt: prints it if the last step was profiled and
    /// its save came first, or warns that the requested step was not reached.
    fn finish_profile(&mut self) -> Outcome<()> {
        let Some(profile) = &self.probes.profile else { return Ok(()) };
        let last = self.trainer.completed_steps();
        if !profile.is_of(last) {
            profile.warn_missing(last);
            return Ok(());
        }
        self.trainer.synchronize_weights()?;
        self.report_profile()
    }

    /// Starts a save that is due or requested, and waits for it unless training continues
    /// meanwhile. `end` is why training ends with this step, if it does.
    fn save(&mut self, end: Option<StopReason>, due: TierSet, why: Trigger) -> Outcome<()> {
        if end.is_some() {
            self.finish_save(false)?;
        }
        let due = if end.is_some() { TierSet::ALL } else { due };
        if !self.start_save(due, why)? {
            return Ok(());
        }
        let is_in_background = self.checkpointer.settings().background && end.is_none();
        if is_in_background { Ok(()) } else { self.finish_save(end.is_none()) }
    }

    /// Saves again if another tier has taken over from one that failed after the last step.
    fn retry_failed_save(&mut self) -> Outcome<()> {
        while self.checkpointer.is_overdue() {
            self.start_save(TierSet::default(), Trigger::End)?; // it adds pending tiers
            self.finish_save(false)?;
        }
        Ok(())
    }

    /// Saves at the end of the attempt; an error if the save fails on all tiers.
    fn save_at_end(&mut self, why: Trigger, end: &str) -> Outcome<()> {
        let step = self.trainer.completed_steps();
        let mut tiers_left = self.checkpointer.save_tiers();
        loop {
            self.start_save(TierSet::ALL, why)?;
            let ended = self.checkpointer.finish(self.trainer);
            match ended.map_err(|failure| failure.at_step(step))? {
                Some(Ended::NotSaved(failed)) if tiers_left > 1 => {
                    tiers_left -= 1;
                    self.checkpointer.warn_not_saved(failed.retried(), false);
                }
                Some(Ended::NotSaved(failed)) => {
                    return Err(self.checkpointer.not_saved_at_end(failed, end));
                }
                ended @ (Some(Ended::Committed { .. }) | None) => {
                    self.end_save(ended, false);
                    return Ok(());
                }
            }
        }
    }

    /// Starts a save; its time is in the next step. The recorded steps are made durable before the
    /// ranks vote, so that a committed checkpoint never has more steps than the files.
    fn start_save(&mut self, due: TierSet, why: Trigger) -> Outcome<bool> {
        let step = self.trainer.completed_steps();
        self.report_untimed();
        self.trainer.clock().enter(Phase::Checkpoint);
        if !self.checkpointer.is_saving() {
            self.trainer.compare_replicas().map_err(|failure| failure.at_step(step))?;
        }
        let veto = Box::new(self.events.sync());
        let started = self.checkpointer.start(self.trainer, due, why, veto);
        started.map_err(|failure| failure.at_step(step))
    }

    /// Advances the save in flight.
    fn advance_save(&mut self) -> Outcome<()> {
        self.trainer.clock().enter(Phase::Checkpoint);
        let ended = self.checkpointer.advance(self.trainer)?;
        self.end_save(ended, true);
        Ok(())
    }

    /// Waits for the save in flight, if there is one; `continues` says whether training does.
    fn finish_save(&mut self, continues: bool) -> Outcome<()> {
        if !self.checkpointer.is_saving() {
            return Ok(());
        }
        self.trainer.clock().enter(Phase::Checkpoint);
        let ended = self.checkpointer.finish(self.trainer)?;
        self.end_save(ended, continues);
        Ok(())
    }

    fn end_save(&mut self, ended: Option<Ended>, continues: bool) {
        match ended {
            Some(Ended::Committed { step, stragglers }) => {
                self.record_commit(step);
                self.report_stragglers(&stragglers);
            }
            Some(Ended::NotSaved(failed)) => self.checkpointer.warn_not_saved(failed, continues),
            None => {}
        }
    }

    fn record_commit(&mut self, step: u64) {
        self.stop_point.committed(step, self.checkpointer.last_save());
        if let Err(error) = self.events.record(Fact::Committed(step)) {
            self.checkpointer.warn_not_recorded(step, &error.to_string());
        }
    }
}
