//! Rank 0 keeps the record of a run: when an attempt starts, and however it ends.

use std::path::{Path, PathBuf};

use collectives::Collective;

use crate::attempt::End;
use crate::config::Config;
use crate::durability::Durability;
use crate::failure::{ExitCode, Failure, Outcome};
use crate::folder::Folder;
use crate::record::{
    self, Anomaly, Checkpoints, Collectives, FlopsPerToken, RankRecord, Reason, Record, Reference,
    Status, Word, WorkloadRecord, odd_ranks,
};
use crate::step::Trainer;
use crate::telemetry::StepSeries;

/// The record in the making. On other ranks than 0 it writes nothing.
#[derive(Debug)]
pub(crate) struct Chronicle {
    dir: PathBuf,
    /// `None` on ranks that do not write.
    record: Option<Record>,
    reference: Reference,
    bucket_bytes: u64,
    /// What was odd from the start, which is told then.
    odd: Vec<Anomaly>,
    rank: usize,
    attempt: u32,
    pub(crate) ranks: Vec<RankRecord>,
    pub(crate) series: Option<StepSeries>,
    /// Digest of the final weights.
    pub(crate) weights: Option<blake3::Hash>,
    pub(crate) matmul_flops_per_second: Option<f64>,
}

/// What an attempt left.
pub(crate) struct Ending<'run, 'world> {
    pub(crate) outcome: &'run Outcome<End>,
    /// `None` when there never was one.
    pub(crate) trainer: Option<&'run Trainer<'world>>,
    pub(crate) durability: &'run Durability,
}

/// The key of the record's `run` that says what the weights of step 0 were: `folder` and `digest`
/// (as the fingerprint's), or null when they were made from the seed.
const INITIAL_WEIGHTS: &str = "initial_weights";

/// What an earlier attempt wrote down: it stays true when the run resumes.
fn earlier_weights(dir: &Path) -> serde_json::Value {
    Record::read(dir).map_or_else(|_| serde_json::Value::Null, |r| r.run[INITIAL_WEIGHTS].clone())
}

fn internal(error: record::Error) -> Failure {
    Failure::new(ExitCode::Internal, error)
}

impl Chronicle {
    /// Writes down that an attempt starts, before anything that could fail.
    pub(crate) fn begin(
        folder: &Folder,
        config: &Config,
        workload_id: &str,
        collective: &dyn Collective,
        ranks: Vec<RankRecord>,
        attempt: u32,
    ) -> Outcome<Self> {
        let dir = folder.root().to_owned();
        let workload = &config.workload;
        let flops = models::flops::flops_per_token(&workload.model, workload.batch.sequence_tokens);
        let reference = Reference {
            flops_per_token: Some(FlopsPerToken { causal: flops.causal, full: flops.full }),
            ..Reference::default()
        };
        let mut record = None;
        let mut odd = Vec::new();
        if collective.rank() == 0 {
            odd = odd_ranks(&ranks, workload.precision.compute);
            odd.iter().for_each(|anomaly| tracing::warn!("{}", anomaly.text));
            let attempts =
                record::Attempt::begin(&dir, attempt, collective.world()).map_err(internal)?;
            let mut run = serde_json::json!(config.settings);
            run[INITIAL_WEIGHTS] = earlier_weights(&dir);
            let mut started = Record::running(
                WorkloadRecord {
                    id: workload_id.to_owned(),
                    name: config.name.clone(),
                    config: serde_json::json!(workload),
                },
                run,
                record::Environment::read(collective.library(), ranks[0].matmul_kernel.clone()),
                ranks.clone(),
                attempts,
            );
            started.anomalies.clone_from(&odd);
            started.write(&dir).map_err(internal)?;
            record = Some(started);
        }
        Ok(Self {
            dir,
            record,
            reference,
            bucket_bytes: config.settings.collectives.bucket_bytes as u64,
            odd,
            rank: collective.rank(),
            attempt,
            ranks,
            series: None,
            weights: None,
            matmul_flops_per_second: None,
        })
    }

    /// The step that the attempt goes on from, and the floor of its data.
    pub(crate) fn resumed(&mut self, step: u64, entropy_floor: Option<f64>) -> Outcome<()> {
        self.reference.entropy_floor = entropy_floor;
        let Some(record) = &mut self.record else { return Ok(()) };
        if step == 0 {
            // Nothing of an earlier attempt is left: what it began with says nothing of this one.
            record.run[INITIAL_WEIGHTS] = serde_json::Value::Null;
        }
        if let Some(attempt) = record.attempts.last_mut() {
            attempt.resumed(&self.dir, step).map_err(internal)?;
        }
        record.write(&self.dir).map_err(internal)
    }

    /// Writes down that there is a checkpoint now: a kill may come before the record says so.
    pub(crate) fn committed(&mut self, step: u64) -> Result<(), record::Error> {
        let attempt = self.record.as_mut().and_then(|record| record.attempts.last_mut());
        attempt.map_or(Ok(()), |attempt| attempt.committed(&self.dir, step))
    }

    /// Writes down which weights training starts with that are not made from the seed.
    pub(crate) fn initial_weights(&mut self, digest: &blake3::Hash) -> Outcome<()> {
        let Some(record) = &mut self.record else { return Ok(()) };
        let folder = record.run["run"]["init_from"].clone();
        let digest = digest.to_hex().to_string();
        record.run[INITIAL_WEIGHTS] = serde_json::json!({ "folder": folder, "digest": digest });
        record.write(&self.dir).map_err(internal)
    }

    /// Writes down how the attempt ended and everything that was measured.
    pub(crate) fn end(&mut self, ending: &Ending<'_, '_>) -> Outcome<()> {
        let trainer = ending.trainer;
        if self.record.is_none() {
            return self.leave_word(ending);
        }
        let (status, code) = match ending.outcome {
            Ok(End::Stopped) => (Status::Stopped, ExitCode::Stopped),
            Ok(End::LastStep | End::TargetLoss) => (Status::Complete, ExitCode::Done),
            Err(failure) => (Status::Failed, failure.code),
        };
        let failure = ending.outcome.as_ref().err();
        let reason = failure.map(|failure| self.reason(failure, trainer));
        let Some(record) = &mut self.record else { return Ok(()) };
        let is_fenced = failure.is_some_and(|failure| {
            let cause = failure.error.downcast_ref();
            matches!(cause, Some(checkpoint::Error::Fenced { .. }))
        });
        let (code, step) = (code as u8, trainer.map_or(0, |trainer| trainer.state.progress.step));
        record.end(&self.dir, status, code, reason, step).map_err(internal)?;
        if is_fenced {
            return Ok(()); // the record is the newer attempt's
        }
        record.ranks.clone_from(&self.ranks);
        record.checkpoints = Checkpoints::of(&ending.durability.saves);
        record.anomalies = [&self.odd[..], &ending.durability.failures].concat();
        let told_before = record.anomalies.len();
        self.reference.matmul_flops_per_second = self.matmul_flops_per_second;
        if let (Some(series), Some(trainer)) = (&self.series, trainer) {
            record.measure(series, &self.reference, self.weights.filter(|_| failure.is_none()));
            if trainer.collective.world() > 1 {
                let backend = trainer.collective.backend();
                let library = trainer.collective.library();
                record.collectives = Collectives::of(series, backend, library, self.bucket_bytes);
                let warning = trainer.collective.warning();
                let told = |text| Anomaly { step: None, rank: None, text };
                record.anomalies.extend(warning.map(told));
            }
        }
        record.note_unknown();
        for anomaly in record.anomalies.iter().skip(told_before) {
            tracing::warn!("{}", anomaly.text); // failed saves were told when they failed
        }
        record.write(&self.dir).map_err(internal)
    }

    /// The record, on the rank that writes it.
    pub(crate) fn record(&self) -> Option<&Record> {
        self.record.as_ref()
    }
}

impl Chronicle {
    /// Why the run failed, with the rank, host, step and phase where they are known. Who lost
    /// a peer looks for that peer's last word.
    pub(crate) fn reason(&self, failure: &Failure, trainer: Option<&Trainer<'_>>) -> Reason {
        let rank = failure.culprit(self.rank);
        let word = Word::of(&self.dir, self.attempt).filter(Word::is_own);
        if let Some(word) = word.filter(|_| failure.code == ExitCode::PeerLost) {
            return word.reason;
        }
        Reason {
            rank,
            host: rank.and_then(|rank| self.ranks.get(rank)).map(|rank| rank.host.clone()),
            step: failure.step,
            phase: trainer.filter(|_| failure.step.is_some()).map(|trainer| trainer.clock.phase()),
            text: failure.to_string(),
        }
    }

    /// What a rank without the record leaves when it fails: rank 0 may be killed before it knows.
    fn leave_word(&self, ending: &Ending<'_, '_>) -> Outcome<()> {
        let Err(failure) = ending.outcome else { return Ok(()) };
        let reason = self.reason(failure, ending.trainer);
        let word = Word { exit_code: failure.code as u8, reason };
        word.leave(&self.dir, self.attempt, self.rank).map_err(internal)
    }
}
