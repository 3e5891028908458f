//! Checks that hosts are fit for training; each finding states what was found, what was expected,
//! and what to do.
//!
//! A [`Check`] provides its own description ([CheckDesc]) for documentation and tables, and
//! examines one host or rank. The host checks are here, a file for each group; the trainer adds
//! those that need a device, a tier, or the other ranks. Everything is read below [`Context::root`]
//! and [`Context::host_root`], so that a test can plant the files of a broken host.

mod adapters;
mod check;
mod containers;
mod finding;
mod hugepages;
mod limits;
mod nic;
mod pcie;
mod rdma;
mod shm;
#[cfg(test)]
mod testing;

pub use check::{Check, CheckDesc, Context, Group, Scope};
pub use finding::{Finding, Status};
pub use nic::{mpi_interface, nearest_port};

/// Checks of a host, in the order of the table.
pub const HOST_CHECKS: [&dyn Check; 10] = [
    &shm::Shm,
    &limits::Memlock,
    &limits::OpenFiles,
    &limits::Processes,
    &hugepages::Hugepages,
    &containers::Cpus,
    &containers::Memory,
    &rdma::RdmaPorts,
    &pcie::RdmaPcie,
    &rdma::GdrDriver,
];

/// Returns whether an active RDMA port is available to this process.
pub fn has_rdma(context: &Context) -> bool {
    adapters::Port::used(context).iter().any(|port| port.is_active)
}
