//! The supervisor of a launch: `mpirun` and the checks around it that make it trustworthy.
//!
//! It waits for hosts and holds an agent on each of them (`fleet`), checks that they are as many
//! and as different as requested, runs `mpirun` (`mpirun`), ends it when a host is lost
//! (`attempt`), and judges by the record of the run, not by the exit code of `mpirun` (`evidence`).
//! If that allows a restart, it starts again.

mod attempt;
mod evidence;
mod fleet;
mod mpirun;
mod own_folder;
mod patience;
mod request;
mod session;
mod transport;
mod verdict;

use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use device::threads;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::error::Error;
use attempt::Attempt;
use evidence::Reader;
use fleet::{Fleet, Gathered};
use mpirun::MpiRun;
use record::text::count;
use session::SessionEvent;
use verdict::{Ended, Next};

pub use evidence::{Evidence, Explanation, Judgement, Loss, RunState};
pub use mpirun::LaunchTimes;
pub use patience::Patience;
pub use request::Request;
pub use transport::Transport;

/// Usual time of storage to answer, after which hosts are checked.
const ANSWER: Duration = Duration::from_millis(100);

/// Result of a launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// Exit code for the process.
    pub code: u8,
    /// Reason, as a sentence.
    pub text: String,
}

/// Event of a supervisor.
#[derive(Debug)]
pub(crate) enum Event {
    /// Event of a host's connection.
    Session(SessionEvent),
    /// `mpirun` has ended.
    MpirunEnded(std::process::ExitStatus),
    /// SIGTERM or SIGINT has arrived.
    StopRequested,
}

/// Runs a launch to its end. `report` is called with messages for an operator.
///
/// # Errors
/// When the hosts, `mpirun` and the request do not fit each other: nothing was run, or it cannot be
/// continued.
pub fn run(
    request: &Request,
    evidence: impl Evidence + Send + 'static,
    report: &dyn Fn(&str),
) -> Result<Ending, Error> {
    let mpirun = MpiRun::find(&request.mpirun)?;
    report(&format!("{mpirun}; {request}"));
    for folder in own_folder::remove_abandoned(&std::env::temp_dir()) {
        report(&format!("removed {}, left by a killed launcher", folder.display()));
    }
    let (sender, events) = mpsc::channel();
    watch_signals(sender.clone())?;
    let fleet = Fleet::new(request, sender.clone(), report);
    let evidence = Reader::new(evidence, request.patience.storage)?;
    Supervisor { request, mpirun, fleet, evidence, sender, events, report }.run()
}

fn watch_signals(events: Sender<Event>) -> Result<(), Error> {
    let refused = |source| Error::System { action: "handle signals".to_owned(), source };
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(refused)?;
    threads::spawn("signals", move || {
        for _ in &mut signals {
            let _ = events.send(Event::StopRequested);
        }
    })?;
    Ok(())
}

struct Supervisor<'a> {
    request: &'a Request,
    mpirun: MpiRun,
    fleet: Fleet<'a>,
    evidence: Reader,
    sender: Sender<Event>,
    events: Receiver<Event>,
    report: &'a dyn Fn(&str),
}

impl Supervisor<'_> {
    fn run(mut self) -> Result<Ending, Error> {
        let mut restarts_left = self.request.restarts;
        let mut last = None;
        let mut deadline = Instant::now() + self.request.wait;
        loop {
            let hosts = match self.fleet.gather(&self.events, deadline)? {
                Gathered::Hosts(hosts) => hosts,
                Gathered::StopRequested => return Ok(verdict::stopped_while_waiting(last)),
            };
            // Ranks that an earlier attempt has left would hold devices, and count as new ones.
            let silent = self.fleet.clear_ranks(&hosts, &self.events);
            if self.fleet.stop_requested {
                return Ok(verdict::stopped_while_waiting(last));
            }
            if !silent.is_empty() {
                self.fleet.deprioritise(&silent);
                continue;
            }
            let before = match self.recorded_before() {
                Ok(Some(before)) => before,
                Ok(None) => return Ok(verdict::stopped_while_waiting(last)),
                Err(error) => return last.ok_or(error),
            };
            if !self.fleet.are_ready(&hosts) {
                deadline = Instant::now() + self.request.wait;
                continue;
            }
            match self.attempt(&hosts, &before)? {
                Next::End(ending) => return Ok(ending),
                Next::Restart(ending) if restarts_left == 0 => return Ok(ending),
                Next::Restart(ending) => {
                    restarts_left -= 1;
                    let text = &ending.text;
                    let left = count(restarts_left as usize, "restart");
                    (self.report)(&format!("{text}; starting again, {left} left"));
                    last = Some(ending);
                    self.fleet.restart_clock();
                    self.wait_for_release();
                    deadline = Instant::now() + self.request.wait;
                }
            }
        }
    }

    /// Returns the record before an attempt; `None` when asked to stop meanwhile.
    fn recorded_before(&mut self) -> Result<Option<Judgement>, Error> {
        let wait = self.request.wait;
        let answer = self.evidence.ask(|evidence| evidence.judge());
        let before = self.wait_for(&answer, Instant::now() + wait);
        if before.is_none() && !self.fleet.stop_requested {
            return Err(Error::StorageHung { place: self.evidence.place().to_owned(), wait });
        }
        Ok(before)
    }

    /// Waits until no rank uses the run's folder any more. Ranks on a host that was cut off run
    /// until an operation between ranks has exceeded its deadline, and may still see the folder.
    fn wait_for_release(&mut self) {
        let deadline = Instant::now() + self.request.wait;
        let mut is_reported = false;
        loop {
            let answer = self.evidence.ask(|evidence| evidence.is_in_use());
            if self.wait_for(&answer, deadline) != Some(true) || Instant::now() >= deadline {
                return;
            }
            if !is_reported {
                (self.report)(
                    "ranks of the last attempt still use its folder: waiting for their end",
                );
                is_reported = true;
            }
            self.fleet.receive(&self.events);
        }
    }

    /// Waits for storage to answer; `None` at the deadline, or when asked to stop.
    fn wait_for<T>(&mut self, answer: &Receiver<T>, deadline: Instant) -> Option<T> {
        loop {
            if let Ok(answer) = answer.recv_timeout(ANSWER) {
                return Some(answer);
            }
            self.fleet.take_all(&self.events);
            if self.fleet.stop_requested || Instant::now() >= deadline {
                return None;
            }
        }
    }

    fn attempt(&mut self, hosts: &[usize], before: &Judgement) -> Result<Next, Error> {
        let mpirun = self.mpirun.start(self.request, &self.fleet.start(hosts), &self.sender)?;
        let attempt = Attempt::new(self.request, &mut self.fleet, hosts, mpirun, self.report);
        let mut ended = attempt.watch(&self.events, &self.evidence, before);
        let silent = self.fleet.clear_ranks(hosts, &self.events);
        ended.lost = ended.lost.or(silent.first().copied());
        ended.stop_requested = self.fleet.stop_requested;
        let after = recorded(&ended, before, &self.evidence);
        let loss = self.loss(&ended, before, &after);
        let next = verdict::of(self.request, &ended, loss.as_ref(), before, &after);
        if matches!(next, Next::Restart(_)) && after.has_begun_since(before) {
            let slow = self.fleet.of_names(hosts, &after.slow_hosts);
            self.fleet.prefer_others(&slow);
            let faulty = self.fleet.of_names(hosts, &after.faulty_hosts);
            self.fleet.exclude(&faulty);
            if self.fleet.usable() < self.request.nodes {
                return Ok(next.without_hosts());
            }
        }
        let Some(loss) = loss.filter(|_| after.state != RunState::Unreadable) else {
            return Ok(next);
        };
        let earlier_attempts = before.attempts;
        let explanation = Explanation { loss, code: next.code(), earlier_attempts };
        if let Err(text) = self.evidence.explain(explanation) {
            (self.report)(&text);
            return Ok(next);
        }
        let reason = self.evidence.judge().reason;
        Ok(next.with_reason(reason.filter(|_| after.has_begun_since(before))))
    }

    /// Returns the loss, if it kept the attempt from its end.
    fn loss(&self, ended: &Ended, before: &Judgement, after: &Judgement) -> Option<Loss> {
        if after.has_ended_since(before) {
            return None;
        }
        if let Some(host) = ended.lost {
            let [name, why] = [self.fleet.description(host), self.fleet.text(host).to_owned()];
            let text = format!("host {name} was lost: {why}");
            return Some(Loss { host: Some(self.fleet.own_name(host)), rank: None, text });
        }
        let is_unknown = after.state == RunState::Unreadable;
        let has_begun = is_unknown || after.has_begun_since(before);
        if let Some(first) = ended.rank_ended.filter(|_| has_begun && !ended.is_interrupted) {
            let name = self.fleet.description(first.host);
            let status = ended.status_text();
            let text = format!("{} on {name} ended first: {status}", first.name());
            return Some(Loss {
                host: Some(self.fleet.own_name(first.host)),
                rank: first.rank,
                text,
            });
        }
        let is_killed = has_begun && after.state == RunState::Unfinished;
        is_killed.then(|| Loss { host: None, rank: None, text: ended.status_text() })
    }
}

/// Returns the record of the run, once its end is visible: file systems such as NFS cache what they
/// have read for a while.
fn recorded(ended: &Ended, before: &Judgement, evidence: &Reader) -> Judgement {
    let deadline = ended.visible_within().map(|time| Instant::now() + time);
    loop {
        let found = evidence.judge();
        let is_running = found.has_begun_since(before) && found.state == RunState::Unfinished;
        let is_hidden = found == *before
            && ended.status.success()
            && ![RunState::NotRecorded, RunState::Complete].contains(&found.state);
        let is_over = deadline.is_none_or(|deadline| Instant::now() >= deadline);
        if is_over || !(is_running || is_hidden) {
            return found;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}
