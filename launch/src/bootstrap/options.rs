//! Options of opening a world.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Communication backend of ranks: the key `collectives.backend`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// MPI under a launcher, single without one; NCCL beside it for several ranks on CUDA devices.
    #[default]
    Auto,
    /// One rank; MPI is never initialised.
    Single,
    /// MPI, even without a launcher.
    Mpi,
    /// NCCL between CUDA devices, even of a single rank; control messages as with `auto`.
    Nccl,
}

/// Options of a world.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Communication backend.
    pub backend: Backend,
    /// Timeout of MPI's initialisation and of the rendezvous.
    pub timeout: Duration,
    /// Timeout of [`Group::close`](super::Group::close), which waits for ranks that still write
    /// their files.
    pub close_timeout: Duration,
    /// Number of compute threads of this rank; `None` to divide the cores.
    pub threads: Option<usize>,
}
