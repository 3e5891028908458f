//! The sink of the record: it folds all events of an attempt into `record.json` and the attempt's
//! file on rank 0, and writes the error file of another rank that fails.

use std::mem;
use std::path::{Path, PathBuf};
use std::time::Instant;

use record::Kind;
use record::hardware::RankHardware;
use record::phase::PhaseTimes;
use record::{
    Anomaly, Attempt, AttemptEnd, CalibrationRates, Collectives, Cost, DimensionTraffic, Energy,
    Error, ErrorFile, HostRecord, OwnTimes, RankRecord, Record, Reference, StartParts, StepSeries,
    Straggler, TargetRecord, WeightsDigest, machines, name_nics,
};
use serde_json::Value;

use super::{Anomalies, Hardware, StepLog};
use crate::event::Event;
use crate::fact::{Begun, Ended, Fact, JobPods, Resumed, Saves};
use crate::hardware::hardware_anomalies;
use crate::sink::Sink;

/// Key of the record's `run` for the imported weights of step 0: their `folder` and `digest` (like
/// that of the fingerprint), or null if they were initialised from the seed.
const INITIAL_WEIGHTS: &str = "initial_weights";

/// The fold over the events of one attempt.
#[derive(Debug)]
pub(crate) struct RunRecord {
    dir: PathBuf,
    rank: usize,
    /// Steps of this rank, until the last one.
    steps: Option<Box<StepLog>>,
    /// Steps of this rank, after the last one.
    series: Option<StepSeries>,
    anomalies: Anomalies,
    hardware: Hardware,
    /// Hardware of the ranks, at the end: all of them, or only this one after a failure.
    hardware_of_ranks: Vec<RankHardware>,
    /// Running record, on rank 0 once the attempt has begun.
    running: Option<Running>,
}

/// Record of a running attempt, with the data that is added to it at the end.
#[derive(Debug)]
struct Running {
    record: Record,
    began: Instant,
    reference: Reference,
    bucket_bytes: u64,
    price_per_node_hour: Option<f64>,
    sniffed: Vec<Option<CalibrationRates>>,
    /// Last verdict on each rank that got one.
    stragglers: Vec<Straggler>,
    traffic: Vec<DimensionTraffic>,
    weights: Option<WeightsDigest>,
}

/// Contribution of one rank to the record of its job at the end of an attempt.
#[derive(Debug)]
pub struct RankSummary {
    /// Steps of the rank, unless they could not be written.
    pub steps: Result<RankSteps, Error>,
    /// Hardware of the rank.
    pub hardware: RankHardware,
}

/// Times of a rank in an attempt.
#[derive(Debug)]
pub struct RankSteps {
    /// Time in each phase.
    pub phases_ns: PhaseTimes,
    /// Times by blocks of steps.
    pub times: OwnTimes,
}

/// Level of detail of a summary.
#[derive(Debug, Clone, Copy)]
pub struct SummaryOptions {
    /// Number of the attempt.
    pub attempt: u32,
    /// Maximum number of blocks of steps.
    pub blocks_max: usize,
    /// True if hardware has its values over time.
    pub has_series: bool,
}

impl RunRecord {
    pub(crate) fn new(dir: &Path, rank: usize) -> Self {
        Self {
            dir: dir.to_owned(),
            rank,
            steps: None,
            series: None,
            anomalies: Anomalies::default(),
            hardware: Hardware::default(),
            hardware_of_ranks: Vec::new(),
            running: None,
        }
    }

    /// Begins the steps. `repeated_ns` is the time of steps of earlier attempts that are repeated.
    pub(crate) fn begin_steps(&mut self, log: Box<StepLog>, repeated_ns: u64) {
        self.steps = Some(log);
        if let Some(attempt) = self.attempt() {
            attempt.repeated_seconds = repeated_ns as f64 / 1e9;
        }
    }

    /// Makes every step so far durable.
    pub(crate) fn sync(&mut self) -> Result<(), Error> {
        self.steps.as_mut().map_or(Ok(()), |steps| steps.sync())
    }

    /// Makes all steps durable, after the last one.
    pub(crate) fn end_steps(&mut self, options: SummaryOptions, delayed_steps: u64) -> RankSummary {
        let hardware = self.hardware.summarize(options.has_series);
        self.hardware_of_ranks = vec![hardware.clone()];
        let finished = self.steps.take().expect("steps have begun").finish();
        let steps = finished.map(|series| {
            let series = self.series.insert(series);
            series.delayed_steps = delayed_steps;
            RankSteps {
                phases_ns: series.phase_totals(options.attempt),
                times: series.own_times(options.attempt, options.blocks_max),
            }
        });
        RankSummary { steps, hardware }
    }

    /// Makes the steps of a failed run durable. There is no caller to return an error to.
    pub(crate) fn close(&mut self) {
        drop(self.steps.take().map(|steps| steps.finish()));
    }

    /// Takes an event; returns warnings that follow from it.
    pub(crate) fn take(&mut self, event: &Event) -> Vec<Anomaly> {
        if let Some(steps) = &mut self.steps {
            steps.take(event);
        }
        self.anomalies.take(event);
        self.hardware.take(event);
        match event {
            Event::FirstStep(parts) => self.first_step(*parts).into_iter().collect(),
            Event::Verdict(verdict) => self.straggler(verdict.straggler).into_iter().collect(),
            _ => Vec::new(),
        }
    }

    /// Takes a fact; returns warnings that follow from it.
    ///
    /// # Errors
    /// [`Error`] when a file cannot be written.
    pub(crate) fn take_fact(&mut self, fact: Fact) -> Result<Vec<Anomaly>, Error> {
        match fact {
            Fact::Begun(begun) => self.begin(*begun)?,
            Fact::Ended(ended) => return self.end(&ended),
            Fact::Hardware(all) => self.hardware_of_ranks = all,
            fact => {
                if let Some(running) = &mut self.running {
                    running.take(&self.dir, fact)?;
                }
            }
        }
        Ok(Vec::new())
    }

    fn begin(&mut self, begun: Begun) -> Result<(), Error> {
        let Begun { attempt, workload, mut run, environment, ranks, injected, .. } = begun;
        let mut attempts = Attempt::begin(&self.dir, attempt, ranks.len(), injected)?;
        if let Some(JobPods { job, pods }) = &begun.pods {
            pods.fill_in(job, &mut attempts, i64::MIN);
        }
        // The initial weights of an earlier attempt stay valid when the run resumes.
        let earlier = Record::read(&self.dir);
        run[INITIAL_WEIGHTS] =
            earlier.map_or(Value::Null, |record| record.run[INITIAL_WEIGHTS].clone());
        let mut record = Record::running(workload, run, environment, ranks, attempts);
        record.job = begun.job;
        record.nodes = begun.nodes;
        record.anomalies = self.anomalies.all();
        record.write(&self.dir)?;
        self.running = Some(Running {
            record,
            began: Instant::now(),
            reference: Reference {
                flops_per_token: Some(begun.flops_per_token),
                peak_flops_per_second: begun.peak_flops_per_second,
                ..Reference::default()
            },
            bucket_bytes: begun.bucket_bytes,
            price_per_node_hour: begun.price_per_node_hour,
            sniffed: Vec::new(),
            stragglers: Vec::new(),
            traffic: Vec::new(),
            weights: None,
        });
        Ok(())
    }

    fn attempt(&mut self) -> Option<&mut Attempt> {
        self.running.as_mut()?.record.attempts.last_mut()
    }

    /// Records the parts of the start in the attempt's file too, as it may be killed. An error does
    /// not end a run that has just begun.
    fn first_step(&mut self, parts: StartParts) -> Option<Anomaly> {
        let dir = self.dir.clone();
        let error = self.attempt()?.started(&dir, parts).err()?;
        let text = format!("the start times could not be written to the attempt's file: {error}");
        Some(Anomaly { step: None, rank: None, text })
    }

    /// Records a verdict at once: a supervisor reads it where this process is killed.
    fn straggler(&mut self, straggler: Straggler) -> Option<Anomaly> {
        let running = self.running.as_mut()?;
        let is_of_save = |it: &Straggler| it.kind == Kind::Checkpoint;
        let is_earlier = |earlier: &Straggler| {
            earlier.rank == straggler.rank && is_of_save(earlier) == is_of_save(&straggler)
        };
        running.stragglers.retain(|earlier| !is_earlier(earlier));
        running.stragglers.push(straggler);
        running.name_slow_ranks();
        let error = running.record.write(&self.dir).err()?;
        let text = format!("the verdict on a slow rank could not be written: {error}");
        Some(Anomaly { step: None, rank: None, text })
    }

    /// Records the end of the attempt, with all measurements.
    fn end(&mut self, ended: &Ended) -> Result<Vec<Anomaly>, Error> {
        let Ended { attempt, exit_code, reason, .. } = ended;
        let Some(running) = &mut self.running else {
            let Some(reason) = reason.clone() else { return Ok(Vec::new()) };
            let file = ErrorFile { exit_code: *exit_code, reason };
            file.write(&self.dir, *attempt, self.rank)?;
            return Ok(Vec::new());
        };
        let end = AttemptEnd {
            status: ended.status,
            exit_code: *exit_code,
            reason: reason.clone(),
            last_step: ended.last_step,
            ran: Some(running.began.elapsed()),
        };
        running.record.end(&self.dir, end)?;
        if ended.is_fenced || ended.is_failure() && is_superseded(&self.dir, *attempt) {
            return Ok(Vec::new()); // a newer attempt writes the record
        }
        running.record.anomalies = self.anomalies.all();
        let reported_before = running.record.anomalies.len();
        running.name_slow_ranks();
        if let Some(series) = &self.series {
            running.measure(series, ended);
        }
        running.add_hardware(&self.hardware_of_ranks, self.series.as_ref(), *attempt);
        running.record.note_missing();
        running.record.write(&self.dir)?;
        Ok(running.record.anomalies[reported_before..].to_vec())
    }
}

/// Returns whether a newer attempt has begun, as while this rank was cut off.
fn is_superseded(dir: &Path, attempt: u32) -> bool {
    let attempts = Attempt::read_all(dir).unwrap_or_default();
    attempts.last().is_some_and(|newest| newest.number > attempt)
}

impl Running {
    fn take(&mut self, dir: &Path, fact: Fact) -> Result<(), Error> {
        let record = &mut self.record;
        match fact {
            Fact::Resumed(resumed) => return self.resumed(dir, resumed),
            Fact::Imported(weights) => {
                record.run[INITIAL_WEIGHTS] = weights;
                return record.write(dir);
            }
            Fact::Committed(step) => {
                let attempt = record.attempts.last_mut();
                return attempt.map_or(Ok(()), |attempt| attempt.committed(dir, step));
            }
            // Pods that were ready just before the attempt began may not have been known then.
            Fact::Pods(JobPods { job, pods }) => {
                let attempt = record.attempts.last_mut();
                let earlier = attempt.and_then(|attempt| attempt.pods.take());
                pods.fill_in(&job, &mut record.attempts, i64::MIN);
                if let Some(attempt) = record.attempts.last_mut() {
                    attempt.pods = attempt.pods.or(earlier);
                }
            }
            Fact::Transports(found) => {
                name_nics(&mut record.ranks, &found);
                record.transports = (!found.is_empty()).then_some(found);
            }
            Fact::Ranks(ranks) => self.replace_ranks(ranks),
            Fact::Traffic(traffic) => self.traffic = traffic,
            Fact::Calibration(all) => self.sniffed = all,
            Fact::Tuned(products) => record.tuned_products = Some(products),
            Fact::MatmulRate(rate) => self.reference.matmul_flops_per_second = Some(rate),
            Fact::Corruption(checks) => {
                let known = record.sdc.as_ref().map_or(0, |before| before.findings.len());
                let is_new = checks.findings.len() > known;
                record.sdc = Some(checks);
                if is_new {
                    record.write(dir)?; // even if the run is killed
                }
            }
            Fact::Profile(profile) => record.profile = Some(*profile),
            Fact::Weights(digest) => self.weights = Some(digest),
            Fact::Saves(Saves { tiers, figures }) => {
                record.tiers = tiers;
                record.checkpoints = figures;
            }
            Fact::Begun(_) | Fact::Ended(_) | Fact::Hardware(_) => unreachable!("taken before"),
        }
        Ok(())
    }

    fn resumed(&mut self, dir: &Path, resumed: Resumed) -> Result<(), Error> {
        let Resumed { step, recovery, entropy_floor } = resumed;
        self.reference.entropy_floor = entropy_floor;
        if step == 0 {
            // The run restarts, so the initial weights of earlier attempts are not used.
            self.record.run[INITIAL_WEIGHTS] = Value::Null;
        }
        if let Some(attempt) = self.record.attempts.last_mut() {
            attempt.resumed(dir, step, recovery)?;
        }
        self.record.write(dir)
    }

    fn replace_ranks(&mut self, ranks: Vec<RankRecord>) {
        self.record.ranks = ranks;
        name_nics(&mut self.record.ranks, self.record.transports.as_deref().unwrap_or_default());
    }

    fn name_slow_ranks(&mut self) {
        let Self { record, sniffed, stragglers, .. } = self;
        for (rank, sniffed) in record.ranks.iter_mut().zip(sniffed) {
            rank.sniffed = *sniffed;
        }
        for straggler in &*stragglers {
            record.ranks[straggler.rank].straggler = Some(*straggler);
        }
        // A rank that is slow at steps and at saves is so at what has not ended.
        for straggler in stragglers.iter().filter(|it| it.until_step.is_none()) {
            record.ranks[straggler.rank].straggler = Some(*straggler);
        }
    }

    /// Fills in the figures of the steps.
    fn measure(&mut self, series: &StepSeries, ended: &Ended) {
        let Self { record, reference, bucket_bytes, traffic, weights, .. } = self;
        record.target_loss = series.target().map(|target| TargetRecord::of(target, series));
        record.measure(series, reference, weights.filter(|_| !ended.is_failure()));
        if let Some(communication) = ended.communication.clone() {
            let library = communication.library;
            let figures = Collectives::of(series, &communication.backend, library, *bucket_bytes);
            record.collectives =
                figures.map(|figures| Collectives { traffic: mem::take(traffic), ..figures });
        }
    }

    /// Fills in the hardware of the attempt, its energy and its cost.
    fn add_hardware(&mut self, all: &[RankHardware], series: Option<&StepSeries>, attempt: u32) {
        let Self { record, price_per_node_hour, .. } = self;
        let steps = series.map(StepSeries::last_attempt);
        let of_attempt = steps.into_iter().flatten().filter(|block| block.attempt == attempt);
        let tokens: u64 = of_attempt.map(|block| block.tokens).sum();
        let is_whole = all.len() == record.ranks.len();
        record.energy = is_whole.then(|| Energy::of(all, &record.ranks, tokens)).flatten();
        record.anomalies.extend(hardware_anomalies(all, &record.ranks));
        let pods = record.nodes.iter().map(|group| group.hosts.len()).sum();
        let nodes = if is_whole { machines(all) } else { pods };
        record.hosts.clear();
        for (rank, hardware) in record.ranks.iter_mut().zip(all) {
            rank.gpu.clone_from(&hardware.gpu);
            let host = |summary| HostRecord {
                host: rank.host.clone(),
                summary,
                ports: hardware.ports.clone(),
            };
            record.hosts.extend(hardware.host.clone().map(host));
        }
        let rate = record.tokens_per_second.map(|rates| rates.wall.total);
        record.cost =
            price_per_node_hour.zip(rate).map(|(price, rate)| Cost::of(price, nodes, rate));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fact::Communication;
    use crate::sinks::StepLogOptions;
    use record::fixtures::{finished, sample};
    use record::{FlopsPerToken, Reason, Status, StepLine};

    const OPTIONS: SummaryOptions = SummaryOptions { attempt: 1, blocks_max: 8, has_series: false };

    /// First attempt of the run of the fixtures.
    fn begun() -> Fact {
        let Record { workload, run, environment, ranks, nodes, .. } = finished();
        Fact::Begun(Box::new(Begun {
            attempt: 1,
            workload,
            run,
            environment,
            ranks,
            nodes,
            job: None,
            pods: None,
            injected: vec!["kill@step=9".to_owned()],
            flops_per_token: FlopsPerToken { causal: 1e6, full: 2e6 },
            peak_flops_per_second: Some(1e12),
            bucket_bytes: 1 << 20,
            price_per_node_hour: None,
        }))
    }

    fn ended(status: Status, reason: Option<Reason>) -> Fact {
        Fact::Ended(Ended {
            attempt: 1,
            status,
            exit_code: 0,
            reason,
            last_step: 12,
            communication: Some(Communication { backend: "mpi".to_owned(), library: None }),
            is_fenced: false,
        })
    }

    fn warning(text: &str) -> Event {
        Event::Warning(Anomaly { step: None, rank: None, text: text.to_owned() })
    }

    /// A record that has begun, with this number of steps.
    fn after_steps(dir: &Path, steps: u64) -> RunRecord {
        let mut record = RunRecord::new(dir, 0);
        record.take(&warning("before it begins"));
        record.take_fact(begun()).unwrap();
        let options = StepLogOptions {
            completed_steps: 0,
            target_loss: None,
            golden: record::golden::Found::Nothing,
            loss_spike_z: 8.0,
        };
        let (log, _) = StepLog::open(dir, 0, 2, &options).unwrap();
        record.begin_steps(Box::new(log), 1_500_000_000);
        (1..=steps).for_each(|step| {
            record.take(&Event::Step(StepLine::now(0, sample(1, step))));
        });
        record
    }

    #[test]
    fn a_run_is_recorded_when_it_begins_and_when_it_ends() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        let mut record = after_steps(dir, 12);
        let at_start = Record::read(dir).unwrap();
        assert_eq!((at_start.status, at_start.steps), (Status::Running, None));
        assert_eq!(at_start.anomalies[0].text, "before it begins");
        record.take_fact(Fact::Committed(6)).unwrap();
        assert_eq!(Attempt::read_all(dir).unwrap()[0].committed_step, Some(6));
        let summary = record.end_steps(OPTIONS, 3);
        assert_eq!(summary.steps.unwrap().phases_ns.wall_ns(), 1_200_000_000);
        record.take_fact(Fact::MatmulRate(1e9)).unwrap();
        let sent = DimensionTraffic {
            dimension: "shard".to_owned(),
            ranks: 2,
            operation: "all_gather".to_owned(),
            operations_per_step: 3.0,
            bytes_per_step: 4e6,
            total_ms: 2.0,
            hidden_ms: 1.0,
            exposed_ms: 1.0,
            busbw_bytes_per_second: 2e9,
        };
        record.take_fact(Fact::Traffic(vec![sent.clone()])).unwrap();
        record.take_fact(Fact::Weights(WeightsDigest::new(1))).unwrap();
        let found = record.take_fact(ended(Status::Complete, None)).unwrap();
        assert!(found[0].text.contains("delayed 3 steps"), "{found:?}");
        let at_end = Record::read(dir).unwrap();
        assert_eq!(at_end.status, Status::Complete);
        assert_eq!(at_end.steps.unwrap().completed, 12);
        assert_eq!(at_end.attempts[0].repeated_seconds, 1.5);
        assert_eq!(at_end.attempts[0].injected, ["kill@step=9"]);
        let collectives = at_end.collectives.unwrap();
        assert_eq!((&*collectives.backend, &*collectives.traffic), ("mpi", &[sent][..]));
        assert!(at_end.fingerprint.unwrap().weights.is_some());
        assert_eq!(at_end.anomalies.len(), 1 + found.len());
    }

    /// The weights of a failed run are not final, and its measurements are kept.
    #[test]
    fn a_run_that_fails_is_recorded_with_its_steps() {
        let folder = tempfile::tempdir().unwrap();
        let mut record = after_steps(folder.path(), 12);
        record.end_steps(OPTIONS, 0).steps.unwrap();
        record.take_fact(Fact::Weights(WeightsDigest::new(1))).unwrap();
        let reason = Reason { text: "a disk is full".to_owned(), ..Reason::default() };
        record.take_fact(ended(Status::Failed, Some(reason.clone()))).unwrap();
        let found = Record::read(folder.path()).unwrap();
        assert_eq!((found.status, found.reason), (Status::Failed, Some(reason)));
        assert_eq!(found.steps.unwrap().recorded, 12);
        assert_eq!(found.fingerprint.unwrap().weights, None);
    }

    #[test]
    fn a_newer_attempt_keeps_its_record() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        let mut record = after_steps(dir, 2);
        Attempt::begin(dir, 2, 2, Vec::new()).unwrap();
        let reason = Reason { text: "cut off".to_owned(), ..Reason::default() };
        record.take_fact(ended(Status::Failed, Some(reason))).unwrap();
        assert_eq!(Record::read(dir).unwrap().status, Status::Running);
    }

    #[test]
    fn another_rank_leaves_an_error_file_and_no_record() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("attempts")).unwrap(); // by rank 0
        let mut record = RunRecord::new(folder.path(), 1);
        record.take_fact(ended(Status::Complete, None)).unwrap();
        assert!(ErrorFile::of_attempt(folder.path(), 1).is_none());
        let reason = Reason { text: "out of memory".to_owned(), ..Reason::default() };
        record.take_fact(ended(Status::Failed, Some(reason.clone()))).unwrap();
        assert_eq!(ErrorFile::of_attempt(folder.path(), 1).unwrap().reason, reason);
        assert!(Record::read(folder.path()).is_err());
    }
}
