//! Writes the record of a run on rank 0, when an attempt starts and when it ends. On other ranks it
//! writes an error file if they fail.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use collectives::transports::transports;
use device::cuda::{Libraries, Required, Versions};
use serde_json::{Value, json};

use super::environment::environment;
use super::folder::Folder;
use super::stop::StopReason;
use super::transports::Evidence;
use super::watchdog::{Stall, Watched};
use crate::checkpoints::Checkpointer;
use crate::config::Config;
use crate::failure::{Failure, Outcome};
use crate::ranks::Ranks;
use crate::step::Trainer;
use crate::stragglers::outliers;
use crate::time_limit::within;
use crate::timing::progress::Progress;
use record::ExitCode;
use record::benchmark_file;
use record::golden::GoldenMiss;
use record::hardware::RankHardware;
use record::peaks;
use record::{
    self, Anomaly, Attempt, AttemptEnd, Collectives, ErrorFile, FlopsPerToken, HostRecord,
    JobRecord, NodeReport, PodList, RankRecord, Reason, Record, Recovery, Reference, StartParts,
    Status, StepSeries, TargetRecord, WorkloadRecord, name_nics, node_anomalies, node_groups,
    rank_anomalies, transport_anomalies, with_recorded_loss,
};
use record::{Cost, Energy, machines};
use record::{Sniffed, Straggler};
use telemetry::hardware::{Finding, hardware_anomalies};
use telemetry::{Events, Verdict};

/// How long the file with the status of pods may take to be read.
const PODS_PATIENCE: Duration = Duration::from_secs(2);

/// How old it may be: older ones are of another night.
const PODS_AGE_MAX: Duration = Duration::from_secs(60);

/// The record of the running attempt, on rank 0.
#[derive(Debug)]
pub(super) struct Recorder {
    dir: PathBuf,
    rank: usize,
    attempt: u32,
    began: Instant,
    /// `None` on other ranks.
    record: Option<Record>,
    hosts: Vec<String>,
    reference: Reference,
    bucket_bytes: u64,
    /// File with the status of the job's pods, or nothing.
    pods: String,
    price_per_node_hour: Option<f64>,
    events: Events,
    measured: Measured,
    /// What the ranks reached at the same work.
    sniffed: Vec<Sniffed>,
    /// The last verdict on each rank that got one.
    stragglers: Vec<Straggler>,
}

/// A job at its start.
#[derive(Debug)]
pub(super) struct JobReport {
    pub(super) ranks: Vec<RankRecord>,
    pub(super) nodes: Vec<NodeReport>,
    /// Faults that are injected into it.
    pub(super) injected: Vec<String>,
}

/// Measurements of an attempt, which may be incomplete.
#[derive(Debug, Default)]
pub(super) struct Measured {
    /// The steps of the run.
    pub(super) series: Option<StepSeries>,
    /// All ranks, with their times.
    pub(super) ranks: Option<Vec<RankRecord>>,
    /// What the ranks have read of the hardware: all of them, or only rank 0 after a failure.
    pub(super) hardware: Vec<RankHardware>,
    /// Digest of the final weights.
    pub(super) weights: Option<blake3::Hash>,
    /// When the target loss was reached, if there is a target.
    pub(super) target_loss: Option<TargetRecord>,
    /// The best matmul rate of this rank in FLOP/s.
    pub(super) matmul_flops_per_second: Option<f64>,
}

/// How an attempt ended.
pub(super) struct Ending<'run, 'world> {
    pub(super) outcome: &'run Outcome<StopReason>,
    /// `None` if it failed before the trainer was built.
    pub(super) trainer: Option<&'run Trainer<'world>>,
    pub(super) checkpointer: &'run Checkpointer,
    /// Warnings of the attempt.
    pub(super) anomalies: Vec<Anomaly>,
}

/// Key of the record's `run` for the imported weights of step 0: their `folder` and `digest` (like
/// that of the fingerprint), or null if they were initialised from the seed.
const INITIAL_WEIGHTS: &str = "initial_weights";

impl Recorder {
    /// Records that an attempt starts, before anything of it can fail.
    pub(super) fn begin(
        folder: &Folder,
        config: &Config,
        workload_id: &str,
        ranks: Ranks<'_>,
        job: JobReport,
        attempt: u32,
        events: &Events,
    ) -> Outcome<Self> {
        let workload = &config.workload;
        let flops = models::flops::flops_per_token(&workload.model, workload.batch.sequence_tokens);
        let mut recorder = Self {
            dir: folder.root().to_owned(),
            rank: ranks.rank(),
            attempt,
            began: Instant::now(),
            record: None,
            hosts: job.ranks.iter().map(|rank| rank.host.clone()).collect(),
            reference: Reference {
                flops_per_token: Some(FlopsPerToken { causal: flops.causal, full: flops.full }),
                ..Reference::default()
            },
            bucket_bytes: config.settings.collectives.bucket_bytes as u64,
            pods: config.settings.telemetry.pods.clone(),
            price_per_node_hour: config.settings.telemetry.price_per_node_hour,
            events: events.clone(),
            measured: Measured::default(),
            sniffed: Vec::new(),
            stragglers: Vec::new(),
        };
        if ranks.rank() == 0 {
            recorder.start_record(config, workload_id, ranks, job)?;
        }
        Ok(recorder)
    }

    fn start_record(
        &mut self,
        config: &Config,
        workload_id: &str,
        ranks: Ranks<'_>,
        job: JobReport,
    ) -> Outcome<()> {
        let workload = &config.workload;
        let JobReport { ranks: rank_records, nodes, injected } = job;
        let nodes = node_groups(nodes);
        let compute = workload.precision.compute;
        let mut anomalies =
            rank_anomalies(&rank_records, compute, models::fused::full_speed_kernels(compute));
        anomalies.extend(node_anomalies(&nodes));
        let mut attempts = Attempt::begin(&self.dir, self.attempt, ranks.world(), injected)?;
        let job = benchmark_file::of_environment()?.and_then(|benchmark| benchmark.job);
        if let Err(error) = add_pods(&self.pods, job.as_ref(), &mut attempts) {
            let text = format!("telemetry.pods: the start of pods is not known: {error}");
            anomalies.push(Anomaly { step: None, rank: None, text });
        }
        anomalies.iter().for_each(|anomaly| self.events.warn(anomaly.clone()));
        let mut run = json!(config.settings);
        run[INITIAL_WEIGHTS] = earlier_initial_weights(&self.dir);
        let RankRecord { matmul_kernel, device, .. } = &rank_records[0];
        let kernel = matmul_kernel.clone();
        let cuda = device.is_some().then(cuda_versions);
        self.reference.peak_flops_per_second = peaks::of_a_rank(&rank_records, compute);
        let mut record = Record::running(
            WorkloadRecord {
                id: workload_id.to_owned(),
                name: config.name.clone(),
                config: json!(workload),
            },
            run,
            environment(ranks.collective.library(), kernel, cuda.flatten()),
            rank_records,
            attempts,
        );
        record.job = job;
        record.nodes = nodes;
        record.anomalies = anomalies;
        record.write(&self.dir)?;
        self.record = Some(record);
        Ok(())
    }

    /// Records the step that the attempt resumes from, how it got its state, and the entropy floor
    /// of its data.
    pub(super) fn resumed(
        &mut self,
        step: u64,
        recovery: Option<Recovery>,
        entropy_floor: Option<f64>,
    ) -> Outcome<()> {
        self.reference.entropy_floor = entropy_floor;
        let Some(record) = &mut self.record else { return Ok(()) };
        if step == 0 {
            // The run restarts, so the initial weights of earlier attempts are not used.
            record.run[INITIAL_WEIGHTS] = Value::Null;
        }
        if let Some(attempt) = record.attempts.last_mut() {
            attempt.resumed(&self.dir, step, recovery)?;
        }
        Ok(record.write(&self.dir)?)
    }

    /// Records how much of the work of earlier attempts this one repeats.
    pub(super) fn repeats(&mut self, repeated_ns: u64) {
        if let Some(attempt) = self.attempt_record() {
            attempt.repeated_seconds = repeated_ns as f64 / 1e9;
        }
    }

    /// Records how long the start took, in the attempt's file too: it may be killed. An error is
    /// not the end of a run that has just begun.
    pub(super) fn started(&mut self, parts: StartParts) {
        self.read_pods_again();
        let dir = self.dir.clone();
        let written = self.attempt_record().map(|attempt| attempt.started(&dir, parts));
        if let Some(Err(error)) = written {
            let text = format!("the parts of the start are not in the attempt's file: {error}");
            self.events.warn(Anomaly { step: None, rank: None, text });
        }
    }

    /// Pods that were ready just before the attempt began may not have been in the file then.
    fn read_pods_again(&mut self) {
        let Some(Record { job, attempts, .. }) = &mut self.record else { return };
        let Some(attempt) = attempts.last_mut() else { return };
        let earlier = attempt.pods.take();
        let _ = add_pods(&self.pods, job.as_ref(), attempts); // which was told when it began
        if let Some(attempt) = attempts.last_mut() {
            attempt.pods = attempt.pods.or(earlier);
        }
    }

    fn attempt_record(&mut self) -> Option<&mut record::Attempt> {
        self.record.as_mut()?.attempts.last_mut()
    }

    /// Records the newest committed checkpoint in the attempt's file: the record itself is only
    /// written at the end, which a kill prevents.
    pub(super) fn committed(&mut self, step: u64) -> Result<(), record::Error> {
        let dir = self.dir.clone();
        self.attempt_record().map_or(Ok(()), |attempt| attempt.committed(&dir, step))
    }

    /// Records the digest of imported initial weights.
    pub(super) fn initial_weights(&mut self, digest: &blake3::Hash) -> Outcome<()> {
        let Some(record) = &mut self.record else { return Ok(()) };
        let folder = record.run["run"]["init_from"].clone();
        let digest = digest.to_hex().to_string();
        record.run[INITIAL_WEIGHTS] = json!({ "folder": folder, "digest": digest });
        Ok(record.write(&self.dir)?)
    }

    /// Keeps what all ranks know of the transports between them until the end of the attempt is
    /// recorded, and reports what is unusual.
    pub(super) fn transports(&mut self, evidence: Vec<Evidence>) {
        let Some(record) = &mut self.record else { return };
        let gaps: Vec<_> = evidence.iter().map(|rank| rank.gap.clone()).collect();
        let found = transports(evidence.into_iter().flat_map(|rank| rank.ends));
        let anomalies = transport_anomalies(&found, &gaps, &record.ranks);
        anomalies.into_iter().for_each(|anomaly| self.events.warn(anomaly));
        name_nics(&mut record.ranks, &found);
        record.transports = (!found.is_empty()).then_some(found);
    }

    /// Keeps what the ranks reached at the same work until the end of the attempt is recorded, and
    /// reports those that are far below the others.
    pub(super) fn sniffed(&mut self, step: u64, all: Vec<Sniffed>) {
        if let Some(record) = &self.record {
            for (rank, text) in outliers(&all, &record.ranks) {
                self.events.warn(Anomaly { step: Some(step), rank: Some(rank), text });
            }
        }
        self.sniffed = all;
    }

    /// Keeps that a rank is slow, or no longer is, until the end of the attempt is recorded, and
    /// tells it, with why the clocks of its GPU were held down, if they were. All ranks find the
    /// same.
    pub(super) fn straggler(&mut self, straggler: Straggler, throttled: Option<&str>) {
        let Some(record) = &self.record else { return };
        self.stragglers.retain(|earlier| earlier.rank != straggler.rank);
        self.stragglers.push(straggler);
        let mut text = straggler.text(&record.ranks);
        if let Some(reasons) = throttled.filter(|_| straggler.until_step.is_none()) {
            text += &format!("; the clocks of its GPU are held down: {reasons}");
        }
        let step = Some(straggler.until_step.unwrap_or(straggler.since_step));
        let anomaly = Anomaly { step, rank: Some(straggler.rank), text };
        self.events.verdict(Verdict { straggler, anomaly });
    }

    /// Reports something new about a rank's GPU. All ranks find the same.
    pub(super) fn alarming(&self, step: u64, finding: &Finding) {
        let Some(record) = &self.record else { return };
        let text = finding.sentence(&record.ranks);
        self.events.warn_later(Anomaly { step: Some(step), rank: Some(finding.rank), text });
    }

    /// Adds to the loss of a peer which ranks arrived and which did not, where they have said so.
    /// Of two ranks the other one is lost, or the link to it.
    pub(super) fn explain(&self, failure: Failure) -> Failure {
        let Some(step) = failure.step.filter(|_| failure.code == ExitCode::PeerLost) else {
            return failure;
        };
        let stall = Stall::of(&self.dir, self.attempt, step, self.hosts.len());
        if let Some((rank, position)) = stall.cause() {
            let explained = failure.context(stall.text(&self.hosts)).caused_by(rank);
            return Failure { phase: position.map(|position| position.phase), ..explained };
        }
        let failure = match stall.text_of_network(&self.hosts) {
            Some(text) => failure.context(text),
            None => failure,
        };
        let other = (self.hosts.len() == 2).then(|| 1 - self.rank);
        Failure { rank: failure.rank.or(other), ..failure }
    }

    /// What the watchdog of this rank looks at.
    pub(super) fn watched(&self, progress: &Arc<Progress>, patience: Duration) -> Watched {
        Watched {
            dir: self.dir.clone(),
            attempt: self.attempt,
            rank: self.rank,
            hosts: self.hosts.clone(),
            progress: Arc::clone(progress),
            patience,
            events: self.events.clone(),
        }
    }

    /// Keeps the measurements of the attempt until its end is recorded.
    pub(super) fn measured(&mut self, measured: Measured) {
        self.measured = measured;
    }

    /// Records how the attempt ended, with all measurements.
    pub(super) fn end(&mut self, ending: &Ending<'_, '_>) -> Outcome<()> {
        let failure = ending.outcome.as_ref().err();
        let reason = failure.map(|failure| self.reason(failure, ending.trainer));
        if self.record.is_none() {
            return self.write_error_file(failure, reason);
        }
        let (status, code) = match ending.outcome {
            Ok(StopReason::Requested) => (Status::Stopped, ExitCode::Stopped),
            Ok(StopReason::LastStep | StopReason::TargetLoss | StopReason::Measured) => {
                (Status::Complete, ExitCode::Done)
            }
            Err(failure) if failure.error.is::<GoldenMiss>() => (Status::Void, failure.code),
            Err(failure) => (Status::Failed, failure.code),
        };
        let add_loss = |own| with_recorded_loss(&self.dir, self.attempt, own);
        let reason = if code == ExitCode::PeerLost { reason.map(add_loss) } else { reason };
        let last_step = ending.trainer.map_or(0, Trainer::completed_steps);
        let is_superseded = failure.is_some() && self.is_superseded();
        let Some(record) = &mut self.record else { return Ok(()) };
        let ran = Some(self.began.elapsed());
        let end = AttemptEnd { status, exit_code: code as u8, reason, last_step, ran };
        record.end(&self.dir, end)?;
        if failure.is_some_and(is_fenced) || is_superseded {
            return Ok(()); // a newer attempt writes the record
        }
        self.complete(ending)
    }

    /// Whether a newer attempt has begun, as while this rank was cut off.
    fn is_superseded(&self) -> bool {
        let attempts = record::Attempt::read_all(&self.dir).unwrap_or_default();
        attempts.last().is_some_and(|newest| newest.number > self.attempt)
    }

    /// Fills in the measurements and writes the record.
    fn complete(&mut self, ending: &Ending<'_, '_>) -> Outcome<()> {
        let Some(record) = &mut self.record else { return Ok(()) };
        let measured = &self.measured;
        let checkpointer = ending.checkpointer;
        if let Some(ranks) = &measured.ranks {
            record.ranks.clone_from(ranks);
            name_nics(&mut record.ranks, record.transports.as_deref().unwrap_or_default());
        }
        for (rank, sniffed) in record.ranks.iter_mut().zip(&self.sniffed) {
            rank.sniffed = Some(*sniffed);
        }
        for straggler in &self.stragglers {
            record.ranks[straggler.rank].straggler = Some(*straggler);
        }
        record.target_loss = measured.target_loss;
        record.tiers = checkpointer.tiers();
        record.checkpoints = checkpointer.figures();
        record.anomalies.clone_from(&ending.anomalies);
        let reported_before = record.anomalies.len();
        self.reference.matmul_flops_per_second = measured.matmul_flops_per_second;
        if let (Some(series), Some(trainer)) = (&measured.series, ending.trainer) {
            let weights = measured.weights.filter(|_| ending.outcome.is_ok());
            record.measure(series, &self.reference, weights);
            if !trainer.ranks().is_alone() {
                let collective = trainer.ranks().collective;
                record.collectives = Collectives::of(
                    series,
                    collective.backend(),
                    collective.library(),
                    self.bucket_bytes,
                );
                let anomaly = |text| Anomaly { step: None, rank: None, text };
                record.anomalies.extend(collective.warning().map(anomaly));
            }
        }
        self.add_hardware();
        let Some(record) = &mut self.record else { return Ok(()) };
        record.note_missing();
        for anomaly in record.anomalies.iter().skip(reported_before) {
            self.events.warn(anomaly.clone());
        }
        Ok(record.write(&self.dir)?)
    }

    /// Fills in what the hardware did, and what that costs.
    fn add_hardware(&mut self) {
        let Some(record) = &mut self.record else { return };
        let all = std::mem::take(&mut self.measured.hardware);
        let attempt = self.attempt;
        let steps = self.measured.series.as_ref().map(|series| series.last_attempt());
        let of_attempt = steps.into_iter().flatten().filter(|block| block.attempt == attempt);
        let tokens: u64 = of_attempt.map(|block| block.tokens).sum();
        let is_whole = all.len() == record.ranks.len();
        record.energy = is_whole.then(|| Energy::of(&all, &record.ranks, tokens)).flatten();
        record.anomalies.extend(hardware_anomalies(&all, &record.ranks));
        let pods = record.nodes.iter().map(|group| group.hosts.len()).sum();
        let nodes = if is_whole { machines(&all) } else { pods };
        record.hosts.clear();
        for (rank, hardware) in record.ranks.iter_mut().zip(all) {
            rank.gpu = hardware.gpu;
            let host = |summary| HostRecord {
                host: rank.host.clone(),
                summary,
                ports: hardware.ports.clone(),
            };
            record.hosts.extend(hardware.host.map(host));
        }
        let rate = record.tokens_per_second.map(|rates| rates.wall.total);
        record.cost =
            self.price_per_node_hour.zip(rate).map(|(price, rate)| Cost::of(price, nodes, rate));
    }

    /// The run's folder.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The host of each rank.
    pub(super) fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// The number of the running attempt.
    pub(super) fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The record, on rank 0.
    pub(super) fn record(&self) -> Option<&Record> {
        self.record.as_ref()
    }

    /// Why the run failed, with the rank, host, step and phase if they are known. If a peer was
    /// lost, its error file explains why.
    pub(super) fn reason(&self, failure: &Failure, trainer: Option<&Trainer<'_>>) -> Reason {
        if failure.code == ExitCode::PeerLost
            && let Some(cause) = ErrorFile::of_attempt(&self.dir, self.attempt)
            && cause.is_root_cause()
        {
            return cause.reason;
        }
        let rank = failure.failed_rank(self.rank);
        let in_step = trainer.filter(|_| failure.step.is_some());
        let own_phase = in_step.map(|trainer| trainer.clock().phase());
        Reason {
            rank,
            host: rank.and_then(|rank| self.hosts.get(rank)).cloned(),
            step: failure.step,
            phase: if rank.is_none_or(|rank| rank == self.rank) {
                own_phase
            } else {
                failure.phase
            },
            text: failure.to_string(),
        }
    }

    /// Writes the error of a rank other than 0, because rank 0 may be killed before it knows why.
    fn write_error_file(&self, failure: Option<&Failure>, reason: Option<Reason>) -> Outcome<()> {
        let (Some(failure), Some(reason)) = (failure, reason) else { return Ok(()) };
        let file = ErrorFile { exit_code: failure.code as u8, reason };
        Ok(file.write(&self.dir, self.attempt, self.rank)?)
    }
}

/// Gives attempts the times of their pods, if a file with their status is named. Without a job it
/// is the only one that is there.
///
/// # Errors
/// A sentence on why they are not known.
fn add_pods(file: &str, job: Option<&JobRecord>, attempts: &mut [Attempt]) -> Result<(), String> {
    if file.is_empty() {
        return Ok(());
    }
    let pods = read_pods(file)?;
    let job = job.map(|job| job.name.as_str()).or_else(|| pods.only_job());
    let job = job.ok_or_else(|| format!("{file}: expected pods of one job"))?;
    pods.fill_in(job, attempts, i64::MIN);
    Ok(())
}

/// Reads on a thread of its own: the other ranks wait for this one, and the file may be on storage
/// of its own that hangs.
fn read_pods(file: &str) -> Result<PodList, String> {
    let path = PathBuf::from(file);
    within(PODS_PATIENCE, move || require_recent(&path).and_then(|()| PodList::read(&path)))
        .map_err(|error| error.to_string())?
        .unwrap_or_else(|| Err(format!("{file} has not answered: is storage hung?")))
}

/// What keeps the file up to date may have ended long ago.
fn require_recent(file: &Path) -> Result<(), String> {
    let modified = std::fs::metadata(file).and_then(|found| found.modified());
    let modified = modified.map_err(|error| format!("{}: {error}", file.display()))?;
    let age = modified.elapsed().unwrap_or_default();
    if age <= PODS_AGE_MAX {
        return Ok(());
    }
    Err(format!(
        "{}: expected what is written anew, found it {} s old",
        file.display(),
        age.as_secs()
    ))
}

/// Whether the checkpoints have been claimed by a newer attempt.
fn is_fenced(failure: &Failure) -> bool {
    matches!(failure.error.downcast_ref(), Some(checkpoint::Error::Fenced { .. }))
}

/// The initial weights that an earlier attempt recorded, which stay valid when the run resumes.
fn earlier_initial_weights(dir: &Path) -> Value {
    Record::read(dir).map_or(Value::Null, |record| record.run[INITIAL_WEIGHTS].clone())
}

/// Versions of the libraries that are open.
fn cuda_versions() -> Option<Versions> {
    Libraries::open(&Required::NONE).ok().map(Libraries::versions)
}
