//! The connection to a host's agent: over ssh, or as a child where the host is this one.
//!
//! ssh itself notices a host that no longer answers, so the agent sends no heartbeats.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::ToSocketAddrs;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::Sender;

use rustix::process::{Pid, Signal, kill_process};

use super::Event;
use super::request::Request;
use crate::agent::{FromAgent, ToAgent, line};
use crate::host_name;

/// ssh gives a host up that has not answered for 3 x 2 seconds, and a connection after 5.
/// Of its own, as a connection that is shared has the settings of who opened it.
const SSH: [&str; 18] = [
    "-T",
    "-x",
    "-o",
    "ControlMaster=no",
    "-o",
    "ControlPath=none",
    "-o",
    "RemoteCommand=none",
    "-o",
    "BatchMode=yes",
    "-o",
    "ConnectTimeout=5",
    "-o",
    "ServerAliveInterval=2",
    "-o",
    "ServerAliveCountMax=3",
    "-o",
    "LogLevel=ERROR",
];

/// Port that a name is resolved with; it is not connected to.
const SSH_PORT: u16 = 22;

/// Something about a host's connection.
#[derive(Debug)]
pub(crate) struct SessionEvent {
    /// Position of the host among those of the request.
    pub(super) host: usize,
    /// Which connection to it: events of earlier ones do not count.
    pub(super) generation: u32,
    pub(super) what: SessionChange,
}

#[derive(Debug)]
pub(super) enum SessionChange {
    /// Its process runs: what it reads, and its id.
    Started { input: ChildStdin, pid: Pid },
    /// The agent has said something.
    Said(FromAgent),
    /// It is over, or could not begin.
    Ended { text: String },
}

/// Connects on a thread of its own, and tells what happens.
pub(super) fn connect(request: &Request, host: usize, generation: u32, events: Sender<Event>) {
    let name = request.hosts[host].name.clone();
    let command = command(request, &name);
    std::thread::spawn(move || {
        let tell = |what| {
            let _ = events.send(Event::Session(SessionEvent { host, generation, what }));
        };
        let text = converse(&name, command, &tell);
        tell(SessionChange::Ended { text });
    });
}

/// Host files have full names, hosts may have the first part of them.
fn is_this_host(name: &str) -> bool {
    let own = host_name();
    name == "localhost" || name == own || name.split('.').next() == Some(&own)
}

fn command(request: &Request, name: &str) -> Command {
    let agent = [&request.agent, &request.id];
    if is_this_host(name) {
        let mut command = Command::new(&request.program);
        command.args(agent);
        return command;
    }
    let mut command = Command::new("ssh");
    let words = agent.map(|word| quoted(word));
    let program = quoted(&request.program.to_string_lossy());
    command.args(SSH).arg("--").arg(name).arg("exec").arg(program).args(words);
    command
}

/// A word for the shell of the other host.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Resolves the name and talks to the agent until the end of it, and returns why it ended.
fn converse(name: &str, mut command: Command, tell: &dyn Fn(SessionChange)) -> String {
    if !is_this_host(name)
        && let Err(error) = (name, SSH_PORT).to_socket_addrs()
    {
        return format!("its name has no address yet ({error})");
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.process_group(0).spawn() {
        Ok(child) => child,
        Err(error) => {
            return format!("{} does not start: {error}", command.get_program().display());
        }
    };
    let errors = child.stderr.take().expect("piped");
    let errors = std::thread::spawn(move || last_line(errors));
    let input = child.stdin.take().expect("piped");
    tell(SessionChange::Started { input, pid: Pid::from_child(&child) });
    let output = BufReader::new(child.stdout.take().expect("piped"));
    for message in output.lines().map_while(Result::ok) {
        // Other lines are those of a login's scripts.
        if let Ok(message) = serde_json::from_str(&message) {
            tell(SessionChange::Said(message));
        }
    }
    ended(&mut child, errors.join().unwrap_or_default())
}

fn ended(child: &mut Child, error: String) -> String {
    match child.wait() {
        _ if !error.is_empty() => error,
        Ok(status) if status.code() == Some(255) => "it does not answer to ssh".to_owned(),
        Ok(status) => format!("its agent ended with {status}"),
        Err(error) => error.to_string(),
    }
}

fn last_line(mut errors: impl Read) -> String {
    let mut bytes = Vec::new();
    let _ = errors.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default().to_owned()
}

/// The supervisor's end of a connection.
#[derive(Debug)]
pub(super) struct Session {
    input: ChildStdin,
    pid: Pid,
}

impl Session {
    pub(super) fn new(input: ChildStdin, pid: Pid) -> Self {
        Self { input, pid }
    }

    /// Says something to the agent. If it is gone, an event tells.
    pub(super) fn say(&mut self, message: ToAgent) {
        let _ = self.input.write_all(line(&message).as_bytes()).and_then(|()| self.input.flush());
    }

    /// Ends it without waiting for the host.
    pub(super) fn give_up(self) {
        let _ = kill_process(self.pid, Signal::KILL);
    }
}
