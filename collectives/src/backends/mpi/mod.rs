//! Ranks as MPI processes.
//!
//! [`backend`] is the interface. [`worker`] is the communication thread, which alone calls MPI, and
//! what callers hand over to it. [`setup`] opens MPI and finds out which ranks share a node.
//! [`operations`] carries out operations, over several nodes in stages. [`library`] is MPI's C
//! interface.

mod backend;
mod library;
mod operations;
mod options;
mod setup;
mod worker;

pub use backend::Mpi;
pub use options::MpiOptions;
