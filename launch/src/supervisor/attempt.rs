//! One `mpirun`, from its start to its end, which is brought about where it does not come of
//! itself.
//!
//! Measured with Open MPI 4.1: when the link to a node is cut, `mpirun` waits for ever, although
//! all other ranks have ended.

use std::process::ExitStatus;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::Event;
use super::evidence::Evidence;
use super::fleet::{Change, Fleet};
use super::mpirun::Running;
use super::request::Request;
use super::verdict::{Ended, RankEnded};
use crate::agent::ToAgent;

/// How long a host whose connection ended may take to answer again.
const CONFIRM: Duration = Duration::from_secs(3);

/// How long after the first rank the others end, where all is well.
const TOGETHER: Duration = Duration::from_secs(2);

/// How long after all ranks `mpirun` may end, so that it says how they ended. After a rank that
/// fails it waits for 5 s.
const MPIRUN_END: Duration = Duration::from_secs(8);

/// How long ranks may take to record that a peer is lost.
const LOSS_GRACE: Duration = Duration::from_secs(15);

/// Without anything to wait for.
const IDLE: Duration = Duration::from_secs(3600);

/// A running attempt.
pub(super) struct Attempt<'a, 'fleet> {
    request: &'a Request,
    fleet: &'a mut Fleet<'fleet>,
    /// Positions of the hosts that it runs on.
    hosts: &'a [usize],
    mpirun: Running,
    tell: &'a dyn Fn(&str),
    phase: Phase,
    /// Until when it goes on.
    until: Option<Instant>,
    /// A host whose connection ended, and until when it may answer again.
    suspect: Option<(usize, Instant)>,
    lost: Option<usize>,
    /// A rank that ended while others go on, and until when they may end as well.
    rank_ended: Option<(RankEnded, Instant)>,
    drained: bool,
    /// Hosts on which ranks still run.
    occupied: Vec<usize>,
}

/// What is being done; later ones follow where that does not end `mpirun`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// It runs.
    Running,
    /// Ranks save and stop.
    Stopping,
    /// A host is lost, and the other ranks record it.
    Losing,
    /// Ranks are killed, `mpirun` is terminated.
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
        tell: &'a dyn Fn(&str),
    ) -> Self {
        Self {
            request,
            fleet,
            hosts,
            mpirun,
            tell,
            phase: Phase::Running,
            until: None,
            suspect: None,
            lost: None,
            rank_ended: None,
            drained: false,
            occupied: hosts.to_vec(),
        }
    }

    /// Returns when `mpirun` has ended.
    pub(super) fn watch(mut self, events: &Receiver<Event>, evidence: &dyn Evidence) -> Ended {
        self.fleet.say(self.hosts, ToAgent::Watch(self.request.ranks_per_node));
        loop {
            match events.recv_timeout(self.time_left()) {
                Ok(Event::MpirunEnded(status)) => return self.ended(status),
                Ok(Event::StopRequested) => self.stop_requested(),
                Ok(Event::Session(event)) => {
                    if let Some(change) = self.fleet.handle(event) {
                        self.changed(change);
                    }
                }
                Err(RecvTimeoutError::Timeout) => self.time_is_up(evidence),
                Err(RecvTimeoutError::Disconnected) => unreachable!("the fleet has a sender"),
            }
        }
    }

    fn time_left(&self) -> Duration {
        let suspect = self.suspect.map(|(_, until)| until);
        let others = self.rank_ended.map(|(_, until)| until);
        let others = others.filter(|_| self.phase == Phase::Running);
        let next = [self.until, suspect, others].into_iter().flatten().min();
        next.map_or(IDLE, |next| next.saturating_duration_since(Instant::now()))
    }

    fn ended(self, status: ExitStatus) -> Ended {
        Ended {
            status,
            lost: self.lost,
            stop_requested: self.fleet.stop_requested,
            rank_ended: self.rank_ended.map(|(ended, _)| ended),
            drained: self.drained,
            is_by_supervisor: self.phase >= Phase::Terminating,
        }
    }

    fn stop_requested(&mut self) {
        if self.fleet.stop_requested {
            (self.tell)("asked to stop again: ranks are killed");
            return self.enter(Phase::Terminating);
        }
        self.fleet.stop_requested = true;
        let seconds = self.request.grace.as_secs();
        (self.tell)(&format!("asked to stop: ranks have {seconds} s to save and end"));
        self.enter(Phase::Stopping);
    }

    fn changed(&mut self, change: Change) {
        match change {
            Change::Gone { host } if self.hosts.contains(&host) => self.gone(host),
            Change::Answers { host, is_same } if self.is_suspect(host) => {
                self.suspect = None;
                if !is_same {
                    self.lose(host, "it is another container now");
                }
            }
            Change::Terminating { host } if self.hosts.contains(&host) => {
                let name = self.fleet.description(host);
                (self.tell)(&format!("{name} is to go: ranks save and stop"));
                self.drained = true;
                self.enter(Phase::Stopping);
            }
            Change::RankEnded { host, rank } if self.rank_ended.is_none() => {
                self.rank_ended = Some((RankEnded { host, rank }, Instant::now() + TOGETHER));
            }
            Change::Empty { host } => {
                self.occupied.retain(|other| *other != host);
                self.end_if_empty();
            }
            _ => {}
        }
    }

    fn is_suspect(&self, host: usize) -> bool {
        self.suspect.is_some_and(|(suspect, _)| suspect == host)
    }

    /// The connection of a host ended, or could not be made again. Where ssh itself failed, the
    /// host is there.
    fn gone(&mut self, host: usize) {
        if self.is_suspect(host) {
            self.suspect = None;
            let text = self.fleet.text(host).to_owned();
            self.lose(host, &text);
        } else if self.lost.is_none() && self.suspect.is_none() {
            self.suspect = Some((host, Instant::now() + CONFIRM));
            self.fleet.connect(host);
        }
    }

    /// A host is lost: nobody waits for its ranks.
    fn lose(&mut self, host: usize, text: &str) {
        let name = self.fleet.description(host);
        (self.tell)(&format!("{name} is lost: {text}"));
        self.lost = Some(host);
        self.occupied.retain(|other| *other != host);
        self.enter(Phase::Losing);
    }

    /// Where all ranks have ended, `mpirun` has no reason to go on.
    fn end_if_empty(&mut self) {
        if self.occupied.is_empty() && self.phase < Phase::Terminating {
            let time = if self.lost.is_some() { TOGETHER } else { MPIRUN_END };
            let soon = Instant::now() + time;
            self.until = Some(self.until.map_or(soon, |until| until.min(soon)));
        }
    }

    /// A rank has ended and the others go on. At the end of a run ranks end together, after the
    /// record was written.
    fn others_go_on(&mut self, ended: RankEnded, evidence: &dyn Evidence) {
        if evidence.judge().state.is_ended() {
            self.rank_ended = None;
            return;
        }
        let name = self.fleet.description(ended.host);
        (self.tell)(&format!("rank {} on {name} has ended, and others wait for it", ended.rank));
        self.enter(Phase::Losing);
    }

    fn time_is_up(&mut self, evidence: &dyn Evidence) {
        if let Some((ended, until)) = self.rank_ended
            && self.phase == Phase::Running
            && Instant::now() >= until
        {
            self.others_go_on(ended, evidence);
        }
        if let Some((host, until)) = self.suspect
            && Instant::now() >= until
        {
            self.suspect = None;
            let text = self.fleet.text(host).to_owned();
            self.lose(host, &text);
        }
        if self.until.is_some_and(|until| Instant::now() >= until) {
            let is_ending = self.phase >= Phase::Terminating;
            if !is_ending && !self.occupied.is_empty() {
                (self.tell)("ranks have not ended in time: they are killed");
            }
            self.enter(if is_ending { Phase::Killing } else { Phase::Terminating });
        }
    }

    /// Goes on to a phase, never back to an earlier one.
    fn enter(&mut self, phase: Phase) {
        if phase <= self.phase {
            return;
        }
        self.phase = phase;
        self.until = match phase {
            Phase::Running | Phase::Killing => None,
            Phase::Stopping => {
                self.fleet.say(self.hosts, ToAgent::Stop);
                Some(Instant::now() + self.request.grace)
            }
            Phase::Losing => {
                self.fleet.say(self.hosts, ToAgent::PeerLost);
                Some(Instant::now() + LOSS_GRACE)
            }
            Phase::Terminating => {
                self.fleet.say(self.hosts, ToAgent::Kill);
                Some(self.mpirun.terminate())
            }
        };
        if phase == Phase::Killing {
            self.mpirun.kill();
        }
    }
}
