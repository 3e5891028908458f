//! Pod: one container with a network of its own, and everything that runs in it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::image::{HOME, USER};
use crate::network::Port;
use crate::process::{self, Process};
use crate::wait::{LIMIT, wait_until};
use support::Running;

/// Specification of a pod.
#[derive(Debug)]
pub(crate) struct Spec<'a> {
    pub(crate) name: &'a str,
    pub(crate) port: Port,
    /// The image's files over this machine's root.
    pub(crate) layer: &'a Path,
    /// An empty folder, where the pod mounts its root.
    pub(crate) root: &'a Path,
    pub(crate) volumes: Vec<Volume>,
    /// All there are, but for `HOME`.
    pub(crate) variables: Vec<Variable>,
    pub(crate) command: &'a [&'a str],
    /// File to which its output is appended.
    pub(crate) log: PathBuf,
}

/// A file or folder of this machine in a container.
#[derive(Debug, Clone)]
pub(crate) struct Volume {
    pub(crate) source: PathBuf,
    pub(crate) target: &'static str,
}

/// An environment variable.
#[derive(Debug, Clone)]
pub(crate) struct Variable {
    pub(crate) name: &'static str,
    pub(crate) value: String,
}

/// Pod that was started. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Pod {
    pub(crate) name: String,
    pub(crate) port: Port,
    log: PathBuf,
    running: Running,
}

/// Without capabilities and without a way to get any. It dies with the test.
const RESTRICTED: [&str; 6] = [
    "--clear-groups",
    "--bounding-set=-all",
    "--inh-caps=-all",
    "--no-new-privs",
    "--pdeathsig=KILL",
    "--",
];

impl Pod {
    /// Starts a pod's container.
    #[track_caller]
    pub(crate) fn start(spec: Spec<'_>) -> Self {
        let log = File::options().create(true).append(true).open(&spec.log).unwrap();
        let mut command = spec.container();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let running = Running::spawn(command);
        Self { name: spec.name.to_owned(), port: spec.port, log: spec.log, running }
    }

    /// Returns its output so far.
    pub(crate) fn output(&self) -> String {
        read(&self.log)
    }

    /// SIGTERM to its first process: what a drain, or the deletion of a pod, begins with.
    #[track_caller]
    pub(crate) fn terminate(&self) {
        process::signal("TERM", self.first_process().id);
    }

    /// SIGKILL to everything in it, as when its memory runs out: the kernel does that when the
    /// first process of a PID namespace dies. Its network stays until it is dropped, so that its
    /// peers see their connections closed.
    #[track_caller]
    pub(crate) fn kill(&mut self) {
        process::signal("KILL", self.first_process().id);
        self.exit_code();
    }

    /// Waits for the exit code of its first process.
    #[track_caller]
    pub(crate) fn exit_code(&mut self) -> i32 {
        let deadline = Instant::now() + LIMIT;
        let Self { name, log, running, .. } = self;
        let code = running.poll_until_exit(|_| {
            assert!(Instant::now() < deadline, "{name} runs after {LIMIT:?}:\n{}", read(log));
        });
        code.unwrap_or(-1)
    }

    /// Waits until something listens on a port.
    #[track_caller]
    pub(crate) fn wait_for_port(&self, port: u16) {
        let is_open = || {
            let filter = format!("sport = :{port}");
            let listening = ["netns", "exec", &self.port.namespace, "ss", "-Htln", &filter];
            !Command::new("ip").args(listening).output().unwrap().stdout.is_empty()
        };
        wait_until(is_open, || format!("{} has no port {port}: {}", self.name, self.output()));
    }

    /// Returns its processes that are ranks.
    pub(crate) fn ranks(&self) -> Vec<Process> {
        process::in_network(&self.port.namespace).into_iter().filter(Process::is_rank).collect()
    }

    /// Returns its processes that run this program with this argument, possibly among more.
    pub(crate) fn running(&self, program: &str, argument: &str) -> Vec<Process> {
        let all = process::in_network(&self.port.namespace).into_iter();
        all.filter(|process| process.runs(program, argument)).collect()
    }

    /// The container's first process.
    #[track_caller]
    fn first_process(&self) -> Process {
        let mut all = process::in_network(&self.port.namespace).into_iter();
        let first = all.find(Process::is_first_of_container);
        first.unwrap_or_else(|| panic!("{} has no process: {}", self.name, self.output()))
    }
}

fn read(log: &Path) -> String {
    String::from_utf8_lossy(&fs::read(log).unwrap()).into_owned()
}

impl Spec<'_> {
    /// Returns the command that starts the container.
    fn container(&self) -> Command {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/mpijob/pod.sh");
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "ip", "netns", "exec", &self.port.namespace])
            .args(["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"])
            .args(["bash", script])
            .args([self.root, self.layer])
            .arg(self.name)
            .args(self.volumes.iter().map(Volume::argument))
            .args(["--", "env", "--ignore-environment", &format!("HOME={HOME}")])
            .args(self.variables.iter().map(Variable::assignment))
            .args(["setpriv", &format!("--reuid={USER}"), &format!("--regid={USER}")])
            .args(RESTRICTED)
            .args(self.command);
        command
    }
}

impl Volume {
    fn argument(&self) -> String {
        format!("{}:{}", self.source.display(), self.target)
    }
}

impl Variable {
    pub(crate) fn new(name: &'static str, value: impl Into<String>) -> Self {
        Self { name, value: value.into() }
    }

    fn assignment(&self) -> String {
        format!("{}={}", self.name, self.value)
    }
}
