//! The verdict on an attempt: an exit code, or another attempt.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use super::Ending;
use super::evidence::{Judgement, Loss, RunState};
use super::request::Request;
use crate::signals;
use record::text::count;

/// Exit codes that the supervisor decides.
const DONE: u8 = 0;
const INTERNAL: u8 = 1;
const ENVIRONMENT: u8 = 3;
pub(super) const PEER_LOST: u8 = 5;
const STOPPED: u8 = 75;
const INTERRUPTED: u8 = signals::INTERRUPTED as u8;

/// Exit codes of a rank that failed by itself, which `mpirun` passes on.
const OF_RANKS: [u8; 4] = [2, 3, 4, 6];

/// Rank of a host that ended first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RankEnded {
    /// Position of its host.
    pub(super) host: usize,
    pub(super) rank: Option<usize>,
}

impl RankEnded {
    /// Formats the rank, as in `rank 3`.
    pub(super) fn name(self) -> String {
        self.rank.map_or("a rank".to_owned(), |rank| format!("rank {rank}"))
    }
}

/// End of an `mpirun`.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    /// Position of a host that was lost.
    pub(super) lost: Option<usize>,
    /// A rank that ended while others went on.
    pub(super) rank_ended: Option<RankEnded>,
    /// True if the supervisor was asked to stop.
    pub(super) stop_requested: bool,
    /// True if a host was terminating.
    pub(super) drained: bool,
    /// True if it had not started all ranks before the deadline.
    pub(super) never_started: bool,
    /// True if ranks were killed because the supervisor was asked to stop a second time.
    pub(super) is_interrupted: bool,
    /// True if the supervisor has ended it.
    pub(super) is_by_supervisor: bool,
}

impl Ended {
    /// Time until the final record must be visible here; `None` unless the exit codes of its ranks
    /// show that they have recorded it.
    pub(super) fn visible_within(&self) -> Option<Duration> {
        let is_by_itself = self.lost.is_none() && !self.is_by_supervisor;
        match self.status.code().filter(|_| is_by_itself)? {
            0 => Some(Duration::from_secs(30)),
            1..=6 | 75 => Some(Duration::from_secs(10)),
            _ => None,
        }
    }

    /// Exit code of an `mpirun` that ended by itself.
    fn own_code(&self) -> Option<u8> {
        let code = self.status.code().filter(|_| !self.is_by_supervisor)?;
        u8::try_from(code).ok()
    }

    /// Exit code of a rank that failed by itself: `mpirun`'s own are 1 and other codes.
    fn failed_rank(&self) -> Option<u8> {
        self.own_code().filter(|code| OF_RANKS.contains(code))
    }

    /// Describes how `mpirun` ended.
    pub(super) fn status_text(&self) -> String {
        match (self.status.code(), self.status.signal()) {
            _ if self.is_interrupted => "ranks were killed on a second request to stop".to_owned(),
            _ if self.is_by_supervisor => "mpirun did not end by itself".to_owned(),
            (Some(137), _) => {
                "mpirun ended with 137: a rank was killed by SIGKILL (out of memory?)".to_owned()
            }
            (Some(code), _) if code > 128 && code < 160 => {
                format!("mpirun ended with {code}: a rank was killed by signal {}", code - 128)
            }
            (Some(code), _) => format!("mpirun ended with {code}"),
            (None, signal) => format!("mpirun was killed by signal {}", signal.unwrap_or(0)),
        }
    }
}

/// Next action.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// End the launch.
    End(Ending),
    /// Start again if that is allowed, or else end the launch like this.
    Restart(Ending),
}

impl Next {
    /// Exit code if the launch ends here.
    pub(super) fn code(&self) -> u8 {
        let (Self::End(end) | Self::Restart(end)) = self;
        end.code
    }

    /// Ends the launch, because too few hosts are left.
    pub(super) fn without_hosts(self) -> Self {
        let (Self::End(end) | Self::Restart(end)) = self;
        let text = format!("{}; no other host is left to start again on", end.text);
        Self::End(ending(end.code, text))
    }

    /// Replaces the reason of a loss by the record's, if it has one.
    pub(super) fn with_reason(mut self, reason: Option<String>) -> Self {
        let (Self::End(end) | Self::Restart(end)) = &mut self;
        if let Some(reason) = reason.filter(|_| end.code == PEER_LOST) {
            end.text = reason;
        }
        self
    }
}

fn ending(code: u8, text: impl Into<String>) -> Ending {
    Ending { code, text: text.into() }
}

/// Ending when asked to stop while nothing runs: the ending of an earlier attempt stays.
pub(super) fn stopped_while_waiting(last: Option<Ending>) -> Ending {
    last.unwrap_or_else(|| ending(STOPPED, "stopped before training began"))
}

/// Decides by the record since `before`. `loss` took ranks away.
pub(super) fn of(
    request: &Request,
    ended: &Ended,
    loss: Option<&Loss>,
    before: &Judgement,
    after: &Judgement,
) -> Next {
    let reason = || after.reason.clone().unwrap_or_else(|| ended.status_text());
    match after.state {
        RunState::Unreadable => unreadable(ended, loss, &reason()),
        _ if !after.has_begun_since(before) && ended.is_interrupted => interrupted(ended, after),
        _ if !after.has_begun_since(before) => not_begun(request, ended, loss, after),
        RunState::Complete => Next::End(completed(request, after)),
        RunState::Stopped => {
            let end = ending(STOPPED, "stopped after a committed checkpoint");
            if ended.drained && !ended.stop_requested { Next::Restart(end) } else { Next::End(end) }
        }
        _ if ended.is_interrupted => interrupted(ended, after),
        RunState::Failed(PEER_LOST) => lost(ended, reason()),
        RunState::Failed(code) if !after.faulty_hosts.is_empty() && !ended.stop_requested => {
            Next::Restart(ending(code, reason()))
        }
        RunState::Failed(code) => Next::End(ending(code, reason())),
        _ => unrecorded(ended, loss),
    }
}

/// Verdict after ranks were killed on a second request to stop.
fn interrupted(ended: &Ended, found: &Judgement) -> Next {
    let saved = match found.committed_step {
        Some(step) => format!("the steps after {step}, the newest checkpoint, are lost"),
        None => "all steps are lost, as no checkpoint is committed".to_owned(),
    };
    Next::End(ending(INTERRUPTED, format!("{}: {saved}", ended.status_text())))
}

/// Verdict without a new record. The earlier state of the run counts only if `mpirun` succeeded.
fn not_begun(request: &Request, ended: &Ended, loss: Option<&Loss>, found: &Judgement) -> Next {
    let is_success = ended.status.success() && loss.is_none();
    match found.state {
        RunState::NotRecorded if is_success => Next::End(ending(DONE, "mpirun succeeded")),
        RunState::Complete if is_success => Next::End(match completed(request, found) {
            Ending { code: DONE, .. } => ending(DONE, "the run is complete already"),
            other => other,
        }),
        _ if ended.stop_requested => Next::End(ending(STOPPED, "stopped before training began")),
        _ if ended.never_started => Next::End(ending(
            ENVIRONMENT,
            "mpirun has not started all ranks in time: hosts may not be able to connect to the \
             launcher, or to each other",
        )),
        _ => unrecorded(ended, loss),
    }
}

/// Verdict if storage does not report how the run ended: nothing is a success, and only a rank's
/// own failure is known.
fn unreadable(ended: &Ended, loss: Option<&Loss>, timeout: &str) -> Next {
    let known = loss.map_or_else(|| ended.status_text(), |loss| loss.text.clone());
    let text = format!("{known}; {timeout}");
    match ended.failed_rank() {
        Some(code) => Next::End(ending(code, text)),
        None => lost(ended, text),
    }
}

/// Verdict on a complete run, which counts only if it ran on the requested ranks and hosts.
fn completed(request: &Request, found: &Judgement) -> Ending {
    let Judgement { ranks, hosts, .. } = found;
    if *ranks == request.ranks() && *hosts == request.nodes {
        let [ranks, hosts] = [count(*ranks, "rank"), count(*hosts, "host")];
        return ending(DONE, format!("complete on {ranks} of {hosts}"));
    }
    let text = format!(
        "expected {} on {}, but the record is of {} on {hosts}",
        count(request.ranks(), "rank"),
        count(request.nodes, "host"),
        count(*ranks, "rank")
    );
    ending(ENVIRONMENT, text)
}

/// Verdict on a loss, which ends the launch if it was to stop anyway.
fn lost(ended: &Ended, text: String) -> Next {
    let end = ending(PEER_LOST, text);
    if ended.stop_requested { Next::End(end) } else { Next::Restart(end) }
}

/// Verdict without a recorded end: `mpirun`'s failures count, but not its success.
fn unrecorded(ended: &Ended, loss: Option<&Loss>) -> Next {
    if let Some(code) = ended.failed_rank() {
        return Next::End(ending(code, ended.status_text()));
    }
    if let Some(Loss { host: Some(_), text, .. }) = loss {
        return lost(ended, text.clone());
    }
    match ended.own_code() {
        Some(0) => Next::End(ending(
            PEER_LOST,
            "mpirun reports success, but the run has recorded no end: ranks were lost",
        )),
        Some(1) => Next::End(ending(INTERNAL, ended.status_text())),
        _ => lost(ended, ended.status_text()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hostfile::Host;

    fn request() -> Request {
        let host = |name: &str| Host::new(name, Some(2));
        Request {
            transport: crate::supervisor::Transport::Ssh,
            hosts: ["a", "b", "c"].map(host).into(),
            nodes: 2,
            ranks_per_node: 2,
            share_nodes: false,
            wait: Duration::from_secs(1),
            grace: Duration::from_secs(1),
            patience: crate::supervisor::Patience::default(),
            restarts: 0,
            mpirun: "mpirun".into(),
            mpirun_arguments: Vec::new(),
            forward: Vec::new(),
            id: "test".to_owned(),
            version: "1".to_owned(),
            program: "yardstick".into(),
            arguments: Vec::new(),
            agent: "agent".to_owned(),
        }
    }

    fn ended(code: i32) -> Ended {
        Ended {
            status: ExitStatus::from_raw(code << 8),
            lost: None,
            rank_ended: None,
            stop_requested: false,
            drained: false,
            never_started: false,
            is_interrupted: false,
            is_by_supervisor: false,
        }
    }

    fn record(state: RunState, attempts: usize) -> Judgement {
        Judgement { attempts, ranks: 4, hosts: 2, ..Judgement::without_record(state) }
    }

    fn code(ended: &Ended, loss: Option<&str>, after: &Judgement) -> (u8, bool) {
        let before = Judgement::without_record(RunState::Missing);
        let loss =
            loss.map(|text| Loss { host: Some("b".to_owned()), rank: None, text: text.to_owned() });
        match of(&request(), ended, loss.as_ref(), &before, after) {
            Next::End(end) => (end.code, false),
            Next::Restart(end) => (end.code, true),
        }
    }

    #[test]
    fn the_record_counts_and_not_what_mpirun_says() {
        let complete = record(RunState::Complete, 1);
        assert_eq!(code(&ended(0), None, &complete), (0, false));
        assert_eq!(code(&ended(1), None, &complete), (0, false), "MPI_Finalize may fail");
        let unfinished = record(RunState::Unfinished, 1);
        assert_eq!(
            code(&ended(0), None, &unfinished),
            (5, false),
            "Open MPI 5 says 0 after a loss"
        );
        assert_eq!(code(&ended(4), None, &record(RunState::Failed(4), 1)), (4, false));
        assert_eq!(code(&ended(0), None, &record(RunState::Failed(4), 1)), (4, false));
        assert_eq!(code(&ended(75), None, &record(RunState::Stopped, 1)), (75, false));
        let missing = Judgement::without_record(RunState::Missing);
        assert_eq!(code(&ended(2), None, &missing), (2, false), "bad usage leaves no record");
    }

    #[test]
    fn a_record_of_another_world_is_no_success() {
        let single = Judgement { ranks: 4, hosts: 1, ..record(RunState::Complete, 1) };
        assert_eq!(code(&ended(0), None, &single), (3, false));
        let half = Judgement { ranks: 2, hosts: 2, ..record(RunState::Complete, 1) };
        assert_eq!(code(&ended(0), None, &half), (3, false));
    }

    #[test]
    fn losses_and_drains_are_reasons_to_start_again() {
        let unfinished = record(RunState::Unfinished, 1);
        assert_eq!(code(&ended(205), Some("b is lost"), &unfinished), (5, true));
        assert_eq!(code(&ended(137), None, &unfinished), (5, true));
        assert_eq!(code(&ended(0), None, &record(RunState::Failed(5), 1)), (5, true));
        let stopped = record(RunState::Stopped, 1);
        let drained = Ended { drained: true, ..ended(75) };
        assert_eq!(code(&drained, None, &stopped), (75, true));
        let both = Ended { stop_requested: true, ..drained };
        assert_eq!(code(&both, None, &stopped), (75, false), "asked to stop");
        let lost_at_start = Judgement::without_record(RunState::Missing);
        let ended_by_us = Ended { is_by_supervisor: true, ..ended(1) };
        assert_eq!(code(&ended_by_us, Some("b is lost"), &lost_at_start), (5, true));
        let asked = Ended { stop_requested: true, ..ended(205) };
        assert_eq!(code(&asked, Some("b is lost"), &unfinished), (5, false));
    }

    #[test]
    fn the_end_of_an_earlier_attempt_does_not_count() {
        let before = record(RunState::Stopped, 3);
        let next = of(&request(), &ended(213), None, &before, &before);
        let Next::Restart(end) = next else { panic!("{next:?}") };
        assert_eq!(end.code, 5);
        let complete = record(RunState::Complete, 3);
        let code_of = |ended: &Ended| match of(&request(), ended, None, &complete, &complete) {
            Next::End(end) | Next::Restart(end) => end.code,
        };
        assert_eq!(code_of(&ended(0)), 0);
        assert_eq!(code_of(&ended(2)), 2, "another workload than that of the folder");
        assert_eq!(code_of(&ended(213)), 5, "mpirun could not start");
        assert_eq!(code_of(&Ended { stop_requested: true, ..ended(143) }), 75);
        assert_eq!(code_of(&Ended { never_started: true, ..ended(143) }), 3);
        let single = Judgement { hosts: 1, ..complete };
        let next = of(&request(), &ended(0), None, &single, &single);
        assert!(matches!(next, Next::End(Ending { code: 3, .. })), "{next:?}");
    }

    #[test]
    fn a_killed_rank_is_named_by_its_signal() {
        assert!(ended(137).status_text().contains("SIGKILL (out of memory?)"));
        assert!(ended(139).status_text().ends_with("killed by signal 11"));
        assert_eq!(ended(205).status_text(), "mpirun ended with 205");
    }
}
