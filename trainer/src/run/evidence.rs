//! Record of a run as a supervisor's evidence, which it judges and adds to.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use launch::supervisor::{Evidence, Explanation, Judgement, RunState};

use record::{Attempt, AttemptEnd, CorruptionAction, Error, RankRecord, Reason, Record, Status};

use super::folder::Folder;

/// Exit code of a run that lost a rank.
const PEER_LOST: u8 = 5;

/// Records of runs that follow each other in one launch.
#[derive(Debug)]
pub struct RunEvidence {
    /// Folders of the runs; empty if the launched command leaves no record.
    folders: Vec<PathBuf>,
}

impl RunEvidence {
    /// Takes the runs in these folders.
    pub fn new(folders: Vec<PathBuf>) -> Self {
        Self { folders }
    }

    /// Returns the run that decides: the first incomplete one.
    fn deciding(&self) -> Option<&Path> {
        let is_complete = |folder: &&PathBuf| {
            Record::read(folder).is_ok_and(|record| record.status == Status::Complete)
        };
        let first = self.folders.iter().find(|folder| !is_complete(folder));
        first.or(self.folders.last()).map(PathBuf::as_path)
    }
}

impl Evidence for RunEvidence {
    fn place(&self) -> String {
        let names = self.folders.iter().map(|folder| folder.display().to_string());
        names.collect::<Vec<_>>().join(", ")
    }

    fn judge(&self) -> Judgement {
        let Some(folder) = self.deciding() else {
            return Judgement::without_record(RunState::NotRecorded);
        };
        let attempts_of = |folder: &PathBuf| Attempt::read_all(folder).map_or(0, |all| all.len());
        let attempts = self.folders.iter().map(attempts_of).sum();
        let Ok(record) = Record::read(folder) else {
            let missing = Judgement::without_record(RunState::Missing);
            return Judgement { attempts, ..missing };
        };
        let hosts: BTreeSet<_> = record.ranks.iter().map(|rank| &rank.host).collect();
        Judgement {
            state: state(&record),
            attempts,
            ranks: record.ranks.len(),
            hosts: hosts.len(),
            committed_step: committed_step(folder),
            reason: record.reason.as_ref().map(|reason| text(reason, &record)),
            slow_hosts: slow_hosts(&record),
            faulty_hosts: faulty_hosts(&record),
        }
    }

    fn is_in_use(&self) -> bool {
        let is_locked = |folder: &Path| Folder::new(folder).try_lock().is_ok_and(|locked| !locked);
        self.deciding().is_some_and(is_locked)
    }

    fn explain(&mut self, explanation: &Explanation) -> Result<(), String> {
        let Some(folder) = self.deciding() else { return Ok(()) };
        if self.judge().attempts <= explanation.earlier_attempts {
            return Ok(());
        }
        explain(folder, explanation)
            .map_err(|error| format!("the loss is not in the record: {error}"))
    }
}

/// Returns the hosts of ranks that were slow until the end.
fn slow_hosts(record: &Record) -> Vec<String> {
    let is_slow = |rank: &&RankRecord| rank.straggler.is_some_and(|it| it.until_step.is_none());
    let hosts: BTreeSet<_> = record.ranks.iter().filter(is_slow).map(|rank| &rank.host).collect();
    hosts.into_iter().cloned().collect()
}

/// Returns the hosts of ranks whose wrong values ended the run.
fn faulty_hosts(record: &Record) -> Vec<String> {
    let findings = record.sdc.as_ref().map_or(&[][..], |sdc| &sdc.findings);
    let ended = findings.iter().filter(|found| found.action == CorruptionAction::Stop);
    let ranks = ended.filter_map(|found| record.ranks.get(found.rank?));
    ranks.map(|rank| rank.host.clone()).collect()
}

fn state(record: &Record) -> RunState {
    match record.status {
        Status::Running => RunState::Unfinished,
        Status::Complete => RunState::Complete,
        Status::Stopped => RunState::Stopped,
        Status::Failed | Status::Void => RunState::Failed(record.exit_code.unwrap_or(PEER_LOST)),
    }
}

/// Returns the last committed step, from the files of the attempts, which are written at each
/// commit.
fn committed_step(folder: &Path) -> Option<u64> {
    let attempts = Attempt::read_all(folder).unwrap_or_default();
    attempts.iter().filter_map(|attempt| attempt.committed_step).max()
}

fn text(reason: &Reason, record: &Record) -> String {
    let Reason { rank, host, step, text, .. } = reason;
    let mut place = Vec::new();
    place.extend(rank.map(|rank| record.rank_name(rank)));
    place.extend(host.as_ref().map(|host| format!("host {host}")));
    place.extend(step.map(|step| format!("step {step}")));
    if place.is_empty() { text.clone() } else { format!("{}: {text}", place.join(", ")) }
}

/// Adds an explanation where rank 0 could not record the end, or which host caused it.
fn explain(folder: &Path, explanation: &Explanation) -> Result<(), Error> {
    let Explanation { loss, code, .. } = explanation;
    let mut record = match Record::read(folder) {
        Err(Error::NoRecord { .. }) => return Ok(()),
        record => record?,
    };
    let is_peer_loss = record.status == Status::Failed && record.exit_code == Some(PEER_LOST);
    if record.status != Status::Running && !is_peer_loss {
        return Ok(());
    }
    let earlier = record.reason.take().unwrap_or_default();
    let first_of = |host: &String| record.ranks.iter().find(|rank| rank.host == *host);
    let of_host = loss.host.as_ref().and_then(first_of).map(|rank| rank.rank);
    let known = Reason {
        rank: loss.rank.or(of_host),
        host: loss.host.clone(),
        text: loss.text.clone(),
        ..Reason::default()
    };
    let reason = known.merged_with(earlier);
    let last_step = last_step(folder, &record)?;
    let exit_code = if is_peer_loss { PEER_LOST } else { *code };
    let status = Status::Failed;
    let end = AttemptEnd { status, exit_code, reason: Some(reason), last_step, ran: None };
    record.end(folder, end)?;
    record.write(folder)
}

/// Returns the last step of the last attempt; its steps show it if the record was not written.
fn last_step(folder: &Path, record: &Record) -> Result<u64, Error> {
    let Some(attempt) = record.attempts.last() else { return Ok(0) };
    attempt.last_recorded_step(folder)
}
