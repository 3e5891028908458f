//! Errors between the start of a process and the first collective.

use crate::bootstrap::launcher::{Launcher, LauncherKind};

/// Errors of this crate; each says what was expected, what was found, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A launcher's variable is missing although another one is set, or is not a number in range:
    /// the environment is not fit.
    #[error(
        "expected {variable} to be {expected}, found {found:?}: \
         the environment of a launcher is incomplete (start through it, or unset its variables)"
    )]
    Variable {
        /// Name of the environment variable.
        variable: &'static str,
        /// What it should have been.
        expected: String,
        /// What it was; empty when absent.
        found: String,
    },
    /// MPI is needed, but this binary was built without it: use another build.
    #[error(
        "{} needs MPI, but this binary was built without it: build it with the feature `mpi` (it \
         is on by default), or start one process alone", describe(launcher.as_ref())
    )]
    WithoutMpi {
        /// Who started this process; `None` where the backend was requested by name.
        launcher: Option<Launcher>,
    },
    /// The single backend was requested where a launcher started several ranks.
    #[error(
        "collectives.backend is single, but this process is {launcher}: start it without the \
         launcher, or choose the backend mpi"
    )]
    SingleBackendUnderLauncher {
        /// Who started it.
        launcher: Launcher,
    },
    /// The launcher and the MPI library disagree: use the `mpirun` of the library in the binary.
    #[error(
        "{kind} says rank {launcher_rank} of {launcher_world}, MPI says rank {rank} of {world}: \
         the launcher belongs to another MPI than the binary (compare `which mpirun` with `ldd` \
         of the binary)"
    )]
    WorldMismatch {
        /// Who started it.
        kind: LauncherKind,
        /// Rank from the environment.
        launcher_rank: usize,
        /// World from the environment.
        launcher_world: usize,
        /// Rank from MPI.
        rank: usize,
        /// World from MPI.
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
    /// The operating system refused.
    #[error("cannot {action}: the operating system refused")]
    System {
        /// What was tried, as in `bind a thread to cores [0, 1]`.
        action: String,
        /// The system's answer.
        source: std::io::Error,
    },
}

impl Error {
    /// Whether the cause may be another rank: the process then ends with exit code 5.
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
