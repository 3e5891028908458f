//! Ranks of an attempt, including this one: messages about them, and which of them ended it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use collectives::transports::transports;
use record::text::list;
use record::{
    Anomaly, CalibrationRates, Corruption, CorruptionRecord, ErrorFile, ExitCode, RankRecord,
    Reason, Record, Status, Straggler, transport_anomalies, with_recorded_loss,
};
use telemetry::fact::Fact;
use telemetry::hardware::Finding;
use telemetry::{Events, Verdict, WrongValues};

use super::calibration::outliers;
use super::transports::Evidence;
use super::watchdog::{Stall, Watched};
use crate::failure::Failure;
use crate::step::Trainer;
use crate::timing::progress::Progress;

/// Interval between looks at the record.
const RECORD_POLL: Duration = Duration::from_millis(50);

/// All ranks of an attempt. Their findings about each other are equal; rank 0 reports them.
#[derive(Debug)]
pub(super) struct Peers {
    dir: PathBuf,
    attempt: u32,
    rank: usize,
    ranks: Vec<RankRecord>,
    hosts: Vec<String>,
    events: Events,
}

impl Peers {
    /// Takes this rank, `rank`, and all ranks, `ranks`.
    pub(super) fn new(
        dir: &Path,
        attempt: u32,
        rank: usize,
        ranks: Vec<RankRecord>,
        events: &Events,
    ) -> Self {
        let hosts = ranks.iter().map(|rank| rank.host.clone()).collect();
        Self { dir: dir.to_owned(), attempt, rank, ranks, hosts, events: events.clone() }
    }

    /// Returns the folder of the run.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the records of all ranks.
    pub(super) fn records(&self) -> &[RankRecord] {
        &self.ranks
    }

    /// Returns the host of each rank.
    pub(super) fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// Returns the number of the attempt.
    pub(super) fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Reports the connections between ranks, and what is unusual about them.
    pub(super) fn transports(&self, evidence: Vec<Evidence>) {
        if self.rank != 0 {
            return;
        }
        let gaps: Vec<_> = evidence.iter().map(|rank| rank.gap.clone()).collect();
        let found = transports(evidence.into_iter().flat_map(|rank| rank.ends));
        let anomalies = transport_anomalies(&found, &gaps, &self.ranks);
        anomalies.into_iter().for_each(|anomaly| self.events.warn(anomaly));
        self.events.note_for_record(Fact::Transports(found));
    }

    /// Reports operations that ranks compute in another way than usual: once, if all ranks do.
    pub(super) fn fallbacks(&self, of_ranks: Vec<Vec<String>>) {
        if self.rank != 0 {
            return;
        }
        let warn = |rank, text| self.events.warn(Anomaly { step: None, rank, text });
        if of_ranks.iter().all(|texts| *texts == of_ranks[0]) {
            return of_ranks[0].iter().for_each(|text| warn(None, text.clone()));
        }
        for (rank, texts) in of_ranks.into_iter().enumerate() {
            texts.into_iter().for_each(|text| warn(Some(rank), text));
        }
    }

    /// Reports rates on equal work, and ranks that are far below the others.
    pub(super) fn calibrated(&self, step: u64, all: Vec<Option<CalibrationRates>>) {
        if self.rank != 0 {
            return;
        }
        for (rank, text) in outliers(&all, &self.ranks) {
            self.events.warn(Anomaly { step: Some(step), rank: Some(rank), text });
        }
        self.events.note_for_record(Fact::Calibration(all));
    }

    /// Reports that a rank is slow, or no longer is, and why the clocks of its GPU are held down,
    /// if they are.
    pub(super) fn straggler(&self, straggler: Straggler, throttled: Option<&str>) {
        if self.rank != 0 {
            return;
        }
        let mut text = straggler.text(&self.ranks);
        if let Some(reasons) = throttled.filter(|_| straggler.until_step.is_none()) {
            text += &format!("; the clocks of its GPU are held down: {reasons}");
        }
        let step = Some(straggler.until_step.unwrap_or(straggler.since_step));
        let anomaly = Anomaly { step, rank: Some(straggler.rank), text };
        self.events.verdict(Verdict { straggler, anomaly });
    }

    /// Reports wrong values that a check has found.
    pub(super) fn corruption(&self, mut finding: Corruption) {
        if self.rank != 0 {
            return;
        }
        finding.gpu = self.gpu_of(&finding);
        let step = Some(finding.step).filter(|&step| step > 0);
        let text = finding.text(&self.ranks);
        let anomaly = Anomaly { step, rank: finding.rank, text };
        self.events.corruption(WrongValues { finding, anomaly });
    }

    /// Adds the GPUs of the ranks that findings name.
    pub(super) fn name_gpus(&self, record: &mut CorruptionRecord) {
        for finding in &mut record.findings {
            finding.gpu = self.gpu_of(finding);
        }
    }

    /// Returns the PCI address of the GPU of the rank that a finding names.
    fn gpu_of(&self, finding: &Corruption) -> Option<String> {
        let device = self.ranks.get(finding.rank?)?.device.as_ref()?;
        Some(device.pci_bus_id.clone())
    }

    /// Reports something new about a rank's GPU.
    pub(super) fn alarming(&self, step: u64, finding: &Finding) {
        if self.rank == 0 {
            let text = finding.sentence(&self.ranks);
            self.events.warn_later(Anomaly { step: Some(step), rank: Some(finding.rank), text });
        }
    }

    /// Adds to the loss of a peer which ranks arrived and which did not, if they have reported it.
    /// With two ranks, the other one or the link to it is lost.
    pub(super) fn explain(&self, failure: Failure) -> Failure {
        let Some(step) = failure.step.filter(|_| failure.code == ExitCode::PeerLost) else {
            return with_names(failure, &self.ranks);
        };
        let stall = Stall::of(&self.dir, self.attempt, step, self.hosts.len());
        if let Some((rank, position)) = stall.cause(self.rank, &failure.causes()) {
            let explained = failure.context(stall.text(&self.places())).caused_by(rank);
            return Failure { phase: position.map(|position| position.phase), ..explained };
        }
        let failure = match stall.text_of_network(&self.places()) {
            // No rank is missing, whoever's message did not arrive.
            Some(text) => Failure { rank: None, ..failure.context(text) },
            None => with_names(failure, &self.ranks),
        };
        let other = (self.hosts.len() == 2).then(|| 1 - self.rank);
        Failure { rank: failure.rank.or(other), ..failure }
    }

    /// Waits until rank 0 has recorded the loss of a peer, unless that is lost itself, or a failure
    /// that all ranks share. A launcher ends all ranks once one has ended, and rank 0 learns of the
    /// loss up to a step later.
    pub(super) fn await_record(&self, failure: &Failure, is_over: &dyn Fn() -> bool) {
        let is_recorded_later = match failure.code {
            ExitCode::PeerLost => failure.failed_rank(self.rank) != Some(0),
            code => code == ExitCode::Numerical,
        };
        if self.rank == 0 || !is_recorded_later {
            return;
        }
        let is_missing = || {
            let record = Record::read(&self.dir);
            record.is_ok_and(|record| record.status == Status::Running)
        };
        while is_missing() && !is_over() {
            sleep(RECORD_POLL);
        }
    }

    /// Returns the host of each rank, and its place in the dimensions.
    fn places(&self) -> Vec<String> {
        let place = |rank: &RankRecord| match rank.mesh {
            Some(place) => format!("{}, {place}", rank.host),
            None => rank.host.clone(),
        };
        self.ranks.iter().map(place).collect()
    }

    /// Returns why an attempt failed, with the rank, host, step and phase if they are known. If a
    /// peer was lost, its error file and the supervisor's record explain why.
    pub(super) fn reason(&self, failure: &Failure, trainer: Option<&Trainer<'_>>) -> Reason {
        let reason = self.own_reason(failure, trainer);
        if failure.code == ExitCode::PeerLost && self.rank == 0 {
            return with_recorded_loss(&self.dir, self.attempt, reason);
        }
        reason
    }

    fn own_reason(&self, failure: &Failure, trainer: Option<&Trainer<'_>>) -> Reason {
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

    /// Returns the state that the watchdog of this rank observes.
    pub(super) fn watched(&self, progress: &Arc<Progress>, timeout: Duration) -> Watched {
        Watched {
            dir: self.dir.clone(),
            attempt: self.attempt,
            rank: self.rank,
            places: self.places(),
            progress: Arc::clone(progress),
            timeout,
            events: self.events.clone(),
        }
    }
}

/// Adds the names of the ranks that caused a failure, where they have places in dimensions.
fn with_names(failure: Failure, ranks: &[RankRecord]) -> Failure {
    let causes = failure.causes().into_iter().filter_map(|rank| ranks.get(rank));
    let names: Vec<_> = causes.filter(|rank| rank.mesh.is_some()).map(RankRecord::name).collect();
    if names.is_empty() { failure } else { failure.context(list(&names)) }
}

#[cfg(test)]
pub(super) mod tests {
    use collectives::Operation;
    use record::fixtures::finished;
    use record::phase::Phase;
    use record::{MeshPlace, Position, StallFile};
    use telemetry::{LogFormat, Telemetry, TelemetryOptions};

    use super::*;

    /// Telemetry of a rank that prints nothing.
    pub(in crate::run) fn silent_telemetry(dir: &Path, world: usize) -> Telemetry {
        let options = TelemetryOptions {
            dir: dir.to_owned(),
            rank: 1,
            host: String::new(),
            world,
            log_format: LogFormat::Text,
            total_steps: 7,
            log_every_steps: 1,
            tensorboard: None,
            prometheus: None,
            otlp: None,
        };
        Telemetry::start(options).unwrap()
    }

    /// The failure of a rank that waited for these.
    fn lost(peers: &[usize]) -> Failure {
        Failure::from(collectives::Error::Deadline {
            operation: Operation::AllGather,
            group: None,
            position: None,
            rank: 0,
            waited: Duration::from_secs(3),
            bytes: 64,
            backend: "mpi",
            peers: peers.to_vec(),
        })
    }

    /// Ranks 0 and 1 still computed when they last wrote; rank 2 waits, and rank 3 is silent.
    #[test]
    fn positions_do_not_replace_a_rank_that_the_backend_names() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("attempts")).unwrap();
        let phases = [Phase::Backward, Phase::Backward, Phase::CommExposed];
        for (rank, phase) in phases.into_iter().enumerate() {
            let position = Position { step: 7, phase, bucket: 0, buckets: 0 };
            StallFile::new(dir.path(), 1, rank).write(&position).unwrap();
        }
        let telemetry = silent_telemetry(dir.path(), 4);
        let ranks = vec![finished().ranks[0].clone(); 4];
        let peers = Peers::new(dir.path(), 1, 0, ranks, telemetry.events());
        let named = |failure: Failure| peers.explain(failure.at_step(7)).rank;
        assert_eq!(named(lost(&[3])), Some(3));
        assert_eq!(named(lost(&[])), Some(1), "rank 0 waits itself");
    }

    #[test]
    fn every_missing_rank_is_named_with_its_place_in_the_dimensions() {
        let lost = || lost(&[1, 3]);
        let of = |number, mesh| RankRecord { rank: number, mesh, ..finished().ranks[0].clone() };
        let place = |rank| MeshPlace { data: rank / 2, shard: rank % 2 };
        let placed: Vec<_> = (0..4).map(|rank| of(rank, Some(place(rank)))).collect();
        let text = with_names(lost(), &placed).to_string();
        let names = "rank 1 (data 0, shard 1), rank 3 (data 1, shard 1): all-gather of 64 bytes";
        assert!(text.starts_with(names), "{text}");
        let flat: Vec<_> = (0..4).map(|rank| of(rank, None)).collect();
        assert!(with_names(lost(), &flat).to_string().starts_with("all-gather of 64 bytes"));
        let numerical = Failure::new(ExitCode::Numerical, anyhow::anyhow!("not finite"));
        let text = with_names(numerical.caused_by(2), &placed).to_string();
        assert_eq!(text, "rank 2 (data 1, shard 0): not finite");
    }
}
