//! MPI's C interface, with return codes as results.

pub(crate) mod calls;
pub(crate) mod communicator;
pub(crate) mod requests;
