//! The first process of a worker pod. It serves ssh, with which launchers start ranks. When the pod
//! terminates, it forwards the signal to ranks and gives them time to save: by itself a pod's
//! SIGTERM reaches only its first process.

mod leftovers;
mod sshd;

use std::process::Child;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, set_child_subreaper, wait};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::error::Error;
use crate::local_ranks::{LocalRanks, has_launcher_daemon, processes_with};
use record::text::count;

pub use sshd::SshdOptions;

/// Options of a worker.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// Options of the ssh server.
    pub sshd: SshdOptions,
    /// Time for ranks to save and to end after SIGTERM.
    pub grace: Duration,
    /// Subcommand of [agents](crate::agent), which are notified that the host is terminating.
    pub agent: String,
}

/// Interval of checks whether ranks have ended.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Time for the launcher's daemon to report that ranks have ended.
const REPORT: Duration = Duration::from_secs(10);

/// Serves until SIGTERM or SIGINT, and then until the ranks of the host have ended. `tell` is
/// called with messages for an operator.
///
/// # Errors
/// [`Error::Sshd`] when the ssh server does not start or ends by itself; [`Error::System`].
pub fn run(options: &WorkerOptions, report: &dyn Fn(&str)) -> Result<(), Error> {
    let refused = |action: &str, source| Error::System { action: action.to_owned(), source };
    // Ranks whose login ended become children of this process, even if it is not the first one.
    set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|errno| refused("adopt orphaned processes", errno.into()))?;
    let mut signals = Signals::new([SIGCHLD, SIGINT, SIGTERM])
        .map_err(|source| refused("handle signals", source))?;
    for folder in leftovers::remove(&std::env::temp_dir()) {
        report(&format!("removed {}, left by a killed launcher", folder.display()));
    }
    let folder = tempfile::tempdir().map_err(|source| refused("create a folder", source))?;
    let server = sshd::start(&options.sshd, folder.path(), report)?;
    report(&format!("started sshd for port {}", options.sshd.port));
    let worker = Worker { options, server: Pid::from_child(&server), report };
    worker.serve(&mut signals, server)
}

struct Worker<'a> {
    options: &'a WorkerOptions,
    server: Pid,
    report: &'a dyn Fn(&str),
}

impl Worker<'_> {
    /// The server is reaped with all other children, so its handle must not reap it.
    fn serve(&self, signals: &mut Signals, server: Child) -> Result<(), Error> {
        drop(server);
        for signal in signals.forever() {
            if signal == SIGCHLD {
                self.reap()?;
            } else {
                self.drain();
                break;
            }
        }
        let _ = kill_process(self.server, Signal::TERM);
        Ok(())
    }

    /// Reaps children that have ended.
    fn reap(&self) -> Result<(), Error> {
        while let Some(pid) = reap_one() {
            if pid == self.server {
                let SshdOptions { program, port, .. } = self.options.sshd.clone();
                let text = "it ended by itself".to_owned();
                return Err(Error::Sshd { program, port, text });
            }
        }
        Ok(())
    }

    /// Lets the ranks of this host save and end.
    fn drain(&self) {
        let ranks = LocalRanks { launch: None };
        let deadline = Instant::now() + self.options.grace;
        for agent in processes_with(&[&self.options.agent]) {
            let _ = kill_process(agent, Signal::TERM);
        }
        match ranks.signal(Signal::TERM) {
            0 => return (self.report)("SIGTERM: no rank runs here"),
            running => {
                let ranks = count(running, "rank");
                (self.report)(&format!("SIGTERM: passed on to {ranks}, waiting for their end"))
            }
        }
        if wait_until(deadline, || ranks.running().is_empty()) {
            // The launcher must first know how they ended.
            wait_until(deadline.min(Instant::now() + REPORT), || !has_launcher_daemon());
            (self.report)("all ranks of this host have ended");
        } else {
            let seconds = self.options.grace.as_secs();
            (self.report)(&format!("ranks have not ended after {seconds} s: they are killed"));
            ranks.signal(Signal::KILL);
        }
    }
}

/// Reaps a child that has ended, if there is one.
fn reap_one() -> Option<Pid> {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(status) => return status.map(|(pid, _)| pid),
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

/// Returns whether the condition holds before the deadline. Reaps children meanwhile: a process
/// that was not reaped still counts as running.
fn wait_until(deadline: Instant, happened: impl Fn() -> bool) -> bool {
    loop {
        while reap_one().is_some() {}
        if happened() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}
