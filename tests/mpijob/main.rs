//! MPIJobs without a cluster: pods emulated with namespaces, with the hostfile, the ssh secret and
//! the environment that mpi-operator gives them, a real sshd and a real mpirun.
//!
//! They need root, overlayfs, and Debian's iproute2 and openssh-server.
#![cfg(feature = "mpi")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod command;
mod connection;
mod image;
mod job;
mod loss;
mod mpi;
mod names;
mod network;
mod operator;
mod plain_mpirun;
mod pod;
mod process;
mod recovery;
mod start;
mod stop;
mod success;
mod training;
mod wait;
