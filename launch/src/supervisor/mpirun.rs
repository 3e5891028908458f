//! `mpirun`: its detection, and the arguments that give it the intended behaviour.
//!
//! Open MPI: `mpirun(1)` of 4.1 and 5.0. Open MPI 5 reads none of the `OMPI_MCA_orte_*` variables
//! that the mpi-operator sets, so that it would start all ranks on the launcher: hosts are always
//! given as a file. MPICH and Intel MPI: `mpiexec` of Hydra.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Sender};

use device::threads;
use record::files::process_limits;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::Event;
use super::own_folder::OwnFolder;
use super::request::Request;
use super::transport::Transport;
use crate::error::Error;
use crate::expected::Expected;
use crate::hostfile::Host;
use crate::local_ranks::LAUNCH_ID;

/// Family of launchers with the same arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    OpenMpi4,
    OpenMpi5,
    /// MPICH.
    Hydra,
    IntelMpi,
}

impl Family {
    /// Arguments to reach hosts in the same way as agents. By default `mpirun` uses its
    /// environment: in a Slurm allocation `srun`, and of Open MPI's host file no hosts but those of
    /// the allocation.
    fn transport_arguments(self, transport: Transport) -> &'static [&'static str] {
        match (self, transport) {
            (Self::OpenMpi4 | Self::OpenMpi5, Transport::Srun) => &[],
            (Self::OpenMpi4, Transport::Ssh) => {
                &["--mca", "plm", "^slurm", "--mca", "ras", "^slurm"]
            }
            (Self::OpenMpi5, Transport::Ssh) => {
                &["--prtemca", "plm", "^slurm", "--prtemca", "ras", "^slurm"]
            }
            (Self::Hydra | Self::IntelMpi, Transport::Srun) => &["-bootstrap", "slurm"],
            (Self::Hydra | Self::IntelMpi, Transport::Ssh) => &["-bootstrap", "ssh"],
        }
    }

    /// Formats a line of the host file. Hydra's files have no ports: ssh's own configuration does.
    fn hostfile_line(self, host: &Host, slots: usize) -> String {
        match (self, &host.user) {
            (Self::OpenMpi4 | Self::OpenMpi5, _) => {
                let port = host.port.map_or_else(String::new, |port| format!(" port={port}"));
                format!("{} slots={slots}{port}\n", host.address())
            }
            (Self::Hydra | Self::IntelMpi, None) => format!("{}:{slots}\n", host.name),
            (Self::Hydra | Self::IntelMpi, Some(user)) => {
                format!("{}:{slots} user={user}\n", host.name)
            }
        }
    }
}

/// An installed `mpirun`.
#[derive(Debug, Clone)]
pub(super) struct MpiRun {
    program: PathBuf,
    family: Family,
    /// Version that it reports.
    version: String,
}

/// Start of ranks, for one attempt.
#[derive(Debug)]
pub(super) struct Start {
    /// The hosts, in order.
    pub(super) hosts: Vec<Host>,
    /// Times for the record.
    pub(super) times: LaunchTimes,
}

impl MpiRun {
    /// Identifies the program.
    ///
    /// # Errors
    /// [`Error::Mpirun`] when it does not run, or is unknown.
    pub(super) fn find(program: &Path) -> Result<Self, Error> {
        let refused = |text: String| Error::Mpirun { program: program.to_owned(), text };
        let mut command = Command::new(program);
        let output = command.arg("--version").stdin(Stdio::null()).output();
        let output = output.map_err(|error| refused(error.to_string()))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (family, version) =
            family(&text).ok_or_else(|| refused(format!("--version says {:?}", text.trim())))?;
        Ok(Self { program: program.to_owned(), family, version })
    }

    /// Starts ranks on hosts, and emits [`Event::MpirunEnded`] at their end.
    ///
    /// # Errors
    /// [`Error::Mpirun`], [`Error::System`] when the host file cannot be written.
    pub(super) fn start(
        &self,
        request: &Request,
        start: &Start,
        events: &Sender<Event>,
    ) -> Result<Running, Error> {
        let refused = |source| Error::System { action: "write a host file".to_owned(), source };
        let folder = OwnFolder::create().map_err(refused)?;
        let hostfile = folder.path().join("hostfile");
        std::fs::write(&hostfile, self.hostfile(request, start)).map_err(refused)?;
        let mut command = self.command(request, &hostfile);
        if self.keeps_session_files(request.transport) {
            command.env("TMPDIR", folder.path());
        }
        Self::announce(&mut command, request, start);
        let (started, child) = mpsc::channel();
        let events = events.clone();
        threads::spawn("mpirun", move || child.into_iter().for_each(|child| wait(child, &events)))?;
        // Ctrl-C must only reach the supervisor, which lets ranks save.
        let spawned = command.stdin(Stdio::null()).process_group(0).spawn();
        let child = spawned.map_err(|error| Error::Mpirun {
            program: self.program.clone(),
            text: process_limits::explained(&error),
        })?;
        let pid = Pid::from_child(&child);
        let _ = started.send(child); // to the thread above, which waits for it
        Ok(Running { pid, _folder: folder })
    }

    /// Returns whether it needs a session folder of its own. Open MPI keeps session folders in one
    /// folder per user among temporary files, which the last `mpirun` to end removes, even while
    /// another one starts. Under Slurm its daemons would use the folder on other nodes, too.
    fn keeps_session_files(&self, transport: Transport) -> bool {
        matches!(self.family, Family::OpenMpi4 | Family::OpenMpi5) && transport == Transport::Ssh
    }

    fn hostfile(&self, request: &Request, start: &Start) -> String {
        let line = |host: &Host| self.family.hostfile_line(host, request.ranks_per_node);
        start.hosts.iter().map(line).collect()
    }

    fn command(&self, request: &Request, hostfile: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.args(self.arguments(request, hostfile, &variables(request)));
        command.args(&request.mpirun_arguments);
        if std::env::home_dir().is_none() {
            command.env("HOME", "/"); // Open MPI 4 crashes without one; containers have this one
        }
        command.arg(&request.program).args(&request.arguments);
        command
    }

    /// Builds the arguments. Ranks are not bound: they divide the cores of their node themselves.
    fn arguments(&self, request: &Request, hostfile: &Path, forwarded: &[String]) -> Vec<OsString> {
        let file = hostfile.as_os_str().to_owned();
        let count = OsString::from(request.ranks().to_string());
        let per_node = request.ranks_per_node.to_string();
        let mut arguments: Vec<OsString> = Vec::new();
        let mut add = |words: &[&str]| arguments.extend(words.iter().map(OsString::from));
        add(self.family.transport_arguments(request.transport));
        match self.family {
            Family::Hydra | Family::IntelMpi => {
                match self.family {
                    Family::IntelMpi => add(&["-genv", "I_MPI_PIN", "off"]),
                    _ => add(&["-bind-to", "none"]),
                }
                add(&["-ppn", &per_node]);
                add(&["-genvlist", &forwarded.join(",")]);
                arguments.extend(["-f".into(), file, "-n".into(), count]);
                return arguments;
            }
            Family::OpenMpi4 => {
                add(&["--mca", "orte_keep_fqdn_hostnames", "1"]);
                // The other ranks get SIGTERM these seconds after a rank fails, and SIGKILL after
                // twice as many: time to report why.
                add(&["--mca", "odls_base_sigkill_timeout", "3"]);
                for (name, seconds) in KEEPALIVE {
                    add(&["--mca", &format!("oob_tcp_keepalive_{name}"), seconds]);
                }
            }
            Family::OpenMpi5 => {
                for (name, seconds) in KEEPALIVE {
                    add(&["--prtemca", &format!("oob_tcp_keepalive_{name}"), seconds]);
                }
            }
        }
        add(&["--map-by", &format!("ppr:{per_node}:node"), "--bind-to", "none"]);
        if rustix::process::geteuid().is_root() {
            add(&["--allow-run-as-root"]);
        }
        forwarded.iter().for_each(|name| add(&["-x", name]));
        arguments.extend(["--hostfile".into(), file, "-np".into(), count]);
        arguments
    }

    /// Passes the launch, its expected size and its times to ranks.
    fn announce(command: &mut Command, request: &Request, start: &Start) {
        command.env(LAUNCH_ID, &request.id);
        if request.transport == Transport::Srun {
            // The daemons are a Slurm step, to whose cores their ranks would be bound.
            command.env("SLURM_CPU_BIND", "none");
            // The step of a node that was cut off stays until Slurm gives up the node.
            command.env("SLURM_OVERLAP", "1");
        }
        let expected = Expected { ranks: request.ranks(), nodes: request.nodes };
        command.envs(expected.variables());
        command.env(LAUNCH_TIMES, start.times.to_string());
    }
}

/// Keepalive with which daemons of Open MPI notice a lost peer after 5 + 2 x 2 seconds.
const KEEPALIVE: [(&str, &str); 3] = [("time", "5"), ("intvl", "2"), ("probes", "2")];

/// Variable with both times of [`LaunchTimes`], separated by a comma.
const LAUNCH_TIMES: &str = "YARDSTICK_LAUNCH_TIMES";

/// Times of a launch before its ranks start: Unix times in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchTimes {
    /// Start of the wait for hosts: at the supervisor's start, or after a loss.
    pub began_unix_ms: u64,
    /// Start of `mpirun`, when enough hosts had answered.
    pub hosts_ready_unix_ms: u64,
}

impl LaunchTimes {
    /// Reads the times that the supervisor passed to this rank; `None` without one.
    pub fn of_this_process() -> Option<Self> {
        Self::parse(&std::env::var(LAUNCH_TIMES).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let (began, ready) = text.split_once(',')?;
        Some(Self { began_unix_ms: began.parse().ok()?, hosts_ready_unix_ms: ready.parse().ok()? })
    }
}

impl fmt::Display for LaunchTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.began_unix_ms, self.hosts_ready_unix_ms)
    }
}

/// Names of all variables that ranks get.
fn variables(request: &Request) -> Vec<String> {
    let mut names = request.forwarded();
    let own = Expected::VARIABLES.into_iter().chain([LAUNCH_ID, LAUNCH_TIMES]);
    names.extend(own.map(str::to_owned));
    names.sort();
    names.dedup();
    names
}

/// Parses the output of `--version`: the family, and the line with the version.
fn family(text: &str) -> Option<(Family, String)> {
    let line = |start: &str| text.lines().map(str::trim).find(|line| line.starts_with(start));
    if let Some(line) = line("mpirun (Open MPI) ") {
        let version = line.rsplit(' ').next()?;
        let major: u32 = version.split('.').next()?.parse().ok()?;
        let family = if major < 5 { Family::OpenMpi4 } else { Family::OpenMpi5 };
        return Some((family, format!("Open MPI {version}")));
    }
    if let Some(line) = line("Intel(R) MPI Library") {
        return Some((Family::IntelMpi, line.to_owned()));
    }
    text.contains("HYDRA build details").then(|| {
        let version = line("Version:").and_then(|line| line.split_whitespace().nth(1));
        (Family::Hydra, format!("MPICH's Hydra {}", version.unwrap_or("of unknown version")))
    })
}

impl fmt::Display for MpiRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.version)
    }
}

fn wait(mut child: Child, events: &Sender<Event>) {
    if let Ok(status) = child.wait() {
        let _ = events.send(Event::MpirunEnded(status));
    }
}

/// A running `mpirun`.
#[derive(Debug)]
pub(super) struct Running {
    pid: Pid,
    /// Folder with its host file, and the files of its session.
    _folder: OwnFolder,
}

impl Running {
    /// Sends SIGTERM.
    pub(super) fn terminate(&self) {
        let _ = kill_process(self.pid, Signal::TERM);
    }

    /// Sends SIGKILL to `mpirun` and its connections.
    pub(super) fn kill(&self) {
        let _ = kill_process_group(self.pid, Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_they_are_told() {
        let times = LaunchTimes { began_unix_ms: 17, hosts_ready_unix_ms: 42 };
        assert_eq!(LaunchTimes::parse(&times.to_string()), Some(times));
        assert_eq!(LaunchTimes::parse("17"), None);
    }

    #[test]
    fn hosts_are_written_as_each_family_reads_them() {
        let user = Some("me".to_owned());
        let host = Host { user, port: Some(2222), ..Host::new("a", Some(8)) };
        assert_eq!(Family::OpenMpi4.hostfile_line(&host, 4), "me@a slots=4 port=2222\n");
        assert_eq!(Family::Hydra.hostfile_line(&host, 4), "a:4 user=me\n");
        assert_eq!(Family::OpenMpi5.hostfile_line(&Host::new("a", None), 4), "a slots=4\n");
    }

    #[test]
    fn launchers_are_told_apart_by_their_version() {
        let found = |text: &str| family(text);
        let open_mpi =
            |version: &str| format!("mpirun (Open MPI) {version}\n\nReport bugs to ...\n");
        let expected = |family, version: &str| Some((family, version.to_owned()));
        assert_eq!(found(&open_mpi("4.1.4")), expected(Family::OpenMpi4, "Open MPI 4.1.4"));
        assert_eq!(found(&open_mpi("5.0.7")), expected(Family::OpenMpi5, "Open MPI 5.0.7"));
        let hydra = "HYDRA build details:\n    Version:                                 4.3.0\n";
        assert_eq!(found(hydra), expected(Family::Hydra, "MPICH's Hydra 4.3.0"));
        let intel = "Intel(R) MPI Library for Linux* OS, Version 2021.11 Build 20231005\n";
        assert_eq!(found(intel).map(|it| it.0), Some(Family::IntelMpi));
        assert_eq!(found("GNU bash, version 5.2"), None);
    }
}
