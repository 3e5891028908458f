//! The connection to a host's agent, whose silence means that the host is cut off.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use device::threads;
use record::files::process_limits;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};

use super::Event;
use super::request::Request;
use crate::agent::{FromAgent, ToAgent, line};

/// Maximum silence of a connection once the agent has identified itself: it sends something every
/// other second.
const SILENCE: Duration = Duration::from_secs(6);

/// Event of a host's connection.
#[derive(Debug)]
pub(crate) struct SessionEvent {
    /// Position of the host in the request.
    pub(super) host: usize,
    /// Number of the connection to it: events of earlier connections do not count.
    pub(super) generation: u32,
    pub(super) what: SessionChange,
}

#[derive(Debug)]
pub(super) enum SessionChange {
    /// The connection's process runs, with this input and id.
    Started { input: ChildStdin, pid: Pid },
    /// The agent has sent a message.
    Received(FromAgent),
    /// The connection has ended, or could not begin.
    Ended { text: String },
}

/// Connects on a separate thread, and reports events.
pub(super) fn connect(request: &Request, host: usize, generation: u32, events: Sender<Event>) {
    let transport = request.transport;
    let place = request.hosts[host].clone();
    let program = request.program.clone();
    let arguments = [request.agent.clone(), request.id.clone()];
    let hello = request.patience.hello;
    let report = move |what| {
        let _ = events.send(Event::Session(SessionEvent { host, generation, what }));
    };
    let refused = report.clone();
    let talk = move || {
        let text = match transport.command(&place, &program, &arguments) {
            Ok(command) => run_session(command, hello, &report),
            Err(text) => text,
        };
        report(SessionChange::Ended { text });
    };
    if let Err(error) = threads::spawn("session", talk) {
        refused(SessionChange::Ended { text: error.to_string() });
    }
}

/// Serves the connection until it ends, and returns why. `hello` is the time for the agent to
/// identify itself.
fn run_session(mut command: Command, hello: Duration, report: &dyn Fn(SessionChange)) -> String {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let (give, given) = mpsc::channel();
    let errors = move || given.recv().map(last_line).unwrap_or_default();
    let errors = match threads::spawn("session-errors", errors) {
        Ok(thread) => thread,
        Err(error) => return error.to_string(),
    };
    let mut child = match command.process_group(0).spawn() {
        Ok(child) => child,
        Err(error) => {
            let error = process_limits::explained(&error);
            return format!("{} does not start: {error}", command.get_program().display());
        }
    };
    let _ = give.send(child.stderr.take().expect("piped")); // to the thread above
    let input = child.stdin.take().expect("piped");
    let pid = Pid::from_child(&child);
    report(SessionChange::Started { input, pid });
    let output = child.stdout.take().expect("piped");
    let silent =
        read_messages(TimedReader { input: output, has_input, timeout: hello }, report).err();
    if let Some(error) = silent.filter(|error| error.kind() == ErrorKind::TimedOut) {
        let _ = kill_process_group(pid, Signal::KILL);
        let _ = child.wait();
        return error.to_string();
    }
    ended(&mut child, errors.join().unwrap_or_default())
}

/// Reports the agent's messages, until it ends or is silent for too long.
fn read_messages<R: Read>(
    output: TimedReader<R>,
    report: &dyn Fn(SessionChange),
) -> std::io::Result<()> {
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line)? > 0 {
        // Other lines are output of login scripts, in any encoding.
        if let Ok(message) = serde_json::from_slice(&line) {
            output.get_mut().timeout = SILENCE;
            report(SessionChange::Received(message));
        }
        line.clear();
    }
    Ok(())
}

/// Fails to read if nothing arrives for too long: the connection of a host that is cut off stays
/// open.
struct TimedReader<R> {
    input: R,
    /// Waits a second for input, and returns whether there is any.
    has_input: fn(&R) -> std::io::Result<bool>,
    /// Maximum silence, of seconds in which this process ran: a process that was suspended, or had
    /// no CPU time, has not heard the hosts either, and would give up all of them at once.
    timeout: Duration,
}

fn has_input(output: &ChildStdout) -> std::io::Result<bool> {
    const SECOND: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
    Ok(poll(&mut [PollFd::new(output, PollFlags::IN)], Some(&SECOND))? > 0)
}

impl<R: Read> Read for TimedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let seconds = self.timeout.as_secs();
        for _ in 0..seconds {
            if (self.has_input)(&self.input)? {
                return self.input.read(buffer);
            }
        }
        let text = format!("it has not answered for {seconds} s");
        Err(std::io::Error::new(ErrorKind::TimedOut, text))
    }
}

fn ended(child: &mut Child, error: String) -> String {
    match child.wait() {
        _ if !error.is_empty() => error,
        Ok(status) if status.code() == Some(255) => "it does not answer ssh".to_owned(),
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

/// Supervisor's end of a connection.
#[derive(Debug)]
pub(super) struct Session {
    input: ChildStdin,
    pid: Pid,
}

impl Session {
    pub(super) fn new(input: ChildStdin, pid: Pid) -> Self {
        Self { input, pid }
    }

    /// Sends a message to the agent. If the agent is gone, an event reports it.
    pub(super) fn send(&mut self, message: ToAgent) {
        let _ = self.input.write_all(line(&message).as_bytes()).and_then(|()| self.input.flush());
    }

    /// Kills the connection without waiting for the host, with its children, such as `srun`'s.
    pub(super) fn give_up(self) {
        let _ = kill_process_group(self.pid, Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::collections::VecDeque;

    use super::*;

    /// What arrives in each second, from the first; nothing after the last.
    struct Seconds {
        left: RefCell<VecDeque<Vec<u8>>>,
    }

    impl Seconds {
        fn has_input(&self) -> std::io::Result<bool> {
            let mut left = self.left.borrow_mut();
            let is_silent = left.front().is_none_or(Vec::is_empty);
            if is_silent {
                left.pop_front();
            }
            Ok(!is_silent)
        }
    }

    impl Read for Seconds {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let arrived = self.left.borrow_mut().pop_front().unwrap_or_default();
            (&arrived[..]).read(buffer)
        }
    }

    #[test]
    fn only_silence_ends_a_connection() {
        let banner = b"Derni\xe8re connexion : hier\n".to_vec();
        let alive = line(&FromAgent::Alive).into_bytes();
        let after = |seconds, arrives: &Vec<u8>| {
            let silence = std::iter::repeat_n(Vec::new(), seconds);
            silence.chain([arrives.clone()]).collect::<Vec<_>>()
        };
        let hello = [after(19, &banner), after(19, &alive)].concat();
        let cases = [
            ([hello.clone(), after(5, &alive), after(5, &alive), after(6, &alive)].concat(), 3, 6),
            ([after(19, &banner), after(20, &alive)].concat(), 0, 20),
        ];
        for (seconds, expected, silence) in cases {
            let heard = Cell::new(0);
            let output = TimedReader {
                input: Seconds { left: RefCell::new(seconds.into()) },
                has_input: Seconds::has_input,
                timeout: Duration::from_secs(20),
            };
            let end = read_messages(output, &|_| heard.set(heard.get() + 1)).unwrap_err();
            assert_eq!((end.kind(), heard.get()), (ErrorKind::TimedOut, expected));
            assert_eq!(end.to_string(), format!("it has not answered for {silence} s"));
        }
    }
}
