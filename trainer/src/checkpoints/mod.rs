//! Schedule of a run's checkpoints, and handling of failed saves.

pub mod bench;
mod bench_folder;
mod cadence;
mod copies;
mod failures;
pub mod open;
mod partner;
mod progress;
mod recovery;
mod save_tier;
pub(crate) mod state_map;
mod takeover;
pub mod tiers;
mod trigger;
mod wait;

use std::sync::Arc;
use std::time::{Duration, Instant};

use checkpoint::promotion::{Promoted, RouteStatus};
use checkpoint::tier::Scope;
use checkpoint::{
    Claim, Member, Reads, Save, SaveReport, Saver, SharedFailpoints, Tiers, Unusable, Veto,
};
use serde_json::json;

use crate::config::CheckpointConfig;
use crate::failure::Outcome;
use crate::fault_injection::Injector;
use crate::ranks::Ranks;
use crate::step::{SavedRange, Trainer};
use cadence::{Cadence, SaveCost};
use copies::{Copies, CopyWatch};
use failures::Failures;
use open::Opened;
use record::Straggler;
use record::slow_ranks::{Detector, OwnTime, Rule, StepTimes};
use record::{Anomaly, Attempt, CheckpointSaved, Checkpoints, Recovery, Saves, TierRecord};
use save_tier::SaveTier;
use takeover::NotSaved;
use telemetry::Events;
use tiers::Planned;

use crate::tier_set::TierSet;
pub(crate) use partner::{ChosenPartner, partner};
pub(crate) use trigger::SaveTrigger;
use wait::{REPORT_AFTER, Wait};

use record::statistics::Distribution;
use record::{PromotedTo, Trigger};

/// Rule for slow writers: times of writing are much noisier than those of steps.
const SLOW_WRITERS: Rule =
    Rule { block_steps: 1, least_slower: 0.2, least_slower_of_few: 0.2, false_per_1000h: 1.0 };

/// Interval of saves for the bound on false names in an hour: as frequent as usual.
const SECONDS_BETWEEN_SAVES: f64 = 60.0;

/// Interval between checks while waiting for the removal of old checkpoints.
const RETENTION_POLL: Duration = Duration::from_millis(5);

/// Saves and resumes checkpoints in one attempt.
#[derive(Debug)]
pub(crate) struct Checkpointer {
    tiers: Tiers,
    planned: Vec<Planned>,
    save_tier: SaveTier,
    cadence: Cadence,
    /// Copies to each farther tier that all ranks can use.
    copies: Option<Copies>,
    copy_watch: CopyWatch,
    /// Figures of copies from tiers that were saved on before.
    earlier_routes: Vec<RouteStatus>,
    trigger: SaveTrigger,
    /// Reason why the save in flight was started.
    why: Trigger,
    /// Tiers that the save in flight must reach.
    due: TierSet,
    /// Tiers that skipped or failed saves should have reached: the next save does.
    pending_tiers: TierSet,
    /// True if another tier has taken over from a failed one: pending tiers are saved at
    /// once.
    has_moved: bool,
    failures: Failures,
    /// True if a failed save was reported, with no commit on the nearest tier since.
    is_failure_reported: bool,
    /// Tiers to which copies were submitted since the present tier is saved on.
    submitted: TierSet,
    /// True if the save in flight has been reported as the reason for skipped saves.
    is_skip_reported: bool,
    config: CheckpointConfig,
    claim: Claim,
    rank: usize,
    saver: Option<Saver>,
    /// Ranges of the saved boxes in the state.
    ranges: Arc<[SavedRange]>,
    /// Number of saves started.
    started: u32,
    /// Injects faults into the last save and what follows it.
    injector: Injector,
    /// Time for which the save in flight has stopped training.
    stall: Duration,
    /// Name of the checkpoint that the state was restored from or last saved as.
    parent: Option<String>,
    committed_step: Option<u64>,
    /// Recovery of the restored state.
    recovery: Option<Recovery>,
    saves: Saves,
    /// Compares the ranks' times of writing, on rank 0.
    slow_writers: Option<Detector>,
    events: Events,
}

/// Outcome of a save.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The checkpoint is committed.
    Committed {
        step: u64,
        /// Ranks that have become slow writers since, or no longer are.
        stragglers: Vec<Straggler>,
    },
    /// The checkpoint is not committed, although no rank was lost.
    NotSaved(NotSaved),
}

impl Checkpointer {
    /// Claims the folder for an attempt, which fences earlier attempts that may still be running.
    pub(crate) fn claim(
        opened: Opened,
        config: CheckpointConfig,
        attempt: u32,
        ranks: Ranks<'_>,
        events: Events,
    ) -> Outcome<Self> {
        let Opened { members, planned, unusable } = opened;
        let tiers = Tiers::new(members).with_unusable(unusable);
        let claim = tiers.claim_attempt(attempt.into(), &ranks.with_timeout(config.deadline))?;
        let mut checkpointer = Self {
            save_tier: SaveTier::new(takeover::tiers_to_save_on(&tiers, &planned)),
            cadence: Cadence::new(&planned, config.mean_time_between_failures, ranks.world()),
            tiers,
            planned,
            copies: None,
            copy_watch: CopyWatch::default(),
            earlier_routes: Vec::new(),
            trigger: SaveTrigger::default(),
            why: Trigger::Cadence,
            due: TierSet::default(),
            pending_tiers: TierSet::default(),
            has_moved: false,
            failures: Failures::default(),
            is_failure_reported: false,
            submitted: TierSet::default(),
            is_skip_reported: false,
            config,
            claim,
            rank: ranks.rank(),
            saver: None,
            ranges: Arc::default(),
            started: 0,
            injector: Injector::default(),
            stall: Duration::ZERO,
            parent: None,
            committed_step: None,
            recovery: None,
            saves: Saves::default(),
            slow_writers: (ranks.rank() == 0)
                .then(|| Detector::new(vec![(0..ranks.world()).collect()], SLOW_WRITERS)),
            events,
        };
        if ranks.rank() == 0 {
            checkpointer.warn_of_tiers();
        }
        Ok(checkpointer)
    }

    /// Warns of tiers that are left out, and of tiers in unusual places.
    fn warn_of_tiers(&mut self) {
        for Unusable { tier, rank, reason, reads } in self.tiers.unusable() {
            let use_of_it = match reads {
                Reads::All => "is only read",
                Reads::Transient | Reads::Nothing => "is not used",
            };
            self.warn_of_rank(None, Some(rank), format!("tier {tier} {use_of_it}: {reason}"));
        }
        for position in takeover::usable(&self.tiers) {
            let Member { store, .. } = &self.tiers.members()[position];
            for path in store.foreign_claims().unwrap_or_default() {
                let text = "no attempt of a run writes such a number; ignored, and can be removed";
                self.warn(None, format!("{}: {text}", path.display()));
            }
        }
        let is_default = self.planned.len() == 1;
        let warnings: Vec<_> = self.planned.iter().filter_map(tiers::path_warning).collect();
        for text in warnings.into_iter().filter(|_| !is_default) {
            self.warn(None, text);
        }
    }

    /// Returns the number of the attempt: the requested one, or a larger one if that was claimed
    /// before.
    pub(crate) fn attempt(&self) -> u32 {
        self.claim.attempt as u32
    }

    /// Returns the configuration.
    pub(crate) fn settings(&self) -> &CheckpointConfig {
        &self.config
    }

    /// Returns the places of checkpoints, for messages.
    pub(crate) fn places(&self) -> String {
        let places: Vec<_> = self.planned.iter().map(|tier| tier.address.as_str()).collect();
        places.join(" or ")
    }

    /// Returns how the restored state was read, equal on all ranks; `None` without a restore.
    pub(crate) fn recovery(&self) -> Option<&Recovery> {
        self.recovery.as_ref()
    }

    /// Returns the tiers that the restored state came from, where there are several.
    pub(crate) fn restored_from(&self) -> Option<String> {
        self.recovery.as_ref().filter(|_| self.planned.len() > 1).map(ToString::to_string)
    }

    /// Updates the failure rate with the run's earlier attempts.
    pub(crate) fn observe(&mut self, attempts: &[Attempt]) {
        self.cadence.observe(attempts);
    }

    /// Returns the newest step known to be committed.
    pub(crate) fn committed_step(&self) -> Option<u64> {
        self.committed_step
    }

    /// Returns the places of checkpoints, for the record.
    pub(crate) fn tiers(&self) -> Vec<TierRecord> {
        self.planned.iter().map(Planned::record).collect()
    }

    /// Returns the figures of the saves and of their copies; `None` without a save.
    pub(crate) fn figures(&self) -> Option<Checkpoints> {
        let saved = Checkpoints::of(&self.saves, self.routes().iter().map(promoted_to).collect())?;
        Some(Checkpoints { cadence: self.cadence.calculated(), ..saved })
    }

    /// Returns the time that the last save took until its commit.
    pub(crate) fn last_save(&self) -> Option<Duration> {
        self.saves.committed.last().map(|saved| Duration::from_nanos(saved.save_ns))
    }

    /// Returns the trigger that requests a save after the current step.
    pub(crate) fn trigger(&self) -> &SaveTrigger {
        &self.trigger
    }

    /// Restores the newest usable checkpoint into the trainer; `None` without a checkpoint.
    pub(crate) fn resume(&mut self, trainer: &mut Trainer<'_>) -> Outcome<Option<u64>> {
        let start = Instant::now();
        let ranks = trainer.ranks().with_timeout(self.config.deadline);
        let restored = trainer.fill_state(|state| {
            let mut held = state_map::held(state);
            let mut parts: Vec<_> = held.iter_mut().map(state_map::Held::as_part).collect();
            Ok(self.tiers.resume(&mut parts, &ranks)?)
        })?;
        let Some(restored) = restored else {
            self.start_copies(trainer)?;
            return Ok(None);
        };
        let read = recovery::of_all_ranks(start.elapsed(), &restored.sources, ranks)?;
        for rejected in &restored.rejected {
            let text = format!("checkpoint {rejected} is not usable, trying an older one");
            self.warn(None, text);
        }
        for text in &restored.warnings {
            self.warn(None, text.clone());
        }
        trainer.resume_from(progress::of_restored(&restored)?)?;
        let weights = Some(trainer.weights_digest(ranks)?.to_string());
        self.recovery = Some(Recovery { weights, ..read });
        self.start_copies(trainer)?;
        self.committed_step = Some(restored.step);
        self.resume_copies(&restored.checkpoint, &ranks)?;
        self.parent = Some(restored.checkpoint);
        Ok(Some(restored.step))
    }

    /// Takes the staging memory of a trainer whose state is complete.
    pub(crate) fn attach(&mut self, trainer: &mut Trainer<'_>, partner: Option<&ChosenPartner>) {
        let saved = state_map::saved(&trainer.saved_layout());
        self.ranges = saved.ranges.into();
        let staging = trainer.take_staging().expect("attached once");
        let store = Arc::clone(&self.present().store);
        let rank = trainer.ranks().rank();
        let saver = Saver::new(store, rank, saved.boxes, staging, self.config.deadline);
        self.saver = Some(saver.with_partner(partner.map(|chosen| chosen.partner)));
    }

    /// Returns the tiers that this rank wants a checkpoint of this step, counted from 1, to reach.
    pub(crate) fn due(&self, step: u64, rank: usize) -> TierSet {
        let overdue = if self.has_moved { self.pending_tiers } else { TierSet::default() };
        self.cadence.due(step, rank).union(overdue)
    }

    /// Returns whether a save is required after the last step.
    pub(crate) fn is_due_at_end(&self, step: u64) -> bool {
        self.config.at_end && self.committed_step != Some(step)
    }

    /// Starts to remove old checkpoints in the background, on rank 0; the next save waits for the
    /// removal before it writes. Call this after a save, and when a run resumes: an attempt that
    /// was stopped on request leaves old checkpoints.
    pub(crate) fn start_retention(&mut self) {
        let Member { scope, store, .. } = self.present();
        if self.rank != 0 && *scope == Scope::Shared {
            return;
        }
        let store = Arc::clone(store);
        let (attempt, keep) = (self.claim.attempt, self.planned[self.save_tier.position()].keep);
        let injector = self.injector.clone();
        let (events, step) = (self.events.clone(), self.committed_step);
        self.saver().then(Box::new(move || {
            let report = store.apply_retention(attempt, keep, &injector);
            let anomaly = |text| Anomaly { step, rank: None, text };
            report.warnings.into_iter().map(anomaly).for_each(|anomaly| events.warn(anomaly));
        }));
    }

    /// Waits until old checkpoints have been removed: for `checkpoint.deadline` at most, and for
    /// `checkpoint.stop_grace` once a stop is requested. The next attempt removes the rest.
    pub(crate) fn finish_retention(&mut self, stop_requested: &dyn Fn() -> bool) {
        let mut wait = self.wait(stop_requested);
        let mut is_reported = false;
        while !self.saver().has_ended_afterwards() {
            if wait.left().is_zero() {
                return self.stop_retention();
            }
            if !is_reported && wait.is_long() {
                is_reported = true;
                self.events.note("waits until old checkpoints are removed");
            }
            std::thread::sleep(RETENTION_POLL);
        }
        self.saver().finish_afterwards();
    }

    /// Starts a wait at the end of the attempt.
    fn wait<'run>(&self, stop_requested: &'run dyn Fn() -> bool) -> Wait<'run> {
        Wait::start(self.config.deadline, self.config.stop_grace, stop_requested)
    }

    /// Stops the removal of old checkpoints, without waiting for a removal in progress.
    pub(crate) fn stop_retention(&mut self) {
        self.present().store.stop_retention();
        self.saver().detach_afterwards();
    }

    /// Emits a warning that belongs in the record.
    pub(crate) fn warn(&self, step: Option<u64>, text: String) {
        self.warn_of_rank(step, None, text);
    }

    fn warn_of_rank(&self, step: Option<u64>, rank: Option<usize>, text: String) {
        self.events.warn(Anomaly { step, rank, text });
    }

    /// Returns whether a save is in flight; equal on all ranks.
    pub(crate) fn is_saving(&self) -> bool {
        self.saver.as_ref().is_some_and(|saver| saver.step_in_flight().is_some())
    }

    /// Returns whether this rank can advance the save in flight, or none is in flight.
    pub(crate) fn is_ready(&self) -> bool {
        self.saver.as_ref().is_none_or(Saver::is_ready)
    }

    /// Starts a save of the state after a step; skips it if a save is in flight. With a veto no
    /// rank saves.
    pub(crate) fn start(
        &mut self,
        trainer: &mut Trainer<'_>,
        due: TierSet,
        why: Trigger,
        veto: Veto,
    ) -> Outcome<bool> {
        let stall_start = Instant::now();
        let step = trainer.completed_steps();
        if let Some(earlier) = self.saver().step_in_flight() {
            self.pending_tiers = self.pending_tiers.union(due);
            if why != Trigger::Cadence {
                self.trigger.request(why); // until this one has ended
                return Ok(false);
            }
            self.saves.skipped += 1;
            if self.rank == 0 && !self.is_skip_reported {
                self.warn(Some(step), self.skipped(earlier)); // the same on all ranks
            }
            self.is_skip_reported = true;
            return Ok(false);
        }
        let request = Save {
            step,
            claim: self.claim,
            number: self.started,
            state: json!(trainer.progress()),
            parent: self.parent.clone(),
        };
        self.started += 1;
        self.is_skip_reported = false;
        self.injector = trainer.injector().clone();
        let failpoints: SharedFailpoints = Box::new(self.injector.clone());
        let saver = self.saver.as_mut().expect("attached");
        let copy = |state| saver.start(request, state, veto, failpoints);
        trainer.lend_state(Arc::clone(&self.ranges), copy)?;
        trainer.take_checkpoint_wait(); // of an earlier save, which failed
        self.cadence.saved(due);
        self.due = due.union(std::mem::take(&mut self.pending_tiers));
        self.has_moved = false;
        self.why = why;
        if self.rank == 0 {
            tracing::info!("saves step {step}: {why:?}");
        }
        self.stall = stall_start.elapsed();
        Ok(true)
    }

    /// Advances the save in flight, and returns its outcome if it has ended. Collective; call it
    /// when all ranks are ready.
    pub(crate) fn advance(&mut self, trainer: &mut Trainer<'_>) -> Outcome<Option<Ended>> {
        let Some(step) = self.saver().step_in_flight() else { return Ok(None) };
        let stall_start = Instant::now();
        let ranks = trainer.ranks();
        let advanced = self.saver().advance(&ranks);
        self.stall += stall_start.elapsed();
        self.ended(step, advanced, trainer)
    }

    /// Waits for the save in flight, and returns its outcome. Collective.
    pub(crate) fn finish(&mut self, trainer: &mut Trainer<'_>) -> Outcome<Option<Ended>> {
        let Some(step) = self.saver().step_in_flight() else { return Ok(None) };
        let stall_start = Instant::now();
        // Another rank's writer may take the whole deadline.
        let ranks = trainer.ranks().with_timeout(2 * self.config.deadline);
        let (events, rank) = (self.events.clone(), self.rank);
        let mut is_reported = false;
        let finished = self.saver().finish(&ranks, &mut |saver| {
            if !is_reported && stall_start.elapsed() >= REPORT_AFTER {
                is_reported = true;
                let text = format!("waits for the save of step {step}{}", at(saver));
                match rank {
                    0 => events.note(text),
                    _ => events.warn_later(Anomaly { step: Some(step), rank: Some(rank), text }),
                }
            }
        });
        self.stall += stall_start.elapsed();
        self.ended(step, finished, trainer)
    }

    fn ended(
        &mut self,
        step: u64,
        report: Result<Option<SaveReport>, checkpoint::Error>,
        trainer: &mut Trainer<'_>,
    ) -> Outcome<Option<Ended>> {
        let report = match report {
            Ok(None) => return Ok(None),
            Ok(Some(report)) => match trainer.clock().virtual_clock() {
                Some(clock) => clock.saved(report),
                None => report,
            },
            Err(error @ checkpoint::Error::SaveFailed { .. }) => {
                let not_saved = self.not_saved(step, &error, trainer)?;
                return Ok(Some(Ended::NotSaved(not_saved)));
            }
            Err(error) => return Err(error.into()),
        };
        self.stall += trainer.take_checkpoint_wait();
        self.measure_cost(report.commit);
        self.committed_step = Some(step);
        *self.saves.triggers.entry(self.why).or_default() += 1;
        if let Some(copies) = &self.copies {
            copies.submit(&report.checkpoint, self.due);
            self.submitted = self.submitted.union(self.due);
        }
        self.parent = Some(report.checkpoint);
        let saved = CheckpointSaved {
            tier: self.present().name.clone(),
            step,
            bytes: report.bytes_total,
            write_ns: nanoseconds(report.writes.iter().copied().max().unwrap_or_default()),
            save_ns: nanoseconds(report.commit),
            stall_ns: nanoseconds(self.stall),
        };
        self.events.committed(saved.clone());
        self.saves.committed.push(saved);
        report.warnings.into_iter().for_each(|text| self.warn(Some(step), text));
        self.warn_of_reads();
        self.start_retention();
        self.move_after_commit(step, trainer)?;
        let writes = report.writes.into_iter().map(nanoseconds).map(OwnTime::of_save);
        let found = self.slow_writers.as_mut();
        let found = found.map(|detector| {
            detector.take(step, SECONDS_BETWEEN_SAVES, writes.map(StepTimes::from))
        });
        let stragglers = found.unwrap_or_default().stragglers;
        Ok(Some(Ended::Committed { step, stragglers }))
    }

    /// Updates the cost of a save on each tier, as far as it is known.
    fn measure_cost(&mut self, durable: Duration) {
        let stall = self.stall;
        self.cadence.measured(self.save_tier.position(), SaveCost { stall, durable });
        let Some(copies) = &self.copies else { return };
        for (tier, status) in copies.status_by_tier() {
            if let Some(Promoted { duration, .. }) = status.promoted.last() {
                let durable = durable + *duration;
                self.cadence.measured(tier, SaveCost { stall, durable });
            }
        }
    }

    /// Warns, the 1st, 2nd, 4th, 8th, ... time, that a commit is not in the attempt's file.
    pub(crate) fn warn_not_recorded(&mut self, step: u64, error: &str) {
        if self.failures.count("attempt's file", error).is_some() {
            let text = "the commit could not be recorded in the attempt's file, so if this \
                        checkpoint is lost, the next attempt resumes from an older one, or at \
                        step 1, without a warning";
            self.warn(Some(step), format!("{text}: {error}"));
        }
    }

    /// Returns a sentence about a save that is not started because an earlier one is in flight.
    fn skipped(&self, earlier: u64) -> String {
        let saver = self.saver.as_ref().expect("attached before training");
        let more = "; further saves that it delays are only counted";
        format!("skipped: the save of step {earlier} is still in progress{}{more}", at(saver))
    }

    /// Warns of data that copies and retention first read damaged.
    fn warn_of_reads(&self) {
        for Member { name, store, .. } in self.tiers.members() {
            for text in store.take_read_warnings() {
                let text = format!("tier {name}: {text}");
                self.warn_of_rank(self.committed_step, Some(self.rank), text);
            }
        }
    }

    /// Returns the tier that is saved on.
    fn present(&self) -> &Member {
        &self.tiers.members()[self.save_tier.position()]
    }

    fn saver(&mut self) -> &mut Saver {
        self.saver.as_mut().expect("attached before training")
    }
}

/// Returns the file or folder that a save is at, for a sentence.
fn at(saver: &Saver) -> String {
    saver.at().map_or(String::new(), |path| format!(", at {}", path.display()))
}

fn nanoseconds(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

/// Returns the figures of copies on a farther tier, for the record.
fn promoted_to(route: &RouteStatus) -> PromotedTo {
    let bytes: u64 = route.promoted.iter().map(|promoted| promoted.bytes).sum();
    let seconds = || route.promoted.iter().map(|promoted| promoted.duration.as_secs_f64());
    let total: f64 = seconds().sum();
    PromotedTo {
        tier: route.tier.clone(),
        count: route.promoted.len(),
        last_step: route.durable_step,
        bytes_per_second: (total > 0.0).then(|| bytes as f64 / total),
        copy_ms: Distribution::of(seconds().map(|seconds| seconds * 1e3)),
        failures: route.failures,
        last_error: route.last_error.clone(),
        dropped: route.dropped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_copies_is_of_all_bytes_in_all_their_time() {
        let copy = |step, milliseconds| Promoted {
            step,
            bytes: 500_000_000,
            duration: Duration::from_millis(milliseconds),
        };
        let route = RouteStatus {
            tier: "shared".to_owned(),
            durable_step: Some(12),
            promoted: vec![copy(6, 500), copy(12, 1500)],
            failures: 1,
            last_error: Some("the server is busy".to_owned()),
            dropped: 3,
            ..RouteStatus::default()
        };
        let recorded = record::fixtures::finished().checkpoints.unwrap();
        let expected = PromotedTo { dropped: 3, ..recorded.promoted[0].clone() };
        assert_eq!(expected.bytes_per_second, Some(500e6));
        assert_eq!(promoted_to(&route), expected);
        assert_eq!(promoted_to(&RouteStatus::default()).bytes_per_second, None);
    }
}
