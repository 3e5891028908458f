//! How to open a world.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How ranks communicate: the key `collectives.backend`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// MPI under a launcher, single without one; on CUDA devices of several ranks NCCL beside it.
    #[default]
    Auto,
    /// One rank; MPI is never initialised.
    Single,
    /// MPI, also without a launcher.
    Mpi,
    /// NCCL between CUDA devices, also of a single rank; control messages as with `auto`.
    Nccl,
}

/// What to open.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// How ranks communicate.
    pub backend: Backend,
    /// Timeout of MPI's initialisation and of the rendezvous.
    pub timeout: Duration,
    /// Timeout of [`Group::close`](super::Group::close), which waits for ranks that still write
    /// their files.
    pub close_timeout: Duration,
    /// Compute threads of this rank; divided from the cores when `None`.
    pub threads: Option<usize>,
}
