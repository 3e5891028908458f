//! When to save, and what a failed save means.

use std::sync::Arc;
use std::time::{Duration, Instant};

use checkpoint::{Save, Store};
use collectives::Collective;
use serde_json::json;

use crate::config::{CheckpointConfig, Every};
use crate::failure::{ExitCode, Failure, Outcome};
use crate::persist::{self, RankPeers};
use crate::record::{Anomaly, CheckpointSaved};
use crate::step::Trainer;
use crate::tidying::Tidying;

/// Saves of one attempt.
#[derive(Debug)]
pub(crate) struct Durability {
    store: Arc<Store>,
    config: CheckpointConfig,
    epoch: u64,
    tidying: Tidying,
    last_save: Instant,
    /// Name of the checkpoint that the state was restored from or last saved as.
    parent: Option<String>,
    /// Newest step known to be committed.
    pub(crate) committed: Option<u64>,
    /// What saves cost and moved.
    pub(crate) saves: Vec<CheckpointSaved>,
    /// What went wrong.
    pub(crate) failures: Vec<Anomaly>,
}

impl Durability {
    /// Claims the folder for an attempt: an earlier one that still runs somewhere saves no more.
    pub(crate) fn claim(
        store: Store,
        config: CheckpointConfig,
        attempt: u32,
        collective: &dyn Collective,
    ) -> Outcome<Self> {
        let deadline = Duration::from_secs_f64(config.deadline_s);
        let peers = RankPeers { collective, deadline };
        let epoch = store.claim(attempt.into(), &peers).map_err(checkpoint_failure)?;
        Ok(Self {
            store: Arc::new(store),
            config,
            epoch,
            tidying: Tidying::default(),
            last_save: Instant::now(),
            parent: None,
            committed: None,
            saves: Vec::new(),
            failures: Vec::new(),
        })
    }

    /// Number of the attempt: the one asked for, or a larger one if that was taken already.
    pub(crate) fn attempt(&self) -> u32 {
        self.epoch as u32
    }

    fn peers<'world>(&self, trainer: &Trainer<'world>) -> RankPeers<'world> {
        let deadline = Duration::from_secs_f64(self.config.deadline_s);
        RankPeers { collective: trainer.collective, deadline }
    }

    /// Loads the newest usable checkpoint into the trainer; `None` starts afresh.
    pub(crate) fn resume(&mut self, trainer: &mut Trainer<'_>) -> Outcome<Option<u64>> {
        let peers = self.peers(trainer);
        let mut parts = persist::held(&mut trainer.state, &trainer.layout, &trainer.shard);
        let restored = self.store.resume(&mut parts, &peers).map_err(checkpoint_failure)?;
        drop(parts);
        let Some(restored) = restored else { return Ok(None) };
        for rejected in &restored.rejected {
            let text = format!("checkpoint {rejected} is not usable, went back to an older one");
            self.warn(None, text);
        }
        let progress = serde_json::from_value(restored.state).map_err(|error| {
            let name = &restored.checkpoint;
            Failure::new(ExitCode::Checkpoint, error).context(format!("state of checkpoint {name}"))
        })?;
        trainer.go_on_from(progress)?;
        self.committed = Some(restored.step);
        self.parent = Some(restored.checkpoint);
        Ok(Some(restored.step))
    }

    /// Whether this rank wishes to save after this step, counted from 1.
    pub(crate) fn due(&self, step: u64, rank: usize) -> bool {
        match self.config.every {
            Every::Never => false,
            Every::Steps(steps) => step.is_multiple_of(steps),
            Every::Seconds(seconds) => {
                rank == 0 && self.last_save.elapsed() >= Duration::from_secs_f64(seconds)
            }
        }
    }

    /// Whether a save is owed after the last step.
    pub(crate) fn owed_at_end(&self, step: u64) -> bool {
        self.config.at_end && self.committed != Some(step)
    }

    /// Removes what is old beside training; rank 0 does. After a save, and once a run goes on: an
    /// attempt that was asked to stop left what was old.
    pub(crate) fn start_tidying(&mut self, trainer: &Trainer<'_>) {
        if trainer.collective.rank() == 0 {
            self.tidying.start(&self.store, self.epoch, self.config.keep, &trainer.injector);
        }
    }

    /// Waits until what is old has been removed. Before the next save, and at the end.
    pub(crate) fn finish_tidying(&mut self) {
        for text in self.tidying.finish() {
            self.warn(self.committed, text);
        }
    }

    /// Removes nothing more and waits for no removal: somebody asked for the end.
    pub(crate) fn leave_tidying(&mut self) {
        self.store.leave_old();
        self.tidying.leave();
    }

    /// Tells of something odd, and keeps it for the record.
    pub(crate) fn warn(&mut self, step: Option<u64>, text: String) {
        tracing::warn!("{text}");
        self.failures.push(Anomaly { step, rank: None, text });
    }

    /// A save that the end of an attempt depends on and that failed.
    pub(crate) fn missing_save(&self, reason: &str, step: u64) -> Failure {
        let last = self.failures.last();
        let why = last.map_or("", |anomaly| anomaly.text.as_str());
        let error = anyhow::anyhow!("{reason}, but step {step} could not be saved: {why}");
        let rank = last.and_then(|anomaly| anomaly.rank);
        Failure { rank, ..Failure::new(ExitCode::Checkpoint, error) }.at_step(step)
    }

    /// Saves; a save that failed is remembered, and training goes on. `unable` is why this rank
    /// must not save: then no rank does. Training has been standing still since `triggered`.
    pub(crate) fn save(
        &mut self,
        trainer: &Trainer<'_>,
        triggered: Instant,
        unable: Option<&str>,
    ) -> Outcome<bool> {
        let step = trainer.state.progress.step;
        self.finish_tidying();
        let peers = self.peers(trainer);
        let parts = persist::saved(&trainer.state, &trainer.layout, &trainer.shard);
        let request = Save {
            step,
            epoch: self.epoch,
            parts: &parts,
            state: &json!(trainer.state.progress),
            rank_state: &json!({}),
            parent: self.parent.as_deref(),
            unable,
        };
        let saved = self.store.save(&request, &peers, &trainer.injector);
        self.last_save = Instant::now();
        match saved {
            Ok(report) => {
                self.committed = Some(step);
                self.parent = Some(report.checkpoint);
                self.saves.push(CheckpointSaved {
                    step,
                    bytes: report.bytes_total,
                    save_ns: (report.write + report.vote + report.commit).as_nanos() as u64,
                    stall_ns: triggered.elapsed().as_nanos() as u64,
                });
                report.warnings.into_iter().for_each(|text| self.warn(Some(step), text));
                self.start_tidying(trainer);
                Ok(true)
            }
            Err(error @ checkpoint::Error::SaveFailed { .. }) => {
                let text = format!("not saved, training goes on: {error}");
                tracing::warn!("{text}");
                let rank = error.rank();
                self.failures.push(Anomaly { step: Some(step), rank, text });
                Ok(false)
            }
            Err(error) => Err(checkpoint_failure(error)),
        }
    }
}

/// What it means for the run that no checkpoint could be read.
pub(crate) fn checkpoint_failure(error: checkpoint::Error) -> Failure {
    let code = match &error {
        checkpoint::Error::Peers { .. } => ExitCode::PeerLost,
        _ => ExitCode::Checkpoint,
    };
    let rank = error.rank();
    Failure { rank, ..Failure::new(code, error) }
}
