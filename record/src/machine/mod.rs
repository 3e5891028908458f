//! Machines: hardware, software, and groups of nodes that are alike.

mod description;
mod gpu;
mod host;
mod libraries;
mod nodes;

pub use description::{Machine, NodeIdentity};
pub use gpu::{ComputeCapability, DeviceProperties};
pub use host::{boot_id, host_name};
pub use libraries::Versions;
pub use nodes::{NodeGroup, NodeReport, node_groups};
