//! Errors between the start of a process and the first collective.

use std::path::PathBuf;
use std::time::Duration;

use record::files::process_limits;

use crate::expected::Expected;
use crate::launcher::{Launcher, LauncherKind};
use record::text::count;

/// Errors of this crate; each states what was expected, what was found, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A launcher's variable is missing although another one is set, or is not a number in range:
    /// the environment is inconsistent.
    #[error(
        "expected {variable} to be {expected}, found {found:?}: \
         the environment of a launcher is incomplete (start through it, or unset its variables)"
    )]
    Variable {
        /// Name of the environment variable.
        variable: &'static str,
        /// Expected value.
        expected: String,
        /// Value found; empty when absent.
        found: String,
    },
    /// MPI is needed, but this binary was built without it: use another build.
    #[error(
        "{} needs MPI, but this binary was built without it: build it with the feature `mpi` (it \
         is on by default), or start one process alone", describe(launcher.as_ref())
    )]
    WithoutMpi {
        /// Launcher of this process; `None` if the backend was requested by name.
        launcher: Option<Launcher>,
    },
    /// The single backend was requested, but a launcher started several ranks.
    #[error(
        "collectives.backend is single, but this process is {launcher}: start it without the \
         launcher, or choose the backend mpi"
    )]
    SingleBackendUnderLauncher {
        /// Launcher of this process.
        launcher: Launcher,
    },
    /// The launcher and the MPI library disagree: use the `mpirun` of the library in the binary.
    #[error(
        "{kind} says rank {launcher_rank} of {launcher_world}, MPI says rank {rank} of {world}: \
         the launcher belongs to another MPI than the binary (compare `which mpirun` with `ldd` \
         of the binary)"
    )]
    WorldMismatch {
        /// Kind of the launcher.
        kind: LauncherKind,
        /// Rank in the environment.
        launcher_rank: usize,
        /// World size in the environment.
        launcher_world: usize,
        /// Rank by MPI.
        rank: usize,
        /// World size by MPI.
        world: usize,
    },
    /// The rendezvous of the ranks failed.
    #[error("rank {rank}: the rendezvous of the ranks failed")]
    Rendezvous {
        /// This rank.
        rank: usize,
        /// The backend's error.
        source: collectives::Error,
    },
    /// MPI could not be initialised, or not all ranks arrived in time.
    #[error("MPI could not be initialised")]
    Open {
        /// The backend's error.
        source: collectives::Error,
    },
    /// The ranks are not those that the supervisor of the launch requested.
    #[error(
        "expected {} on {}, found {} on {}: mpirun did not follow its host file, or hosts have the \
         same name",
        count(expected.ranks, "rank"),
        count(expected.nodes, "host"),
        count(found.ranks, "rank"),
        found.nodes
    )]
    UnexpectedWorld {
        /// Requested ranks and hosts.
        expected: Expected,
        /// Actual ranks and hosts.
        found: Expected,
    },
    /// A rank runs in the launcher of an MPIJob, which is not a worker.
    #[error(
        "this rank runs on the launcher, {host}, which is not in {hostfile}: mpirun has ignored \
         that file (Open MPI 5 does unless it is given --hostfile); start with `yardstick launch`"
    )]
    RankOnLauncher {
        /// Name of this host.
        host: String,
        /// Host file that was ignored.
        hostfile: &'static str,
    },
    /// A host file cannot be used.
    #[error("host file {}: {text}", path.display())]
    Hostfile {
        /// The file.
        path: PathBuf,
        /// Problem with the file.
        text: String,
    },
    /// The request of a launch is impossible.
    #[error("{text}")]
    Request {
        /// Expectation and finding.
        text: String,
    },
    /// `mpirun` cannot be used.
    #[error(
        "expected {} to be the mpirun of Open MPI, MPICH or Intel MPI: {text}", program.display()
    )]
    Mpirun {
        /// The program.
        program: PathBuf,
        /// Problem with the program.
        text: String,
    },
    /// Too few hosts have answered in time.
    #[error(
        "expected {}, found {ready} after {} s; missing: {absent}",
        count(*expected, "host"),
        wait.as_secs()
    )]
    HostsMissing {
        /// Number of hosts that are needed.
        expected: usize,
        /// Number of hosts that answer.
        ready: usize,
        /// Time that was waited for them.
        wait: Duration,
        /// Missing hosts, each with the reason.
        absent: String,
    },
    /// The folder of the run does not answer.
    #[error(
        "expected an answer of {place}, found none after {} s: is storage hung?", wait.as_secs()
    )]
    StorageHung {
        /// The folder.
        place: String,
        /// Time that was waited for it.
        wait: Duration,
    },
    /// Two hosts that should be different are the same.
    #[error("expected different hosts, but {} and {} are both {same}", names[0], names[1])]
    SameHost {
        /// Names of the hosts in the host file.
        names: [String; 2],
        /// Property that they share.
        same: String,
    },
    /// A host has another version of the program.
    #[error("expected version {expected} of yardstick on all hosts, found {found} on {host}")]
    AgentVersion {
        /// The host.
        host: String,
        /// Version of the supervisor.
        expected: String,
        /// Version of the agent.
        found: String,
    },
    /// The ssh server of a worker does not serve.
    #[error("ssh server {} on port {port}: {text}", program.display())]
    Sshd {
        /// The program.
        program: PathBuf,
        /// Port to listen on.
        port: u16,
        /// Output of the program.
        text: String,
    },
    /// A thread could not be started.
    #[error("{0}")]
    Thread(#[from] device::threads::Error),
    /// The operating system refused.
    #[error("cannot {action}: the operating system refused: {}", process_limits::explained(source))]
    System {
        /// Attempted action, such as `bind a thread to cores [0, 1]`.
        action: String,
        /// The system's answer.
        source: std::io::Error,
    },
}

impl Error {
    /// Returns whether another rank may be the cause: the process then ends with exit code 5.
    pub fn is_peer_failure(&self) -> bool {
        match self {
            Self::Rendezvous { source, .. } | Self::Open { source } => source.is_peer_failure(),
            _ => false,
        }
    }
}

fn describe(launcher: Option<&Launcher>) -> String {
    launcher.map_or("collectives.backend = \"mpi\"".to_owned(), |launcher| format!("{launcher},"))
}
