//! The agent: the supervisor's process on every host of a job. It identifies its host and signals
//! the ranks of the launch there. If its connection ends, the host may be lost.
//!
//! Signals reach ranks this way under every launcher: SIGTERM to Open MPI 5's `mpirun` leaves ranks
//! no time to save.

mod message;

use std::io::{BufRead, Write};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use device::threads;
use rustix::process::Signal;
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;

use crate::error::Error;
use crate::local_ranks::{LocalRank, LocalRanks, processes_with};
use crate::node_name;
use record::machine::{boot_id, host_name};

pub(crate) use message::line;
pub use message::{FromAgent, Hello, ToAgent};

/// Interval of searches for ranks of the launch. A search takes CPU time that ranks may need, so it
/// runs only until all ranks have started, and while they end.
const SEARCH_INTERVAL: Duration = Duration::from_millis(200);
const END_INTERVAL: Duration = Duration::from_millis(100);

/// Interval of checks that known ranks still run, which take microseconds.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);

/// Interval of signs of life.
const ALIVE_INTERVAL: Duration = Duration::from_secs(2);

/// Time for a supervisor whose connection ended to send another agent.
const REPLACEMENT: Duration = Duration::from_secs(20);

/// Time for ranks without a supervisor to stop.
const ORPHANED: Duration = Duration::from_secs(30);

/// Serves the supervisor of a launch until `input` ends, or `output` cannot be written. If no other
/// agent replaces it, the remaining ranks are asked to stop, and killed later. `name` is that of
/// the subcommand.
///
/// # Errors
/// [`Error::System`] when SIGTERM cannot be handled, [`Error::Thread`].
pub fn run(
    name: &str,
    launch: &str,
    version: &str,
    input: impl BufRead + Send + 'static,
    mut output: impl Write,
) -> Result<(), Error> {
    let (sender, events) = mpsc::channel();
    watch_termination(sender.clone())?;
    // Output of login scripts may end within a line.
    let _ = output.write_all(b"\n");
    threads::spawn("commands", move || read_commands(input, &sender))?;
    let ranks = LocalRanks { launch: Some(launch.to_owned()) };
    let mut agent = Agent { ranks, output, task: Task::Nothing, is_connected: true };
    agent.send(&FromAgent::Hello(Hello::of_this_host(version)));
    agent.serve(&events);
    agent.end_orphans(|| is_replaced(name, launch));
    Ok(())
}

/// Returns whether another agent of the launch runs on this host.
fn is_replaced(name: &str, launch: &str) -> bool {
    let own = rustix::process::getpid();
    processes_with(&[name, launch]).iter().any(|pid| *pid != own)
}

enum Event {
    Command(ToAgent),
    Terminating,
    /// The supervisor is gone.
    Unsupervised,
}

fn watch_termination(events: Sender<Event>) -> Result<(), Error> {
    let refused = |source| Error::System { action: "handle SIGTERM".to_owned(), source };
    let mut signals = Signals::new([SIGTERM]).map_err(refused)?;
    threads::spawn("signals", move || {
        for _ in &mut signals {
            let _ = events.send(Event::Terminating);
        }
    })?;
    Ok(())
}

/// Reads commands, and skips unknown lines, which a newer supervisor may send.
fn read_commands(input: impl BufRead, events: &Sender<Event>) {
    for line in input.lines().map_while(Result::ok) {
        if let Ok(command) = serde_json::from_str(&line) {
            let _ = events.send(Event::Command(command));
        }
    }
    let _ = events.send(Event::Unsupervised);
}

struct Agent<W> {
    ranks: LocalRanks,
    output: W,
    task: Task,
    is_connected: bool,
}

/// Task between commands.
#[derive(Debug)]
enum Task {
    Nothing,
    /// Waits until `count` ranks have started.
    Search {
        count: usize,
        found: Vec<LocalRank>,
    },
    /// Checks that the ranks still run.
    Watch {
        ranks: Vec<LocalRank>,
    },
    /// Waits for ranks to end, and signals those that start meanwhile.
    End {
        signal: Signal,
        signalled: Vec<LocalRank>,
    },
}

impl Task {
    fn interval(&self) -> Duration {
        match self {
            Self::Nothing => ALIVE_INTERVAL,
            Self::Search { .. } => SEARCH_INTERVAL,
            Self::Watch { .. } => WATCH_INTERVAL,
            Self::End { .. } => END_INTERVAL,
        }
    }
}

impl<W: Write> Agent<W> {
    fn serve(&mut self, events: &Receiver<Event>) {
        let mut next_alive = Instant::now() + ALIVE_INTERVAL;
        while self.is_connected {
            let left = next_alive.saturating_duration_since(Instant::now());
            let event = events.recv_timeout(self.task.interval().min(left));
            if Instant::now() >= next_alive {
                next_alive = Instant::now() + ALIVE_INTERVAL;
                self.send(&FromAgent::Alive);
            }
            match event {
                Ok(Event::Command(command)) => self.handle_command(command),
                Ok(Event::Terminating) => self.send(&FromAgent::Terminating),
                Ok(Event::Unsupervised) | Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.poll();
        }
    }

    fn handle_command(&mut self, command: ToAgent) {
        let signal = match command {
            ToAgent::Watch { count, have_started: false } => {
                self.task = Task::Search { count, found: Vec::new() };
                return;
            }
            ToAgent::Watch { count, have_started: true } => return self.resume_watch(count),
            ToAgent::Stop => Signal::TERM,
            ToAgent::PeerLost => Signal::USR2,
            ToAgent::Kill => Signal::KILL,
        };
        self.task = Task::End { signal, signalled: Vec::new() };
    }

    /// Continues the watch of an earlier agent.
    fn resume_watch(&mut self, count: usize) {
        let ranks = self.ranks.running();
        if ranks.len() < count {
            self.send(&FromAgent::RankEnded(None));
        }
        self.task = Task::Watch { ranks };
    }

    fn poll(&mut self) {
        match &mut self.task {
            Task::Nothing => {}
            Task::Search { count, found } => {
                let running = self.ranks.running();
                found.retain(|rank| !running.contains(rank));
                let ended = std::mem::replace(found, running);
                if found.len() >= *count {
                    let ranks = std::mem::take(found);
                    self.task = Task::Watch { ranks };
                    self.send(&FromAgent::RanksStarted);
                }
                self.report_ended(&ended);
            }
            Task::Watch { ranks } => {
                let ended: Vec<_> = ranks.extract_if(.., |rank| !rank.is_running()).collect();
                let is_empty = ranks.is_empty();
                self.report_ended(&ended);
                if is_empty {
                    self.task = Task::Nothing;
                    self.send(&FromAgent::NoRanks);
                }
            }
            Task::End { signal, signalled } => {
                let running = self.ranks.running();
                let new = running.iter().filter(|rank| !signalled.contains(rank));
                let new: Vec<_> = new.copied().collect();
                new.iter().for_each(|rank| rank.signal(*signal));
                signalled.extend(&new);
                // Ranks may still start, unless some were signalled before or all are killed.
                if running.is_empty() && (!signalled.is_empty() || *signal == Signal::KILL) {
                    self.task = Task::Nothing;
                    self.send(&FromAgent::NoRanks);
                }
            }
        }
    }

    fn report_ended(&mut self, ranks: &[LocalRank]) {
        ranks.iter().for_each(|ended| self.send(&FromAgent::RankEnded(Some(ended.rank))));
    }

    fn send(&mut self, message: &FromAgent) {
        let written = self.output.write_all(line(message).as_bytes());
        self.is_connected &= written.and_then(|()| self.output.flush()).is_ok();
    }

    /// Ends the ranks that run now: later ranks have a supervisor.
    fn end_orphans(&self, is_replaced: impl Fn() -> bool) {
        let orphans = self.ranks.running();
        let is_left = || orphans.iter().any(LocalRank::is_running);
        let until = |time: Duration| {
            let deadline = Instant::now() + time;
            while is_left() && !is_replaced() && Instant::now() < deadline {
                std::thread::sleep(END_INTERVAL);
            }
            is_left() && !is_replaced()
        };
        if until(REPLACEMENT) {
            orphans.iter().for_each(|rank| rank.signal(Signal::TERM));
            if until(ORPHANED) {
                orphans.iter().for_each(|rank| rank.signal(Signal::KILL));
            }
        }
    }
}

impl Hello {
    fn of_this_host(version: &str) -> Self {
        let namespace = |name: &str| {
            let link = std::fs::read_link(format!("/proc/self/ns/{name}")).unwrap_or_default();
            link.to_string_lossy().into_owned()
        };
        Self {
            version: version.to_owned(),
            host: host_name(),
            node: node_name(),
            identity: [boot_id(), namespace("pid"), namespace("mnt"), start_of_first_process()]
                .join(" "),
        }
    }
}

/// Start of this container's first process, in clock ticks since the boot: numbers of namespaces
/// are reused.
fn start_of_first_process() -> String {
    const AFTER_NAME: usize = 19; // field 22 of proc_pid_stat(5); the name may have spaces
    let stat = std::fs::read_to_string("/proc/1/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(AFTER_NAME).take(1).collect()
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use super::*;

    #[test]
    fn it_says_who_it_is_and_that_no_rank_runs() {
        let mut output = Vec::new();
        let input = line(&ToAgent::Kill) + "{\"from\": \"a newer version\"}\n";
        let mut agent = Agent {
            ranks: LocalRanks { launch: Some("no such launch".to_owned()) },
            output: &mut output,
            task: Task::Nothing,
            is_connected: true,
        };
        let (sender, events) = mpsc::channel();
        read_commands(BufReader::new(input.as_bytes()), &sender);
        agent.send(&FromAgent::Hello(Hello::of_this_host("1.2.3")));
        agent.serve(&events);
        let lines: Vec<FromAgent> = output
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect();
        let [FromAgent::Hello(hello), FromAgent::NoRanks] = &lines[..] else { panic!("{lines:?}") };
        assert_eq!((hello.version.as_str(), &hello.host), ("1.2.3", &host_name()));
        assert_eq!(hello.identity, Hello::of_this_host("").identity);
        let start = hello.identity.rsplit(' ').next().unwrap();
        assert!(start.parse::<u64>().is_ok(), "{}", hello.identity);
    }
}
