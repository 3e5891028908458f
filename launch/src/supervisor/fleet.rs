//! The hosts of a launch: which of them answer, and their identities.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::Event;
use super::mpirun::{LaunchTimes, Start};
use super::request::Request;
use super::session::{self, Session, SessionChange, SessionEvent};
use crate::agent::{FromAgent, Hello, ToAgent};
use crate::error::Error;

/// Time until a host that did not answer is tried again.
const RETRY: Duration = Duration::from_millis(500);

/// Maximum number of simultaneous connection attempts: with hundreds, the handshakes on the
/// launcher's cores would take longer than `Patience::hello`, and all would be given up.
const CONNECTING_MAX: usize = 32;

/// Interval of messages that name the missing hosts.
const PROGRESS: Duration = Duration::from_secs(30);

/// The hosts of a launch.
#[derive(Debug)]
pub(super) struct Fleet<'a> {
    request: &'a Request,
    members: Vec<Member>,
    events: Sender<Event>,
    report: Reporter<'a>,
    times: LaunchTimes,
    /// True once SIGTERM or SIGINT has arrived.
    pub(super) stop_requested: bool,
}

struct Reporter<'a>(&'a dyn Fn(&str));

impl std::fmt::Debug for Reporter<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reporter")
    }
}

#[derive(Debug)]
struct Member {
    state: State,
    /// Number of the last connection.
    generation: u32,
    /// Identity in its last answer.
    hello: Option<Hello>,
    /// Reason why it does not answer.
    text: String,
    /// True if it is chosen only when no others are left.
    is_last: bool,
    /// True if a rank on it was slow.
    is_slow: bool,
    /// True if a rank on it computed wrong values: it is not chosen any more.
    is_faulty: bool,
}

#[derive(Debug)]
enum State {
    Disconnected { retry: Instant },
    Connecting { session: Option<Session>, until: Instant },
    Ready { session: Session, terminating: bool },
}

/// Result of waiting for hosts.
pub(super) enum Gathered {
    /// Positions of the hosts to run on.
    Hosts(Vec<usize>),
    StopRequested,
}

/// Hosts to run on.
struct Selection {
    chosen: Vec<usize>,
    /// Reason why a host that answers is not among them.
    refused: Option<Error>,
}

/// Positions of the chosen hosts by container, and by node if nodes must differ.
#[derive(Default)]
struct Places<'a> {
    identities: HashMap<&'a str, usize>,
    nodes: HashMap<&'a str, usize>,
}

/// Returns whether no other hosts would be preferred.
fn are_first(chosen: &[usize]) -> bool {
    chosen.iter().enumerate().all(|(index, host)| index == *host)
}

/// Meaning of an event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The host answers. It is a different one if its container was replaced.
    Connected { host: usize, is_same: bool },
    /// A connection ended, or could not be made.
    Disconnected { host: usize },
    /// The host is terminating.
    Terminating { host: usize },
    /// All ranks of the host run.
    Started { host: usize },
    /// A rank of the host has ended.
    RankEnded { host: usize, rank: Option<usize> },
    /// No rank runs on the host any more.
    NoRanks { host: usize },
}

impl<'a> Fleet<'a> {
    pub(super) fn new(
        request: &'a Request,
        events: Sender<Event>,
        report: &'a dyn Fn(&str),
    ) -> Self {
        let member = |_| Member {
            state: State::Disconnected { retry: Instant::now() },
            generation: 0,
            hello: None,
            text: String::new(),
            is_last: false,
            is_slow: false,
            is_faulty: false,
        };
        Self {
            request,
            members: request.hosts.iter().map(member).collect(),
            events,
            report: Reporter(report),
            times: LaunchTimes { began_unix_ms: unix_ms(), hosts_ready_unix_ms: 0 },
            stop_requested: false,
        }
    }

    /// Waits for as many hosts as requested.
    ///
    /// # Errors
    /// [`Error::HostsMissing`] when too few answer in time, [`Error::SameHost`] or
    /// [`Error::AgentVersion`] when those that do cannot be used together.
    pub(super) fn gather(
        &mut self,
        events: &Receiver<Event>,
        deadline: Instant,
    ) -> Result<Gathered, Error> {
        let began = Instant::now();
        let preference = self.request.patience.preference;
        self.take_all(events);
        let mut next_progress = began + PROGRESS;
        let mut enough_since = None;
        while !self.stop_requested {
            self.connect_due();
            let Selection { chosen, refused } = self.select();
            if chosen.len() == self.request.nodes {
                let since = *enough_since.get_or_insert_with(Instant::now);
                if Instant::now() >= deadline && chosen.iter().any(|&it| self.members[it].is_last) {
                    return Err(self.missing());
                }
                let is_slow = chosen.iter().any(|&host| self.members[host].is_slow);
                if are_first(&chosen) && !is_slow || since.elapsed() >= preference {
                    self.report_chosen(&chosen, began);
                    return Ok(Gathered::Hosts(chosen));
                }
            } else {
                enough_since = None;
                let is_over = Instant::now() >= deadline;
                match refused {
                    Some(error) if is_over || self.ready().len() == self.members.len() => {
                        return Err(error);
                    }
                    _ if is_over => return Err(self.missing()),
                    _ => {}
                }
            }
            if Instant::now() >= next_progress {
                next_progress += PROGRESS;
                (self.report.0)(&format!("waiting for hosts: {}", self.absent()));
            }
            self.receive(events);
        }
        Ok(Gathered::StopRequested)
    }

    /// Waits briefly for an event.
    pub(super) fn receive(&mut self, events: &Receiver<Event>) {
        match events.recv_timeout(RETRY / 5) {
            Ok(event) => self.take(event),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => unreachable!("the fleet has a sender"),
        }
    }

    /// Handles all pending events, such as a request to stop.
    pub(super) fn take_all(&mut self, events: &Receiver<Event>) {
        while let Ok(event) = events.try_recv() {
            self.take(event);
        }
    }

    /// Handles an event while no attempt runs.
    fn take(&mut self, event: Event) {
        match event {
            Event::Session(event) => drop(self.handle(event)),
            Event::StopRequested => self.stop_requested = true,
            Event::MpirunEnded(_) => {}
        }
    }

    /// Deprioritises these hosts: ranks on them cannot be ended.
    pub(super) fn deprioritise(&mut self, silent: &[usize]) {
        for &host in silent {
            self.members[host].is_last = true;
            let text = "ranks of an earlier attempt still run on it";
            (self.report.0)(&format!("{}: {text}", self.description(host)));
        }
    }

    /// Prefers other hosts to these, on which ranks were slow.
    pub(super) fn prefer_others(&mut self, slow: &[usize]) {
        for &host in slow {
            if !std::mem::replace(&mut self.members[host].is_slow, true) {
                let text = "a rank on it was slow: other hosts are preferred";
                (self.report.0)(&format!("{}: {text}", self.description(host)));
            }
        }
    }

    /// Excludes hosts on which ranks computed wrong values.
    pub(super) fn exclude(&mut self, faulty: &[usize]) {
        for &host in faulty {
            self.members[host].is_faulty = true;
            let text = "a rank on it computed wrong values: it is not used any more";
            (self.report.0)(&format!("{}: {text}", self.description(host)));
        }
    }

    /// Returns the number of hosts that are not excluded.
    pub(super) fn usable(&self) -> usize {
        self.members.iter().filter(|member| !member.is_faulty).count()
    }

    /// Returns those of some hosts that have one of these names, as their ranks call them.
    pub(super) fn of_names(&self, hosts: &[usize], names: &[String]) -> Vec<usize> {
        let is_named = |host: &usize| names.contains(&self.own_name(*host));
        hosts.iter().copied().filter(is_named).collect()
    }

    /// Connects to hosts that are due, longest waiting first, and gives up connections that hang.
    fn connect_due(&mut self) {
        let now = Instant::now();
        let mut due = Vec::new();
        let mut connecting = 0;
        for (host, member) in self.members.iter_mut().enumerate() {
            match member.state {
                State::Disconnected { retry } if now >= retry => due.push((retry, host)),
                State::Connecting { until, .. } if now >= until => {
                    member.disconnect("its agent has not identified itself");
                }
                State::Connecting { .. } => connecting += 1,
                _ => {}
            }
        }
        due.sort(); // hosts that do not answer must not keep others waiting
        let free = CONNECTING_MAX.saturating_sub(connecting);
        due.into_iter().take(free).for_each(|(_, host)| self.connect(host));
    }

    /// Connects to a host at once.
    pub(super) fn connect(&mut self, host: usize) {
        let member = &mut self.members[host];
        member.generation += 1;
        let until = Instant::now() + self.request.patience.hello;
        member.state = State::Connecting { session: None, until };
        session::connect(self.request, host, member.generation, self.events.clone());
    }

    /// Handles an event of a connection, and returns its meaning.
    pub(super) fn handle(&mut self, event: SessionEvent) -> Option<Change> {
        let SessionEvent { host, generation, what } = event;
        let member = &mut self.members[host];
        if member.generation != generation {
            if let SessionChange::Started { input, pid } = what {
                Session::new(input, pid).give_up();
            }
            return None;
        }
        match what {
            SessionChange::Started { input, pid } => {
                if let State::Connecting { session, .. } = &mut member.state {
                    *session = Some(Session::new(input, pid));
                }
                None
            }
            SessionChange::Received(FromAgent::Hello(hello)) => {
                let is_same = member.accept_hello(hello)?;
                Some(Change::Connected { host, is_same })
            }
            SessionChange::Received(FromAgent::Terminating) => {
                if let State::Ready { terminating, .. } = &mut member.state {
                    *terminating = true;
                }
                Some(Change::Terminating { host })
            }
            SessionChange::Received(FromAgent::RanksStarted) => Some(Change::Started { host }),
            SessionChange::Received(FromAgent::RankEnded(rank)) => {
                Some(Change::RankEnded { host, rank })
            }
            SessionChange::Received(FromAgent::Alive) => None,
            SessionChange::Received(FromAgent::NoRanks) => Some(Change::NoRanks { host }),
            SessionChange::Ended { text } => {
                member.text = text;
                member.state = State::Disconnected { retry: Instant::now() + RETRY };
                Some(Change::Disconnected { host })
            }
        }
    }

    /// Selects the first hosts that answer and can be used together, up to the requested number.
    fn select(&self) -> Selection {
        let mut selection = Selection { chosen: Vec::new(), refused: None };
        let mut places = Places::default();
        let mut ready = self.ready();
        let rank = |host: usize| (self.members[host].is_last, self.members[host].is_slow);
        ready.sort_by_key(|&host| rank(host)); // stable
        for host in ready {
            if selection.chosen.len() == self.request.nodes {
                break;
            }
            let fits = self.check_version(host);
            match fits.and_then(|()| self.require_different(&mut places, host)) {
                Ok(()) => selection.chosen.push(host),
                Err(error) => selection.refused = Some(error),
            }
        }
        // The same hosts have the same order as before, whatever they were preferred for: their
        // disks have the checkpoints of the same ranks.
        if !selection.chosen.iter().any(|&host| self.members[host].is_last) {
            selection.chosen.sort_unstable();
        }
        selection
    }

    fn check_version(&self, host: usize) -> Result<(), Error> {
        let expected = &self.request.version;
        let found = &self.members[host].hello.as_ref().expect("it has answered").version;
        if found == expected {
            return Ok(());
        }
        Err(Error::AgentVersion {
            host: self.name(host).to_owned(),
            expected: expected.clone(),
            found: found.clone(),
        })
    }

    /// Lists the positions of hosts that answer and are neither terminating nor excluded.
    fn ready(&self) -> Vec<usize> {
        let is_ready = |host: &usize| {
            let Member { state, is_faulty, .. } = &self.members[*host];
            !is_faulty && matches!(state, State::Ready { terminating: false, .. })
        };
        (0..self.members.len()).filter(is_ready).collect()
    }

    /// Returns whether all of these hosts still answer and are not terminating.
    pub(super) fn are_ready(&self, hosts: &[usize]) -> bool {
        let ready = self.ready();
        hosts.iter().all(|host| ready.contains(host))
    }

    fn report_chosen(&mut self, chosen: &[usize], began: Instant) {
        self.times.hosts_ready_unix_ms = unix_ms();
        let names = chosen.iter().map(|&host| self.description(host)).collect::<Vec<_>>();
        let seconds = began.elapsed().as_secs_f64();
        (self.report.0)(&format!("hosts answered after {seconds:.1} s: {}", names.join(", ")));
    }

    /// Registers the place of a host, which must differ from the earlier ones.
    fn require_different<'b>(&'b self, places: &mut Places<'b>, host: usize) -> Result<(), Error> {
        let Hello { host: name, node, identity, .. } =
            self.members[host].hello.as_ref().expect("it has answered");
        let same_as = |other: usize, same: String| Error::SameHost {
            names: [other, host].map(|host| self.name(host).to_owned()),
            same,
        };
        let node = node.as_deref().filter(|_| !self.request.share_nodes);
        if let Some(&other) = places.identities.get(identity.as_str()) {
            return Err(same_as(other, format!("host {name}")));
        }
        if let Some(node) = node {
            if let Some(&other) = places.nodes.get(node) {
                return Err(same_as(other, format!("node {node}")));
            }
            places.nodes.insert(node, host);
        }
        places.identities.insert(identity, host);
        Ok(())
    }

    fn missing(&self) -> Error {
        Error::HostsMissing {
            expected: self.request.nodes,
            ready: self.ready().len(),
            wait: self.request.wait,
            absent: self.absent(),
        }
    }

    /// Lists the hosts that do not answer, with the reasons.
    fn absent(&self) -> String {
        let ready = self.ready();
        let absent = (0..self.members.len()).filter(|host| !ready.contains(host));
        let shown = absent.map(|host| {
            let member = &self.members[host];
            let text = match (&member.state, member.text.as_str()) {
                _ if member.is_faulty => "a rank on it computed wrong values",
                (State::Ready { .. }, _) => "it is terminating",
                (_, "") => "it has not answered yet",
                (_, text) => text,
            };
            format!("{} ({text})", self.name(host))
        });
        shown.collect::<Vec<_>>().join(", ")
    }

    /// Name of a host in the host file.
    pub(super) fn name(&self, host: usize) -> &str {
        &self.request.hosts[host].name
    }

    /// Own name of a host, with that of its node.
    pub(super) fn description(&self, host: usize) -> String {
        match &self.members[host].hello {
            Some(Hello { host, node: Some(node), .. }) => format!("{host} on node {node}"),
            Some(Hello { host, node: None, .. }) => host.clone(),
            None => self.name(host).to_owned(),
        }
    }

    /// Name of a host by its ranks.
    pub(super) fn own_name(&self, host: usize) -> String {
        let hello = self.members[host].hello.as_ref();
        hello.map_or_else(|| self.name(host).to_owned(), |hello| hello.host.clone())
    }

    /// Reason why a host does not answer.
    pub(super) fn text(&self, host: usize) -> &str {
        &self.members[host].text
    }

    /// Sends a message to the agents of hosts that answer, and returns these hosts.
    pub(super) fn send(&mut self, hosts: &[usize], message: ToAgent) -> Vec<usize> {
        let mut reached = Vec::new();
        for &host in hosts {
            if let State::Ready { session, .. } = &mut self.members[host].state {
                session.send(message);
                reached.push(host);
            }
        }
        reached
    }

    /// Kills the rest of an attempt, and returns the hosts that do not answer.
    pub(super) fn clear_ranks(&mut self, hosts: &[usize], events: &Receiver<Event>) -> Vec<usize> {
        let mut waiting = self.send(hosts, ToAgent::Kill);
        let mut lost: Vec<_> =
            hosts.iter().copied().filter(|host| !waiting.contains(host)).collect();
        let deadline = Instant::now() + self.request.patience.clear;
        while !waiting.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(event) = events.recv_timeout(left) else { break };
            match event {
                Event::StopRequested => self.stop_requested = true,
                Event::MpirunEnded(_) => {}
                Event::Session(event) => match self.handle(event) {
                    Some(Change::NoRanks { host }) => {
                        waiting.retain(|other| *other != host);
                    }
                    Some(Change::Disconnected { host }) if waiting.contains(&host) => {
                        waiting.retain(|other| *other != host);
                        lost.push(host);
                    }
                    _ => {}
                },
            }
        }
        for &host in &waiting {
            self.members[host].disconnect("it does not answer");
        }
        lost.extend(waiting);
        lost
    }

    /// Builds the start of ranks on these hosts.
    pub(super) fn start(&self, hosts: &[usize]) -> Start {
        Start {
            hosts: hosts.iter().map(|&host| self.request.hosts[host].clone()).collect(),
            times: self.times,
        }
    }

    /// Restarts the clock for another attempt.
    pub(super) fn restart_clock(&mut self) {
        self.times.began_unix_ms = unix_ms();
    }
}

impl Member {
    /// Handles the identity of an agent, and returns whether it is unchanged. `None` if no
    /// connection awaits it.
    fn accept_hello(&mut self, hello: Hello) -> Option<bool> {
        let State::Connecting { session, .. } = &mut self.state else { return None };
        let session = session.take()?;
        self.state = State::Ready { session, terminating: false };
        let before = self.hello.replace(hello);
        let is_same = before.zip(self.hello.as_ref());
        Some(is_same.is_some_and(|(before, now)| before.identity == now.identity))
    }

    /// Gives up the connection.
    fn disconnect(&mut self, text: &str) {
        let state = State::Disconnected { retry: Instant::now() + RETRY };
        let session = match std::mem::replace(&mut self.state, state) {
            State::Connecting { session, .. } => session,
            State::Ready { session, .. } => Some(session),
            State::Disconnected { .. } => None,
        };
        if let Some(session) = session {
            session.give_up();
        }
        self.generation += 1; // what its process still says does not count
        self.text = text.to_owned();
    }
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
