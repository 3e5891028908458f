//! When a run saves checkpoints, and how it handles a failed save.

pub(crate) mod bench;
mod bench_folder;
mod cadence;
pub(crate) mod open;
mod recovery;
pub(crate) mod state_map;
pub(crate) mod tiers;
mod trigger;

use std::sync::Arc;
use std::time::{Duration, Instant};

use checkpoint::promotion::{Promoted, Promoter, PromoterOptions, Route, RouteStatus, Share};
use checkpoint::tier::Scope;
use checkpoint::{Claim, Member, Save, SaveReport, Saver, SharedFailpoints, Tiers, Veto};
use serde_json::json;

use crate::config::CheckpointConfig;
use crate::failure::{ExitCode, Failure, Outcome};
use crate::fault_injection::Injector;
use crate::ranks::Ranks;
use crate::record::{Anomaly, Attempt, CheckpointSaved, Checkpoints, Recovery, Saves, TierRecord};
use crate::step::{SavedRange, Trainer};
use crate::stragglers::{Detector, Limits, OwnTime, Straggler};
use crate::telemetry::Events;
use cadence::{Cadence, SaveCost};
use open::{NotOpened, Opened};
use tiers::Planned;

pub(crate) use tiers::TierSet;
pub(crate) use trigger::{SaveTrigger, Trigger};

/// When a rank writes slowly: times of writing are much noisier than those of steps.
const SLOW_WRITERS: Limits = Limits { window_steps: 8, windows: 1, least_slower: 0.2 };

/// How often the wait for copies looks for a request to stop.
const STOP_POLL: Duration = Duration::from_millis(100);

/// Saves and resumes one attempt.
#[derive(Debug)]
pub(crate) struct Checkpointer {
    tiers: Tiers,
    planned: Vec<Planned>,
    /// Position of the tier that is saved on: the nearest that all ranks can use.
    nearest: usize,
    cadence: Cadence,
    /// To each farther tier that all ranks can use.
    promotion: Option<Promotion>,
    trigger: SaveTrigger,
    /// Why the save in flight was started.
    why: Trigger,
    /// Where the save in flight has to get to.
    due: TierSet,
    /// Where saves should have got to that were skipped or failed: the next one does.
    owed: TierSet,
    config: CheckpointConfig,
    claim: Claim,
    saver: Option<Saver>,
    /// Where the saved boxes are in the state.
    ranges: Arc<[SavedRange]>,
    /// Saves that were started.
    started: u32,
    /// Injects faults into the last save and what follows it.
    injector: Injector,
    /// For how long the save in flight has stopped training.
    stall: Duration,
    /// Name of the checkpoint that the state was restored from or last saved as.
    parent: Option<String>,
    committed_step: Option<u64>,
    /// How the restored state was got.
    recovery: Option<Recovery>,
    saves: Saves,
    /// Compares the ranks' times of writing.
    stragglers: Detector,
    events: Events,
}

/// Copies checkpoints to farther tiers.
#[derive(Debug)]
struct Promotion {
    promoter: Promoter,
    /// The tier of each route.
    targets: Vec<usize>,
}

/// How a save went that has ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// It is committed.
    Committed {
        step: u64,
        /// Ranks that write slowly since then, or no longer do.
        stragglers: Vec<Straggler>,
    },
    /// It is not, although no rank was lost.
    NotSaved(NotSaved),
}

/// Why a checkpoint was not committed although no rank was lost.
#[derive(Debug)]
pub(crate) struct NotSaved {
    step: u64,
    /// The first rank that failed.
    rank: Option<usize>,
    reason: String,
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
        let Opened { members, planned, not_opened } = opened;
        let tiers = Tiers::new(members);
        let claim = tiers.claim_attempt(attempt.into(), &ranks.with_timeout(config.deadline))?;
        let is_usable = |member: &Member| !tiers.unusable().iter().any(|u| u.tier == member.name);
        let nearest = tiers.members().iter().position(is_usable).unwrap_or(0);
        let mut checkpointer = Self {
            cadence: Cadence::new(&planned, config.mean_time_between_failures, ranks.world()),
            tiers,
            planned,
            nearest,
            promotion: None,
            trigger: SaveTrigger::default(),
            why: Trigger::Cadence,
            due: TierSet::default(),
            owed: TierSet::default(),
            config,
            claim,
            saver: None,
            ranges: Arc::default(),
            started: 0,
            injector: Injector::default(),
            stall: Duration::ZERO,
            parent: None,
            committed_step: None,
            recovery: None,
            saves: Saves::default(),
            stragglers: Detector::new(ranks.world(), SLOW_WRITERS),
            events,
        };
        if ranks.rank() == 0 {
            checkpointer.warn_of_tiers(&not_opened);
        }
        Ok(checkpointer)
    }

    /// Tiers that are left out, and those whose place is odd.
    fn warn_of_tiers(&mut self, not_opened: &[NotOpened]) {
        for NotOpened { tier, rank, reason } in not_opened {
            self.warn_of_rank(None, Some(*rank), format!("tier {tier} is not used: {reason}"));
        }
        for unusable in self.tiers.unusable() {
            let text = format!("tier {} is not used: {}", unusable.tier, unusable.reason);
            self.warn_of_rank(None, Some(unusable.rank), text);
        }
        let is_default = self.planned.len() == 1;
        let doubts: Vec<_> = self.planned.iter().filter_map(tiers::doubts).collect();
        for text in doubts.into_iter().filter(|_| !is_default) {
            self.warn(None, text);
        }
    }

    /// Number of the attempt: the requested one, or a larger one if that was claimed before.
    pub(crate) fn attempt(&self) -> u32 {
        self.claim.attempt as u32
    }

    /// The configuration.
    pub(crate) fn settings(&self) -> &CheckpointConfig {
        &self.config
    }

    /// Where checkpoints are, for messages.
    pub(crate) fn places(&self) -> String {
        let places: Vec<_> = self.planned.iter().map(|tier| tier.address.as_str()).collect();
        places.join(" or ")
    }

    /// How the restored state was got, the same on all ranks; `None` without a restore.
    pub(crate) fn recovery(&self) -> Option<&Recovery> {
        self.recovery.as_ref()
    }

    /// Which tiers the restored state came from, where there are several.
    pub(crate) fn restored_from(&self) -> Option<String> {
        self.recovery.as_ref().filter(|_| self.planned.len() > 1).map(ToString::to_string)
    }

    /// Learns from the run's earlier attempts how often it fails.
    pub(crate) fn observe(&mut self, attempts: &[Attempt]) {
        self.cadence.observe(attempts);
    }

    /// Newest step known to be committed.
    pub(crate) fn committed_step(&self) -> Option<u64> {
        self.committed_step
    }

    /// Where checkpoints are, for the record.
    pub(crate) fn tiers(&self) -> Vec<TierRecord> {
        self.planned.iter().map(Planned::record).collect()
    }

    /// Figures of the saves and of their copies; `None` without a save.
    pub(crate) fn figures(&self) -> Option<Checkpoints> {
        let routes = self.promotion.as_ref().map(|promotion| promotion.promoter.status());
        let saved =
            Checkpoints::of(&self.saves, &self.nearest().name, &routes.unwrap_or_default())?;
        Some(Checkpoints { cadence: self.cadence.calculated(), ..saved })
    }

    /// What the last save took until its commit.
    pub(crate) fn last_save(&self) -> Option<Duration> {
        self.saves.committed.last().map(|saved| Duration::from_nanos(saved.save_ns))
    }

    /// Asks for a save after the current step.
    pub(crate) fn trigger(&self) -> &SaveTrigger {
        &self.trigger
    }

    /// Restores the newest usable checkpoint into the trainer; `None` without a checkpoint.
    pub(crate) fn resume(&mut self, trainer: &mut Trainer<'_>) -> Outcome<Option<u64>> {
        let start = Instant::now();
        let ranks = trainer.ranks().with_timeout(self.config.deadline);
        let restored = trainer
            .fill_state(|state| Ok(self.tiers.resume(&mut state_map::held(state), &ranks)?))?;
        let Some(restored) = restored else {
            self.start_promotion(trainer)?;
            return Ok(None);
        };
        self.recovery = Some(recovery::of_all_ranks(start.elapsed(), &restored.sources, ranks)?);
        for rejected in &restored.rejected {
            let text = format!("checkpoint {rejected} is not usable, trying an older one");
            self.warn(None, text);
        }
        for text in &restored.warnings {
            self.warn(None, text.clone());
        }
        let progress = serde_json::from_value(restored.state).map_err(|error| {
            let name = &restored.checkpoint;
            Failure::new(ExitCode::Checkpoint, error).context(format!("state of checkpoint {name}"))
        })?;
        trainer.resume_from(progress)?;
        self.start_promotion(trainer)?;
        self.committed_step = Some(restored.step);
        self.go_on_promoting(&restored.checkpoint, &ranks)?;
        self.parent = Some(restored.checkpoint);
        Ok(Some(restored.step))
    }

    /// Takes the staging memory of a trainer whose state is complete.
    pub(crate) fn attach(&mut self, trainer: &mut Trainer<'_>) {
        let saved = state_map::saved(&trainer.saved_layout());
        self.ranges = saved.ranges.into();
        let staging = trainer.take_staging().expect("attached once");
        let store = Arc::clone(&self.nearest().store);
        let rank = trainer.ranks().rank();
        self.saver = Some(Saver::new(store, rank, saved.boxes, staging, self.config.deadline));
    }

    /// The tiers that this rank wants a checkpoint of this step, counted from 1, to get to.
    pub(crate) fn due(&self, step: u64, rank: usize) -> TierSet {
        self.cadence.due(step, rank)
    }

    /// Whether a save is required after the last step.
    pub(crate) fn is_due_at_end(&self, step: u64) -> bool {
        self.config.at_end && self.committed_step != Some(step)
    }

    /// Starts removing old checkpoints in the background, on rank 0; the next save waits for it
    /// before it writes. Call it after a save, and when a run resumes, because an attempt that was
    /// stopped on request leaves old ones.
    pub(crate) fn start_retention(&mut self, trainer: &Trainer<'_>) {
        let Member { scope, store, .. } = self.nearest();
        if trainer.ranks().rank() != 0 && *scope == Scope::Shared {
            return;
        }
        let store = Arc::clone(store);
        let (attempt, keep) = (self.claim.attempt, self.planned[self.nearest].keep);
        let injector = self.injector.clone();
        let (events, step) = (self.events.clone(), self.committed_step);
        self.saver().then(Box::new(move || {
            let report = store.apply_retention(attempt, keep, &injector);
            let anomaly = |text| Anomaly { step, rank: None, text };
            report.warnings.into_iter().map(anomaly).for_each(|anomaly| events.warn(anomaly));
        }));
    }

    /// Waits until old checkpoints have been removed.
    pub(crate) fn finish_retention(&mut self) {
        self.saver().finish_afterwards();
    }

    /// Stops removing old checkpoints, without waiting for a removal in progress.
    pub(crate) fn stop_retention(&mut self) {
        self.nearest().store.stop_retention();
        self.saver().detach_afterwards();
    }

    /// Warns of something that belongs in the record.
    pub(crate) fn warn(&self, step: Option<u64>, text: String) {
        self.warn_of_rank(step, None, text);
    }

    fn warn_of_rank(&self, step: Option<u64>, rank: Option<usize>, text: String) {
        self.events.warn(Anomaly { step, rank, text });
    }

    /// Whether a save is in flight: on all ranks alike.
    pub(crate) fn is_saving(&self) -> bool {
        self.saver.as_ref().is_some_and(|saver| saver.step_in_flight().is_some())
    }

    /// Whether this rank can go on with the save in flight, or none is in flight.
    pub(crate) fn is_ready(&self) -> bool {
        self.saver.as_ref().is_none_or(Saver::is_ready)
    }

    /// Starts a save of the state after a step, unless one is in flight: then this one is skipped.
    /// With a veto no rank saves.
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
            self.owed = self.owed.union(due);
            if why != Trigger::Cadence {
                self.trigger.request(why); // until this one has ended
                return Ok(false);
            }
            self.saves.skipped += 1;
            let text = format!("skipped: the save of step {earlier} is still in progress");
            if trainer.ranks().rank() == 0 {
                self.warn(Some(step), text); // the same on all ranks
            }
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
        self.injector = trainer.injector().clone();
        let failpoints: SharedFailpoints = Box::new(self.injector.clone());
        let saver = self.saver.as_mut().expect("attached");
        let copy = |state| saver.start(request, state, veto, failpoints);
        trainer.lend_state(Arc::clone(&self.ranges), copy)?;
        trainer.take_checkpoint_wait(); // of an earlier save, which failed
        self.cadence.saved(due);
        self.due = due.union(std::mem::take(&mut self.owed));
        self.why = why;
        if trainer.ranks().rank() == 0 {
            tracing::info!("saves step {step}: {why:?}");
        }
        self.stall = stall_start.elapsed();
        Ok(true)
    }

    /// Goes on with the save in flight, and returns how it went if it has ended. Collective; for
    /// when all ranks are ready.
    pub(crate) fn advance(&mut self, trainer: &mut Trainer<'_>) -> Outcome<Option<Ended>> {
        let Some(step) = self.saver().step_in_flight() else { return Ok(None) };
        let stall_start = Instant::now();
        let ranks = trainer.ranks();
        let advanced = self.saver().advance(&ranks);
        self.stall += stall_start.elapsed();
        self.ended(step, advanced, trainer)
    }

    /// Waits for the save in flight, and returns how it went. Collective.
    pub(crate) fn finish(&mut self, trainer: &mut Trainer<'_>) -> Outcome<Option<Ended>> {
        let Some(step) = self.saver().step_in_flight() else { return Ok(None) };
        let stall_start = Instant::now();
        // Another rank's writer may take as long as it may.
        let ranks = trainer.ranks().with_timeout(2 * self.config.deadline);
        let finished = self.saver().finish(&ranks);
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
            Ok(Some(report)) => report,
            Err(error @ checkpoint::Error::SaveFailed { .. }) => {
                self.saves.failed += 1;
                self.owed = self.owed.union(self.due);
                let (rank, reason) = (error.rank(), error.to_string());
                return Ok(Some(Ended::NotSaved(NotSaved { step, rank, reason })));
            }
            Err(error) => return Err(error.into()),
        };
        self.stall += trainer.take_checkpoint_wait();
        self.measure_cost(report.commit);
        self.committed_step = Some(step);
        *self.saves.triggers.entry(self.why).or_default() += 1;
        self.promote(&report.checkpoint, self.due);
        self.parent = Some(report.checkpoint);
        let saved = CheckpointSaved {
            step,
            bytes: report.bytes_total,
            write_ns: nanoseconds(report.writes.iter().copied().max().unwrap_or_default()),
            save_ns: nanoseconds(report.commit),
            stall_ns: nanoseconds(self.stall),
        };
        self.events.committed(saved);
        self.saves.committed.push(saved);
        report.warnings.into_iter().for_each(|text| self.warn(Some(step), text));
        self.start_retention(trainer);
        let writes = report.writes.into_iter().map(nanoseconds).map(OwnTime::of_save);
        let stragglers = self.stragglers.take(step, writes);
        Ok(Some(Ended::Committed { step, stragglers }))
    }

    /// What a save costs on each tier, as far as that is known.
    fn measure_cost(&mut self, durable: Duration) {
        let stall = self.stall;
        self.cadence.measured(self.nearest, SaveCost { stall, durable });
        let Some(Promotion { promoter, targets }) = &self.promotion else { return };
        for (status, tier) in promoter.status().iter().zip(targets) {
            if let Some(Promoted { duration, .. }) = status.promoted.last() {
                let durable = durable + *duration;
                self.cadence.measured(*tier, SaveCost { stall, durable });
            }
        }
    }

    /// Warns that a save failed; whether training `continues`.
    pub(crate) fn warn_not_saved(&self, failed: NotSaved, continues: bool) {
        let NotSaved { step, rank, reason } = failed;
        let then = if continues { "training continues" } else { "and training has ended" };
        self.warn_of_rank(Some(step), rank, format!("not saved, {then}: {reason}"));
    }

    /// The error of a save that failed at the end of an attempt; `end` is why the attempt ends.
    pub(crate) fn not_saved_at_end(&self, failed: NotSaved, end: &str) -> Failure {
        let NotSaved { step, rank, reason } = failed;
        let text = format!("{end}, but step {step} could not be saved: {reason}");
        let failure = Failure::new(ExitCode::Checkpoint, anyhow::anyhow!(text)).at_step(step);
        Failure { rank, ..failure }
    }

    /// Starts to copy a checkpoint from the nearest tier to those of these that are farther.
    fn promote(&self, checkpoint: &str, due: TierSet) {
        let Some(promotion) = &self.promotion else { return };
        for (route, tier) in promotion.targets.iter().enumerate() {
            if due.contains(*tier)
                && let Err(error) = promotion.promoter.submit(checkpoint, route)
            {
                tracing::error!("{error}");
            }
        }
    }

    /// Starts the threads that copy checkpoints to farther tiers.
    pub(crate) fn start_promotion(&mut self, trainer: &Trainer<'_>) -> Outcome<()> {
        let ranks = trainer.ranks();
        let failpoints = trainer.injector().after(trainer.completed_steps());
        let unusable = self.tiers.unusable();
        let is_usable = |name: &str| !unusable.iter().any(|found| found.tier == name);
        let mut routes = Vec::new();
        let mut targets = Vec::new();
        for (tier, member) in self.tiers.members().iter().enumerate().skip(self.nearest + 1) {
            if is_usable(&member.name) {
                targets.push(tier);
                routes.push(Route {
                    from: Arc::clone(&self.nearest().store),
                    to: Arc::clone(&member.store),
                    name: member.name.clone(),
                    keep: self.planned[tier].keep,
                });
            }
        }
        if routes.is_empty() {
            return Ok(());
        }
        let share = Share { rank: ranks.rank(), world: ranks.world(), attempt: self.claim.attempt };
        let bytes_per_second_max = self.config.copy_bytes_per_second_max;
        let options = PromoterOptions { bytes_per_second_max, ..PromoterOptions::default() };
        let promoter = Promoter::start(routes, share, options, Arc::new(failpoints))?;
        self.promotion = Some(Promotion { promoter, targets });
        Ok(())
    }

    /// Goes on with what an earlier attempt may have left half-way: the restored checkpoint, if the
    /// nearest tier has it on all ranks. Where a node has lost its disk, the others would wait at
    /// the end for a copy that never comes. Collective.
    fn go_on_promoting(&self, checkpoint: &str, ranks: &Ranks<'_>) -> Outcome<()> {
        let holds = self.nearest().store.holds(checkpoint).is_ok_and(|holds| holds);
        let all = ranks.gather_bytes(&[u8::from(holds)])?;
        if all.iter().all(|holds| holds == &[1]) {
            self.promote(checkpoint, TierSet::ALL);
        }
        Ok(())
    }

    /// How long a stop on request waits for copies to farther tiers, where there are any.
    pub(crate) fn stop_grace(&self) -> Option<Duration> {
        self.promotion.is_some().then_some(self.config.stop_grace)
    }

    /// Waits until the farther tiers have what they are to have: for `checkpoint.deadline` at most,
    /// and for `stop_grace` once a stop is requested, because a scheduler that stops the run kills
    /// it soon. What does not get there in time is a warning.
    pub(crate) fn finish_promotion(&mut self, stop_requested: impl Fn() -> bool) {
        let Some(promotion) = &self.promotion else { return };
        let mut deadline = Instant::now() + self.config.deadline;
        let mut is_stopping = false;
        let is_finished = loop {
            let now = Instant::now();
            if !is_stopping && stop_requested() {
                is_stopping = true;
                deadline = deadline.min(now + self.config.stop_grace);
            }
            let is_finished = promotion.promoter.finish(deadline.min(now + STOP_POLL));
            if is_finished || now >= deadline {
                break is_finished;
            }
        };
        for RouteStatus { tier, in_progress, is_failing, last_error, .. } in
            promotion.promoter.status()
        {
            let text = if is_failing {
                let error = last_error.unwrap_or_default();
                format!("tier {tier} has no newer checkpoint: {error}")
            } else if !is_finished && let Some(name) = in_progress {
                format!("tier {tier} has no newer checkpoint: the next attempt goes on with {name}")
            } else {
                continue;
            };
            self.warn(self.committed_step, text);
        }
    }

    fn nearest(&self) -> &Member {
        &self.tiers.members()[self.nearest]
    }

    fn saver(&mut self) -> &mut Saver {
        self.saver.as_mut().expect("attached before training")
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}
