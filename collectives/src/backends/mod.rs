//! The backends, each an implementation of [`Collective`](crate::Collective).

pub(crate) mod footprint;
#[cfg(feature = "mpi")]
pub(crate) mod mpi;
pub(crate) mod single;
pub(crate) mod threads;
