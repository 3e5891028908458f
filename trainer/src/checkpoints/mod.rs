//! When a run saves checkpoints, and how it handles a failed save.

mod retention;
pub(crate) mod state_map;

use std::sync::Arc;
use std::time::Instant;

use checkpoint::{Save, Store};
use serde_json::json;

use crate::config::{CheckpointConfig, Interval};
use crate::failure::{ExitCode, Failure, Outcome};
use crate::ranks::Ranks;
use crate::record::{Anomaly, CheckpointSaved};
use crate::step::Trainer;
use retention::Retention;

/// Saves and resumes one attempt.
#[derive(Debug)]
pub(crate) struct Checkpointer {
    store: Arc<Store>,
    config: CheckpointConfig,
    attempt: u64,
    retention: Retention,
    last_save: Instant,
    /// Name of the checkpoint that the state was restored from or last saved as.
    parent: Option<String>,
    committed_step: Option<u64>,
    saves: Vec<CheckpointSaved>,
    anomalies: Vec<Anomaly>,
}

/// Why a checkpoint was not committed although no rank was lost.
#[derive(Debug)]
struct NotSaved {
    /// The first rank that failed.
    rank: Option<usize>,
    reason: String,
}

impl Checkpointer {
    /// Claims the folder for an attempt, which fences earlier attempts that may still be running.
    pub(crate) fn claim(
        store: Store,
        config: CheckpointConfig,
        attempt: u32,
        ranks: Ranks<'_>,
    ) -> Outcome<Self> {
        let ranks = ranks.with_timeout(config.deadline);
        let attempt = store.claim_attempt(attempt.into(), &ranks)?;
        Ok(Self {
            store: Arc::new(store),
            config,
            attempt,
            retention: Retention::default(),
            last_save: Instant::now(),
            parent: None,
            committed_step: None,
            saves: Vec::new(),
            anomalies: Vec::new(),
        })
    }

    /// Number of the attempt: the requested one, or a larger one if that was claimed before.
    pub(crate) fn attempt(&self) -> u32 {
        self.attempt as u32
    }

    /// Newest step known to be committed.
    pub(crate) fn committed_step(&self) -> Option<u64> {
        self.committed_step
    }

    /// Sizes and times of the saves.
    pub(crate) fn saves(&self) -> &[CheckpointSaved] {
        &self.saves
    }

    /// Warnings so far.
    pub(crate) fn anomalies(&self) -> &[Anomaly] {
        &self.anomalies
    }

    /// Restores the newest usable checkpoint into the trainer; `None` without a checkpoint.
    pub(crate) fn resume(&mut self, trainer: &mut Trainer<'_>) -> Outcome<Option<u64>> {
        let ranks = trainer.ranks().with_timeout(self.config.deadline);
        let restored = trainer
            .fill_state(|state| Ok(self.store.resume(&mut state_map::held(state), &ranks)?))?;
        let Some(restored) = restored else { return Ok(None) };
        for rejected in &restored.rejected {
            let text = format!("checkpoint {rejected} is not usable, trying an older one");
            self.warn(None, text);
        }
        let progress = serde_json::from_value(restored.state).map_err(|error| {
            let name = &restored.checkpoint;
            Failure::new(ExitCode::Checkpoint, error).context(format!("state of checkpoint {name}"))
        })?;
        trainer.resume_from(progress)?;
        self.committed_step = Some(restored.step);
        self.parent = Some(restored.checkpoint);
        Ok(Some(restored.step))
    }

    /// Whether this rank requests a save after this step, counted from 1.
    pub(crate) fn is_due(&self, step: u64, rank: usize) -> bool {
        match self.config.every {
            Interval::Never => false,
            Interval::Steps(steps) => step.is_multiple_of(steps),
            Interval::Time(time) => rank == 0 && self.last_save.elapsed() >= time,
        }
    }

    /// Whether a save is required after the last step.
    pub(crate) fn is_due_at_end(&self, step: u64) -> bool {
        self.config.at_end && self.committed_step != Some(step)
    }

    /// Starts removing old checkpoints in the background, on rank 0. Call it after a save, and when
    /// a run resumes, because an attempt that was stopped on request leaves old ones.
    pub(crate) fn start_retention(&mut self, trainer: &Trainer<'_>) {
        if trainer.ranks().rank() == 0 {
            let keep = self.config.keep;
            self.retention.start(&self.store, self.attempt, keep, trainer.injector());
        }
    }

    /// Waits until old checkpoints have been removed. Call it before the next save, and at the end.
    pub(crate) fn finish_retention(&mut self) {
        for text in self.retention.finish() {
            self.warn(self.committed_step, text);
        }
    }

    /// Stops removing old checkpoints, without waiting for a removal in progress.
    pub(crate) fn stop_retention(&mut self) {
        self.store.stop_retention();
        self.retention.detach();
    }

    /// Logs a warning and keeps it for the record.
    pub(crate) fn warn(&mut self, step: Option<u64>, text: String) {
        self.warn_of_rank(step, None, text);
    }

    fn warn_of_rank(&mut self, step: Option<u64>, rank: Option<usize>, text: String) {
        tracing::warn!("{text}");
        self.anomalies.push(Anomaly { step, rank, text });
    }

    /// Saves after a step and returns whether the checkpoint was committed; if not, it logs a
    /// warning, which says whether training `continues`. Training has been stopped since
    /// `stall_start`. A `veto` is the reason why this rank must not save; with one, no rank does.
    pub(crate) fn save(
        &mut self,
        trainer: &Trainer<'_>,
        stall_start: Instant,
        veto: Option<&str>,
        continues: bool,
    ) -> Outcome<bool> {
        let step = trainer.completed_steps();
        match self.try_save(trainer, stall_start, veto)? {
            Ok(()) => Ok(true),
            Err(NotSaved { rank, reason }) => {
                let then = if continues { "training continues" } else { "and training has ended" };
                let text = format!("not saved, {then}: {reason}");
                self.warn_of_rank(Some(step), rank, text);
                Ok(false)
            }
        }
    }

    /// Saves at the end of an attempt, where a failed save is an error; `end` is why the attempt
    /// ends.
    pub(crate) fn save_at_end(
        &mut self,
        trainer: &Trainer<'_>,
        stall_start: Instant,
        veto: Option<&str>,
        end: &str,
    ) -> Outcome<()> {
        let step = trainer.completed_steps();
        self.try_save(trainer, stall_start, veto)?.map_err(|NotSaved { rank, reason }| {
            let text = format!("{end}, but step {step} could not be saved: {reason}");
            self.anomalies.push(Anomaly { step: Some(step), rank, text: text.clone() });
            let failure = Failure::new(ExitCode::Checkpoint, anyhow::anyhow!(text)).at_step(step);
            Failure { rank, ..failure }
        })
    }

    fn try_save(
        &mut self,
        trainer: &Trainer<'_>,
        stall_start: Instant,
        veto: Option<&str>,
    ) -> Outcome<Result<(), NotSaved>> {
        let step = trainer.completed_steps();
        self.finish_retention();
        let ranks = trainer.ranks().with_timeout(self.config.deadline);
        let state = trainer.state_on_host()?;
        let parts = state_map::saved(&state);
        let request = Save {
            step,
            attempt: self.attempt,
            parts: &parts,
            state: &json!(trainer.progress()),
            parent: self.parent.as_deref(),
            veto,
        };
        let saved = self.store.save(&request, &ranks, trainer.injector());
        self.last_save = Instant::now();
        let report = match saved {
            Ok(report) => report,
            Err(error @ checkpoint::Error::SaveFailed { .. }) => {
                return Ok(Err(NotSaved { rank: error.rank(), reason: error.to_string() }));
            }
            Err(error) => return Err(error.into()),
        };
        self.committed_step = Some(step);
        self.parent = Some(report.checkpoint);
        self.saves.push(CheckpointSaved {
            step,
            bytes: report.bytes_total,
            save_ns: (report.write + report.vote + report.commit).as_nanos() as u64,
            stall_ns: stall_start.elapsed().as_nanos() as u64,
        });
        report.warnings.into_iter().for_each(|text| self.warn(Some(step), text));
        self.start_retention(trainer);
        Ok(Ok(()))
    }
}
