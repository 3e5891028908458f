//! Whether hosts are fit for training: checks that say what they found, what was expected, and what
//! to do.
//!
//! A [`Check`] says [About] itself what documentation and tables show, and looks at one host or
//! rank. Those of the host are here, a file for each group; the trainer adds those that need a
//! device, a tier, or the other ranks. Everything is read below [`Context::root`] and
//! [`Context::host_root`], so that a test can plant what a broken host says.

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

pub use check::{About, Check, Context, Group, Scope};
pub use finding::{Finding, Status};
pub use nic::{mpi_interface, nearest_port};

/// The checks of a host, in the order of the table.
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

/// Whether a port for RDMA is up that this process may use.
pub fn has_rdma(context: &Context) -> bool {
    adapters::Port::used(context).iter().any(|port| port.is_active)
}
