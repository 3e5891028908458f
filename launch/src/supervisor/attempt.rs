//! One `mpirun`, from its start to its end, which the supervisor forces if necessary.
//!
//! Measured with Open MPI 4.1: when the link to a node is cut, `mpirun` waits for ever, although
//! all other ranks have ended.

use std::process::ExitStatus;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::evidence::{Judgement, Reader};
use super::fleet::{Change, Fleet};
use super::mpirun::Running;
use super::patience::Patience;
use super::request::Request;
use super::verdict::{Ended, RankEnded};
use super::{ANSWER, Event};
use crate::agent::ToAgent;

/// Extra time per host to answer again, as all of them reconnect at the same time if the launcher
/// was cut off.
const RECONNECT_OF_A_HOST: Duration = Duration::from_millis(20);

/// Interval of reconnection attempts.
const RETRY: Duration = Duration::from_millis(500);

/// Timeout if there is nothing to wait for.
const IDLE: Duration = Duration::from_secs(3600);

/// A running attempt.
pub(super) struct Attempt<'a, 'fleet> {
    request: &'a Request,
    fleet: &'a mut Fleet<'fleet>,
    /// Positions of the hosts that it runs on.
    hosts: &'a [usize],
    mpirun: Running,
    report: &'a dyn Fn(&str),
    phase: Phase,
    /// Deadline of the current phase.
    until: Option<Instant>,
    /// Hosts whose connections ended, each with a deadline to answer again.
    suspects: Vec<Suspect>,
    /// Hosts on which not all ranks have started yet; the next field is their deadline.
    starting: Vec<usize>,
    started_by: Instant,
    lost: Option<usize>,
    /// A rank that ended while others run, and the deadline for the others to end.
    rank_ended: Option<(RankEnded, Instant)>,
    /// Pending question to the record whether the run had ended by then.
    question: Option<Question>,
    drained: bool,
    never_started: bool,
    /// True if ranks are killed because the supervisor was asked to stop a second time.
    is_interrupted: bool,
    /// Hosts on which ranks still run.
    occupied: Vec<usize>,
}

/// Question to the record.
struct Question {
    answer: Receiver<Judgement>,
    asked: Instant,
}

/// A host whose connection ended.
#[derive(Debug, Clone, Copy)]
struct Suspect {
    host: usize,
    until: Instant,
    /// Time of the next connection; `None` while one is being made.
    retry: Option<Instant>,
}

/// Phase of an attempt; each follows if the one before does not end `mpirun`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// `mpirun` runs.
    Running,
    /// Ranks save and stop.
    Stopping,
    /// A host is lost, and the other ranks record it.
    Losing,
    /// Ranks are killed, and `mpirun` is terminated.
    Terminating,
    /// `mpirun` is killed.
    Killing,
}

impl<'a, 'fleet> Attempt<'a, 'fleet> {
    pub(super) fn new(
        request: &'a Request,
        fleet: &'a mut Fleet<'fleet>,
        hosts: &'a [usize],
        mpirun: Running,
        report: &'a dyn Fn(&str),
    ) -> Self {
        Self {
            request,
            fleet,
            hosts,
            mpirun,
            report,
            phase: Phase::Running,
            until: None,
            suspects: Vec::new(),
            starting: hosts.to_vec(),
            started_by: Instant::now() + request.wait,
            lost: None,
            rank_ended: None,
            question: None,
            drained: false,
            never_started: false,
            is_interrupted: false,
            occupied: hosts.to_vec(),
        }
    }

    /// Waits until `mpirun` has ended.
    pub(super) fn watch(
        mut self,
        events: &Receiver<Event>,
        evidence: &Reader,
        before: &Judgement,
    ) -> Ended {
        self.send_task();
        loop {
            match events.recv_timeout(self.time_left()) {
                Ok(Event::MpirunEnded(status)) => return self.ended(status),
                Ok(Event::StopRequested) => self.stop_requested(),
                Ok(Event::Session(event)) => {
                    if let Some(change) = self.fleet.handle(event) {
                        self.changed(change);
                    }
                }
                Err(RecvTimeoutError::Timeout) => self.time_is_up(evidence, before),
                Err(RecvTimeoutError::Disconnected) => unreachable!("the fleet has a sender"),
            }
        }
    }

    fn time_left(&self) -> Duration {
        let suspects =
            self.suspects.iter().map(|it| it.retry.map_or(it.until, |at| at.min(it.until)));
        let is_running = self.phase == Phase::Running;
        let others = self.rank_ended.map(|(_, until)| until).filter(|_| is_running);
        let start = Some(self.started_by).filter(|_| is_running && !self.starting.is_empty());
        let next = suspects.chain(self.until).chain(others).chain(start).min();
        next.map_or(IDLE, |next| next.saturating_duration_since(Instant::now()))
    }

    /// Returns the task of agents in this phase.
    fn task(&self, host: usize) -> ToAgent {
        match self.phase {
            Phase::Running => ToAgent::Watch {
                count: self.request.ranks_per_node,
                have_started: !self.starting.contains(&host),
            },
            Phase::Stopping => ToAgent::Stop,
            Phase::Losing => ToAgent::PeerLost,
            Phase::Terminating | Phase::Killing => ToAgent::Kill,
        }
    }

    fn send_task(&mut self) {
        for &host in self.hosts {
            let task = self.task(host);
            self.fleet.send(&[host], task);
        }
    }

    fn ended(self, status: ExitStatus) -> Ended {
        Ended {
            status,
            lost: self.lost,
            stop_requested: self.fleet.stop_requested,
            rank_ended: self.rank_ended.map(|(ended, _)| ended),
            drained: self.drained,
            never_started: self.never_started,
            is_interrupted: self.is_interrupted,
            is_by_supervisor: self.phase >= Phase::Terminating,
        }
    }

    fn stop_requested(&mut self) {
        if self.fleet.stop_requested {
            (self.report)(
                "asked to stop again: ranks are killed, steps that are not saved are lost",
            );
            self.is_interrupted |= self.phase < Phase::Terminating;
            return self.enter(Phase::Terminating);
        }
        self.fleet.stop_requested = true;
        let seconds = self.request.grace.as_secs();
        (self.report)(&format!(
            "asked to stop: ranks have {seconds} s to finish their step, save and end; a second \
             signal kills them, and steps that are not saved are lost"
        ));
        self.enter(Phase::Stopping);
    }

    fn changed(&mut self, change: Change) {
        match change {
            Change::Disconnected { host } if self.hosts.contains(&host) => self.disconnected(host),
            Change::Connected { host, is_same } if self.is_suspect(host) => {
                self.suspects.retain(|suspect| suspect.host != host);
                if is_same {
                    let name = self.fleet.description(host);
                    (self.report)(&format!("connected to {name} again"));
                    self.fleet.send(&[host], self.task(host));
                } else {
                    self.lose(host, "its container was replaced");
                }
            }
            Change::Started { host } => self.starting.retain(|other| *other != host),
            Change::Terminating { host } if self.hosts.contains(&host) => {
                let name = self.fleet.description(host);
                (self.report)(&format!("{name} is to go: ranks save and stop"));
                self.drained = true;
                self.enter(Phase::Stopping);
            }
            Change::RankEnded { host, rank } if self.rank_ended.is_none() => {
                let others_end_by = Instant::now() + self.request.patience.together;
                self.rank_ended = Some((RankEnded { host, rank }, others_end_by));
            }
            Change::NoRanks { host } => {
                self.occupied.retain(|other| *other != host);
                self.end_if_empty();
            }
            _ => {}
        }
    }

    fn is_suspect(&self, host: usize) -> bool {
        self.suspects.iter().any(|suspect| suspect.host == host)
    }

    /// Handles the end or failure of a host's connection. If only ssh failed, the host still
    /// exists.
    fn disconnected(&mut self, host: usize) {
        let now = Instant::now();
        if let Some(suspect) = self.suspects.iter_mut().find(|suspect| suspect.host == host) {
            suspect.retry = Some(now + RETRY);
        } else if self.phase < Phase::Terminating && self.lost != Some(host) {
            let hosts = u32::try_from(self.hosts.len()).unwrap_or(u32::MAX);
            let until = now + self.request.patience.reconnect + RECONNECT_OF_A_HOST * hosts;
            self.suspects.push(Suspect { host, until, retry: None });
            self.fleet.connect(host);
        }
    }

    /// Reconnects to suspects that are due, and gives up those past their deadline.
    fn check_suspects(&mut self, now: Instant) {
        for suspect in &mut self.suspects {
            if suspect.retry.take_if(|at| now >= *at).is_some() {
                self.fleet.connect(suspect.host);
            }
        }
        let lost: Vec<_> = self.suspects.extract_if(.., |it| now >= it.until).collect();
        for Suspect { host, .. } in lost {
            let text = self.fleet.text(host).to_owned();
            self.lose(host, &text);
        }
    }

    /// Handles the loss of a host: nobody waits for its ranks.
    fn lose(&mut self, host: usize, text: &str) {
        let name = self.fleet.description(host);
        (self.report)(&format!("{name} is lost: {text}"));
        self.lost.get_or_insert(host); // the first is the cause
        self.occupied.retain(|other| *other != host);
        self.enter(Phase::Losing);
    }

    /// Limits the time of `mpirun` once all ranks have ended.
    fn end_if_empty(&mut self) {
        if self.occupied.is_empty() && self.phase < Phase::Terminating {
            let Patience { together, mpirun_end, .. } = self.request.patience;
            let time = if self.lost.is_some() { together } else { mpirun_end };
            let soon = Instant::now() + time;
            self.until = Some(self.until.map_or(soon, |until| until.min(soon)));
        }
    }

    /// Handles a rank that has ended while others run. At the end of a run ranks end together,
    /// after the record was written.
    fn rank_ended_early(&mut self, ended: RankEnded, evidence: &Reader, before: &Judgement) {
        let ask = || Question { answer: evidence.ask(|it| it.judge()), asked: Instant::now() };
        let Question { answer, asked } = self.question.get_or_insert_with(ask);
        let found = match answer.recv_timeout(ANSWER) {
            Err(_) if asked.elapsed() < evidence.timeout() => {
                self.rank_ended = Some((ended, Instant::now() + ANSWER)); // and asks again
                return;
            }
            found => found.ok(),
        };
        self.question = None;
        if found.is_some_and(|found| found.has_ended_since(before)) {
            self.rank_ended = None;
            return;
        }
        let name = self.fleet.description(ended.host);
        (self.report)(&format!("{} on {name} ended, although the run has not", ended.name()));
        self.enter(Phase::Losing);
    }

    /// Ends a failed start: `mpirun` waits for ever for daemons that cannot connect to it.
    fn start_failed(&mut self) {
        let names: Vec<_> =
            self.starting.iter().map(|&host| self.fleet.description(host)).collect();
        let seconds = self.request.wait.as_secs();
        let names = names.join(", ");
        (self.report)(&format!("after {seconds} s mpirun has not started all ranks on {names}"));
        self.never_started = true;
        self.enter(Phase::Terminating);
    }

    fn time_is_up(&mut self, evidence: &Reader, before: &Judgement) {
        let now = Instant::now();
        let is_running = self.phase == Phase::Running;
        if let Some((ended, until)) = self.rank_ended.filter(|_| is_running)
            && now >= until
        {
            self.rank_ended_early(ended, evidence, before);
        } else if is_running && !self.starting.is_empty() && now >= self.started_by {
            self.start_failed();
        }
        self.check_suspects(now);
        if self.until.is_some_and(|until| Instant::now() >= until) {
            let is_ending = self.phase >= Phase::Terminating;
            if !is_ending && !self.occupied.is_empty() {
                (self.report)("ranks have not ended in time: they are killed");
            }
            self.enter(if is_ending { Phase::Killing } else { Phase::Terminating });
        }
    }

    /// Enters a later phase, never an earlier one.
    fn enter(&mut self, phase: Phase) {
        if phase <= self.phase {
            return;
        }
        self.phase = phase;
        self.send_task();
        self.until = match phase {
            Phase::Running => None,
            Phase::Stopping => Some(Instant::now() + self.request.grace),
            Phase::Losing => Some(Instant::now() + self.request.patience.loss),
            Phase::Terminating => {
                self.mpirun.terminate();
                Some(Instant::now() + self.request.patience.mpirun_termination)
            }
            Phase::Killing => {
                self.mpirun.kill();
                None
            }
        };
    }
}
