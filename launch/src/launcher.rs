//! Programs that start ranks, and the variables that they set for a process.

use std::fmt;

/// Program that started the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LauncherKind {
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// Intel MPI's Hydra.
    IntelMpi,
    /// MPICH's Hydra, or another launcher that speaks PMI.
    Hydra,
    /// Slurm's `srun`.
    Slurm,
    /// A launcher that speaks only PMIx, such as PRRTE's `prterun`.
    Pmix,
}

impl fmt::Display for LauncherKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OpenMpi => "Open MPI's mpirun",
            Self::IntelMpi => "Intel MPI's Hydra",
            Self::Hydra => "MPICH's Hydra",
            Self::Slurm => "Slurm's srun",
            Self::Pmix => "a PMIx launcher",
        })
    }
}

/// A process according to its launcher's variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launcher {
    /// Kind of the launcher.
    pub kind: LauncherKind,
    /// Rank of this process.
    pub rank: usize,
    /// Number of ranks; PMIx has no variable for it.
    pub world: Option<usize>,
}

impl fmt::Display for Launcher {
    /// Formats the rank and its launcher, as in `rank 1 of 4, started by Open MPI's mpirun`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, rank, world } = self;
        match world {
            Some(world) => write!(f, "rank {rank} of {world}, started by {kind}"),
            None => write!(f, "rank {rank} of an unknown number, started by {kind}"),
        }
    }
}
